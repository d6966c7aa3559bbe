"""The structure of systems of equations: known examples, and all choices tried on small random ones."""

import ast
import itertools
from pathlib import Path

import numpy as np
import pytest

from odesens.symbolic import structure, tearing
from odesens.symbolic.structure import StructuralSingularity, blocks, dummies, matching, offsets, singular
from odesens.symbolic.tearing import tear

SEEDS = range(40)
LARGE = 50_000


def random_rows(seed, m, n, most=3, least=0):
    rng = np.random.default_rng(seed)
    return [rng.choice(n, rng.integers(least, min(most, n) + 1), replace=False).tolist() for _ in range(m)]


def matchings(rows):
    """Every matching, as the variable of each equation or -1."""
    for choice in itertools.product(*[[-1, *row] for row in rows]):
        used = [v for v in choice if v >= 0]
        if len(set(used)) == len(used):
            yield choice


def maximum_matchings(rows):
    every = list(matchings(rows))
    size = lambda match: sum(v >= 0 for v in match)
    most = max(map(size, every))
    return [match for match in every if size(match) == most]


def assert_matching(rows, match):
    used = match[match >= 0].tolist()
    assert len(set(used)) == len(used)
    assert all(v < 0 or v in row for v, row in zip(match.tolist(), rows, strict=True))


def test_the_layer_knows_neither_symbols_nor_programs():
    for module in (structure, tearing):
        for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & {"sympy", "jax", "odesens"}


# ---------------------------------------------------------------- matchings


@pytest.mark.parametrize("seed", SEEDS)
def test_matching_is_a_largest_one(seed):
    m, n = np.random.default_rng(seed).integers(1, 6, size=2)
    rows = random_rows(seed, m, n)
    match = matching(rows, n)
    assert_matching(rows, match)
    assert (match >= 0).sum() == sum(v >= 0 for v in maximum_matchings(rows)[0])


@pytest.mark.parametrize("seed", SEEDS)
def test_matching_takes_the_variables_of_highest_priority(seed):
    rng = np.random.default_rng(seed)
    m, n = rng.integers(1, 5), rng.integers(2, 7)
    rows, priority = random_rows(seed, m, n), rng.integers(-2, 3, size=n)
    match = matching(rows, n, priority)
    assert_matching(rows, match)
    place = np.argsort(np.lexsort((np.arange(n), -priority)))
    taken = lambda match: sorted(place[v] for v in match if v >= 0)
    assert taken(match) == min(map(taken, maximum_matchings(rows)))


def test_matching_of_nothing():
    assert matching([], 0).tolist() == []
    assert matching([], 3, [1, 2, 3]).tolist() == []
    assert matching([[], []], 0).tolist() == [-1, -1]


def test_matching_refuses_what_it_cannot_use():
    with pytest.raises(ValueError, match="equation 1 has variable 2: variables are numbered from 0 to 1"):
        matching([[0], [1, 2]], 2)
    with pytest.raises(ValueError, match="equation 0 has variable -1"):
        matching([[-1]], 2)
    with pytest.raises(ValueError, match=r"one entry for each of 2 variables, got shape \(3,\)"):
        matching([[0], [1]], 2, [1, 2, 3])


# ---------------------------------------------------------------- singular systems


def test_singular_names_both_parts():
    # 0, 1, 2 are three equations for variables 0 and 1; variables 3, 4, 5 have the two equations 4 and 5
    rows = [[0], [0, 1], [1], [1, 2], [2, 3, 4], [4, 5]]
    over, under = singular(rows, 6, matching(rows, 6))
    assert over == ([0, 1, 2], [0, 1])
    assert under == ([4, 5], [3, 4, 5])


def test_singular_of_an_equation_without_variables_and_of_a_variable_without_equation():
    rows = [[], [0]]
    assert singular(rows, 2, matching(rows, 2)) == (([0], []), ([], [1]))


def test_singular_of_a_regular_system_is_empty():
    rows = [[0, 1], [1]]
    assert singular(rows, 2, matching(rows, 2)) == (([], []), ([], []))


@pytest.mark.parametrize("seed", SEEDS)
def test_singular_against_every_maximum_matching(seed):
    """Over: what some maximum matching leaves out, and its variables; under: likewise from the other side."""
    m, n = np.random.default_rng(seed).integers(1, 6, size=2)
    rows = random_rows(seed, m, n)
    every = maximum_matchings(rows)
    out = {i for match in every for i, v in enumerate(match) if v < 0}
    free = {v for match in every for v in range(n) if v not in match}
    over, under = singular(rows, n, matching(rows, n))
    assert over == (sorted(out), sorted({v for i in out for v in rows[i]}))
    assert under == ([i for i, row in enumerate(rows) if free & set(row)], sorted(free))


# ---------------------------------------------------------------- blocks


def test_blocks_of_a_known_system():
    # 1 and 3 hold two variables together, 0 needs them, 2 needs nothing
    rows = [[0, 1], [1, 3, 2], [2], [1, 3]]
    assert blocks(rows, [0, 1, 2, 3]) == [[2], [1, 3], [0]]


def test_blocks_keep_an_order_that_is_good():
    assert blocks([[0], [0, 1], [2], [1, 3]], [0, 1, 2, 3]) == [[0], [1], [2], [3]]


def test_blocks_take_what_no_equation_is_matched_to_as_known():
    assert blocks([[5, 0, 1], [1, 7]], [0, 1]) == [[1], [0]]
    assert blocks([[0, 1], [0], [1]], [-1, 0, 1]) == [[1], [2], [0]]
    assert blocks([], []) == []


def test_blocks_refuse_a_match_of_another_length():
    with pytest.raises(ValueError, match=r"one entry for each of 2 equations, got shape \(1,\)"):
        blocks([[0], [1]], [0])


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_are_triangular_irreducible_and_in_order(seed):
    rng, n = np.random.default_rng(seed), 9
    match = rng.permutation(n)
    rows = [sorted({match[i], *row}) for i, row in enumerate(random_rows(seed, n, n, 2))]
    out = blocks(rows, match)
    assert sorted(itertools.chain(*out)) == list(range(n))
    # needs[i, k]: equation i needs the variable of k, through any number of equations
    needs = np.array([[match[k] in row for k in range(n)] for row in rows])
    for _ in range(n):
        needs = needs | (needs @ needs)
    together = needs & needs.T
    place = np.empty(n, int)
    for b, block in enumerate(out):
        place[block] = b
        assert block == np.flatnonzero(together[block[0]]).tolist()
    assert (place[:, None] >= place)[needs].all()
    for b, block in enumerate(out):  # none of the later ones that were ready has a smaller first equation
        ready = [
            other for other in out[b:] if (place[needs[other[0]]] < b).sum() == (~together & needs)[other[0]].sum()
        ]
        assert block == min(ready)


# ---------------------------------------------------------------- the structural index

PENDULUM = [{0: 2, 2: 0}, {1: 2, 2: 0}, {0: 0, 1: 0}]  # x'' = l x, y'' = l y - g, x^2 + y^2 = 1
CHAIN = [{0: 2, 4: 0, 5: 0, 2: 0}, {1: 2, 4: 0, 5: 0, 3: 0}, {2: 2, 5: 0, 0: 0}, {3: 2, 5: 0, 1: 0}]
CHAIN += [{0: 0, 1: 0}, {0: 0, 1: 0, 2: 0, 3: 0}]  # two links: x1, y1, x2, y2, l1, l2

EXAMPLES = {
    "ODE": ([{0: 1, 1: 0}, {1: 1, 0: 0}], [0, 0], [1, 1]),
    "index 1": ([{0: 1, 1: 0}, {0: 0, 1: 0}], [0, 0], [1, 0]),
    "pendulum, index 3": (PENDULUM, [0, 0, 2], [2, 2, 0]),
    "pendulum of first order": (
        [{0: 1, 2: 0}, {1: 1, 3: 0}, {2: 1, 4: 0, 0: 0}, {3: 1, 4: 0, 1: 0}, {0: 0, 1: 0}],
        [1, 1, 0, 0, 2],
        [2, 2, 1, 1, 0],
    ),
    "two links": (CHAIN, [0, 0, 0, 0, 2, 2], [2, 2, 2, 2, 0, 0]),
    # a capacitor across a source: v = V(t), C v' = i, i + j = 0
    "circuit of index 2": ([{0: 0}, {0: 1, 1: 0}, {1: 0, 2: 0}], [1, 0, 0], [1, 0, 0]),
    # the length of a second pendulum (u, v, m) depends on the force in the first (x, y, l): index 5
    "two pendula": (
        [*PENDULUM, {3: 2, 5: 0}, {4: 2, 5: 0}, {3: 0, 4: 0, 2: 0}],
        [2, 2, 4, 0, 0, 2],
        [4, 4, 2, 2, 2, 0],
    ),
    "integrators backwards": ([{0: 0}, {0: 1, 1: 0}, {1: 1, 2: 0}, {2: 1, 3: 0}], [3, 2, 1, 0], [3, 2, 1, 0]),
    "nothing": ([], [], []),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_offsets_of_known_systems(name):
    signature, c, d = EXAMPLES[name]
    got = offsets(signature, len(d))
    assert got[0].tolist() == c and got[1].tolist() == d
    assert sorted(got[2].tolist()) == list(range(len(d)))


def signature_of(seed, n):
    rng = np.random.default_rng(seed)
    base = rng.permutation(n).tolist()
    rows = random_rows(seed, n, n, 2)
    return [{v: int(rng.integers(3)) for v in {base[i], *rows[i]}} for i in range(n)]


@pytest.mark.parametrize("seed", SEEDS)
def test_offsets_are_the_smallest(seed):
    n = 2 + seed % 3
    signature = signature_of(seed, n)
    c, d, match = offsets(signature, n)
    for i, row in enumerate(signature):
        assert all(d[v] - c[i] >= s for v, s in row.items())
        assert d[match[i]] - c[i] == row[match[i]]
    transversals = [match for match in matchings([list(row) for row in signature]) if -1 not in match]
    assert tuple(match.tolist()) in transversals
    highest = lambda c, v: max(c[i] + row[v] for i, row in enumerate(signature) if v in row)
    for other in itertools.product(range(c.max() + 2), repeat=n):
        e = [highest(other, v) for v in range(n)]
        fits = [all(e[m[i]] - other[i] == row[m[i]] for i, row in enumerate(signature)) for m in transversals]
        if any(fits):
            assert (c <= other).all() and (d <= e).all()


def test_offsets_need_few_rounds(monkeypatch):
    """One matching of the whole and max(c) + 1 others, whatever the number of equations."""
    calls, plain = [], structure._maximum
    monkeypatch.setattr(structure, "_maximum", lambda graph: calls.append(0) or plain(graph))
    n = LARGE // 3
    signature = []
    for k in range(n):  # a chain of pendula, each hanging from the one before
        above = {3 * k - 3: 0, 3 * k - 2: 0} if k else {}
        below = {3 * k + 5: 0} if k < n - 1 else {}
        signature += [{3 * k: 2, 3 * k + 2: 0} | below, {3 * k + 1: 2, 3 * k + 2: 0} | below]
        signature += [{3 * k: 0, 3 * k + 1: 0} | above]
    c, d, _ = offsets(signature, 3 * n)
    assert c.tolist() == [0, 0, 2] * n and d.tolist() == [2, 2, 0] * n
    assert len(calls) <= 4
    assert len(dummies(signature, c, d, np.zeros(3 * n))) == 2 * n


def test_offsets_say_what_is_singular():
    # x' = x twice and nothing for z
    with pytest.raises(StructuralSingularity, match=r"3 equations do not determine 3 variables") as caught:
        offsets([{0: 1}, {0: 0}, {1: 1, 0: 0}], 3)
    assert caught.value.singular == (([0, 1], [0]), ([], [2]))
    assert "too many equations [0, 1] for variables [0], too few equations [] for variables [2]" in str(caught.value)
    with pytest.raises(StructuralSingularity) as caught:  # one equation for two
        offsets([{0: 1, 1: 0}], 2)
    assert caught.value.singular == (([], []), ([0], [0, 1]))
    with pytest.raises(StructuralSingularity) as caught:  # two for one
        offsets([{0: 1}, {0: 0}], 1)
    assert caught.value.singular == (([0, 1], [0]), ([], []))


def test_offsets_shorten_long_lists():
    with pytest.raises(StructuralSingularity, match=r"\[0, 1, 2, 3, 4, 5, 6, 7, \.\.\] for variables \[0\]"):
        offsets([{0: 0}] * 20, 20)


def test_offsets_refuse_a_negative_order():
    with pytest.raises(ValueError, match="equation 1 has derivative -1 of variable 0"):
        offsets([{1: 0}, {0: -1}], 2)


# ---------------------------------------------------------------- dummy derivatives


@pytest.mark.parametrize(("priority", "chosen"), [([1, 0, 0], 1), ([0, 1, 0], 0), ([0, 0, 0], 1), ([0, 0, 9], 1)])
def test_dummies_of_the_pendulum(priority, chosen):
    c, d, _ = offsets(PENDULUM, 3)
    assert dummies(PENDULUM, c, d, priority) == {(chosen, 2), (chosen, 1)}


def test_dummies_of_two_links():
    c, d, _ = offsets(CHAIN, 6)
    both = lambda *variables: {(v, k) for v in variables for k in (1, 2)}
    assert dummies(CHAIN, c, d, [1, 0, 1, 0, 0, 0]) == both(1, 3)
    assert dummies(CHAIN, c, d, [0, 0, 1, 1, 0, 0]) == both(0, 1)
    assert dummies(CHAIN, c, d, [1, 1, 0, 0, 0, 0]) == both(1, 3)  # the first link must give one of its own


def test_dummies_of_systems_without_states():
    signature, c, d = EXAMPLES["integrators backwards"]
    assert dummies(signature, c, d, [0] * 4) == {(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (2, 1)}
    assert dummies(*EXAMPLES["ODE"], [0, 0]) == set()
    assert dummies([], [], [], []) == set()


def test_dummies_of_the_pendulum_by_weights():
    c, d, _ = offsets(PENDULUM, 3)
    at = lambda x, y: {(2, 0): 2 * x, (2, 1): 2 * y}
    both = lambda v: {(v, 1), (v, 2)}
    assert dummies(PENDULUM, c, d, [0, 0, 0], at(0.6, -0.8)) == both(1)
    assert dummies(PENDULUM, c, d, [0, 0, 0], at(-0.8, 0.6)) == both(0)
    assert dummies(PENDULUM, c, d, [0, 0, 0], at(np.cos(np.pi / 4), np.sin(np.pi / 4))) == both(1)
    assert dummies(PENDULUM, c, d, [0, 0, 0], at(np.sin(np.pi / 4), np.cos(np.pi / 4))) == both(1)
    assert dummies(PENDULUM, c, d, [0, 1, 0], at(0.6, 0.8)) == both(0)  # priority comes first
    assert dummies(PENDULUM, c, d, [0, 1, 0], at(np.cos(np.pi / 2), 1.0)) == both(1)  # but not where it is singular
    assert dummies(PENDULUM, c, d, [1, 0, 0], {(2, 0): 1.0}) == both(0)


def test_dummies_refuse_what_cannot_be():
    c, d, _ = offsets(PENDULUM, 3)
    with pytest.raises(StructuralSingularity, match=r"equations \[2\], differentiated") as caught:
        dummies(PENDULUM, c, d, [0, 0, 0], {(2, 0): 0.0, (2, 1): 0.0})
    assert caught.value.singular.over == ([2], [])
    with pytest.raises(ValueError, match="weights of equation 2 must be finite"):
        dummies(PENDULUM, c, d, [0, 0, 0], {(2, 0): np.nan, (2, 1): 1.0})
    with pytest.raises(ValueError, match=r"got \(3,\), \(3,\) and \(2,\)"):
        dummies(PENDULUM, c, d, [0, 0])


def test_dummies_name_the_equations_that_share_too_few_variables():
    c, d, _ = offsets(CHAIN, 6)
    with pytest.raises(StructuralSingularity) as caught:
        dummies(CHAIN, c, d, [0] * 6, {(4, 0): 1.0, (5, 0): 3.0})
    assert caught.value.singular.over == ([4, 5], [0])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_dummies_are_the_best_at_each_level(seed, weighted):
    rng, n = np.random.default_rng(seed), 5
    signature = [{v: s % 2 * 2 for v, s in row.items()} | {seed % n: 0} for row in signature_of(seed + 100, n)]
    c, d, _ = offsets(signature, n)
    priority = rng.integers(2, size=n)
    size = {(i, v): float(rng.uniform(0.1, 9)) for i in range(n) for v in range(n)}
    chosen = dummies(signature, c, d, priority, size if weighted else None)
    assert len(chosen) == c.sum()
    before = set(range(n))
    for level in range(1, c.max() + 1):
        rows = [[v for v in row if v in before and d[v] - c[i] == row[v]] for i, row in enumerate(signature)]
        rows = {i: row for i, row in enumerate(rows) if c[i] >= level}
        every = [m for m in matchings(list(rows.values())) if -1 not in m]
        here = {v for v in before if (v, d[v] - level + 1) in chosen}
        lowest = lambda variables: sorted(priority[v] for v in variables)
        ties = lambda variables: sorted((priority[v], -v) for v in variables)
        product = lambda m: np.prod([size[i, v] for i, v in zip(rows, m, strict=True)])
        if weighted:
            best = max((m for m in every if lowest(m) == min(map(lowest, every))), key=product)
        else:
            best = min(every, key=ties)
        assert here == set(best)
        before = here
    assert chosen == {(v, k) for v, k in chosen if 1 <= k <= d[v]}


# ---------------------------------------------------------------- tearing


def assert_tearing(rows, solvable, out):
    """Every equation and every variable once, and each step needs only what is known."""
    assert sorted([i for i, _ in out.order] + out.residuals) == list(range(len(rows)))
    assert sorted([v for _, v in out.order] + out.tears) == sorted(set(itertools.chain(*rows)))
    known = set(out.tears)
    for i, v in out.order:
        assert v in solvable[i] and set(rows[i]) - known == {v}
        known.add(v)


def fewest_tears(rows, solvable):
    n = len(rows)
    for k in range(n + 1):
        for tears, residuals in itertools.product(itertools.combinations(range(n), k), repeat=2):
            known, left = set(tears), set(range(n)) - set(residuals)
            while step := [(i, v) for i in left for v in set(rows[i]) - known if set(rows[i]) - known == {v}]:
                step = [(i, v) for i, v in step if v in solvable[i]]
                if not step:
                    break
                left.discard(step[0][0])
                known.add(step[0][1])
            if not left:
                return k
    raise AssertionError


def test_tear_of_one_equation():
    assert tear([[7]], [[7]]) == ([(0, 7)], [], [])
    assert tear([[7]], [[]]) == ([], [7], [0])
    assert tear([], []) == ([], [], [])


def test_tear_of_a_circle():
    rows = [[10, 20], [20, 30], [30, 10]]
    assert tear(rows, rows) == ([(0, 20), (2, 30)], [10], [1])  # from both sides
    # solvable the other way round, and one that is not at all
    assert tear(rows, [[10], [20], [30]]) == ([(2, 30), (1, 20)], [10], [0])
    assert tear(rows, [[20], [], [10]]) == ([(2, 10), (0, 20)], [30], [1])


def test_tear_puts_last_what_nothing_else_needs():
    # 3 occurs in equation 0 only, which is then not used up for another variable
    rows = [[0, 1, 2, 3], [0, 1], [1, 2], [0, 2]]
    out = tear(rows, rows)
    assert_tearing(rows, rows, out)
    assert out.order[-1] == (0, 3) and len(out.tears) == 1


def test_tear_of_a_grid_needs_one_side():
    side = 30
    near = lambda x, y: [(x, y), (x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)]
    inside = lambda points: [side * x + y for x, y in points if 0 <= x < side and 0 <= y < side]
    rows = [inside(near(x, y)) for x in range(side) for y in range(side)]
    out = tear(rows, rows)
    assert_tearing(rows, rows, out)
    assert len(out.tears) == side


@pytest.mark.parametrize("seed", SEEDS)
def test_tear_is_right_and_near_the_fewest(seed):
    rng, n = np.random.default_rng(seed), 4 + seed % 2
    rows = [sorted({i, (i + 1) % n, *row}) for i, row in enumerate(random_rows(seed, n, n, 2))]
    solvable = [[v for v in row if rng.random() < 0.7] for row in rows]
    out = tear(rows, solvable)
    assert_tearing(rows, solvable, out)
    assert len(out.tears) - fewest_tears(rows, solvable) in (0, 1)


def test_tear_refuses_what_is_no_block():
    with pytest.raises(ValueError, match="a block of 2 equations has 3 variables"):
        tear([[0, 1], [1, 2]], [[0], [1]])
    with pytest.raises(ValueError, match=r"equation 1 is solvable for \[0\], which do not occur in it"):
        tear([[0, 1], [1]], [[0], [0]])
    with pytest.raises(ValueError, match="and 1 entries solvable"):
        tear([[0, 1], [1]], [[0]])


# ---------------------------------------------------------------- large systems


def test_long_chains():
    rows = [[i, i + 1] for i in range(LARGE - 1)] + [[LARGE - 1]]
    match = matching(rows, LARGE)
    assert match.tolist() == list(range(LARGE))
    assert blocks(rows, match) == [[i] for i in range(LARGE - 1, -1, -1)]
    c, d, _ = offsets([{i: 1, (i + 1) % LARGE: 0} for i in range(LARGE)], LARGE)
    assert not c.any() and (d == 1).all()
    # one variable more than equations: any can be left out, the one of lowest priority is
    wide = [[i, i + 1] for i in range(LARGE)]
    match = matching(wide, LARGE + 1, -np.abs(np.arange(LARGE + 1) - 7.0))
    assert set(range(LARGE + 1)) - set(match.tolist()) == {LARGE}
    match = matching(wide, LARGE + 1, np.abs(np.arange(LARGE + 1) - 7.0))
    assert set(range(LARGE + 1)) - set(match.tolist()) == {7}
    assert singular(wide, LARGE + 1, match).under == (list(range(LARGE)), list(range(LARGE + 1)))


def test_tear_looks_at_each_entry_few_times(monkeypatch):
    """One variable that occurs everywhere does not make the work quadratic."""
    calls, plain = [], tearing._Peeling.key
    monkeypatch.setattr(tearing._Peeling, "key", lambda self, v: calls.append(0) or plain(self, v))
    n = LARGE // 5
    rows = [[0, 1]] + [sorted({0, i, (i + 1) % n}) for i in range(1, n)]
    out = tear(rows, rows)
    assert_tearing(rows, rows, out)
    assert len(out.tears) == 1
    assert len(calls) < 10 * sum(map(len, rows))
