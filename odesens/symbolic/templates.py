"""Finding repeated shapes: many expressions as few programs, each for all of its instances at once.

What several expressions use becomes a value of its own. Each value has a template: its tree with the leaves (entries of
pools, other values, numbers) left out. Values of one template and level (how many values lie below them) are one group,
evaluated as one vectorised expression.

Templates are cut where that pays. Sums of more than `LONGEST` terms, and all sums in templates beyond the `BUDGET` of
operations, become linear combinations: their terms are values, with groups of their own, and sums of about the same
width are one group whatever their terms are. The budget goes to the templates with most instances, and those that read
nothing but slices do not draw on it. So random networks need few operations, while regular systems stay whole.

Owns: what becomes a value, templates, groups, the order of instances and of arguments. Must not know:
how they are evaluated, systems.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .access import segments

LONGEST = 16  # terms that a sum has within a template
BUDGET = 200  # operations of templates with sums that may be cut
FEW = 4  # fewer instances than this are evaluated one by one
CHEAP = 2  # what costs less is worked out again by each user
CONSTANTS = -1  # the source of numbers: `Plan.constants`, the first of which is zero

Source = str | int  # the name of a pool, or the number of a group


@dataclass(frozen=True, eq=False)
class Group:
    """The instances of one template.

    Attributes
    ----------
    program : instructions of a stack machine, in the order of evaluation: ("leaf",), ("number",),
        ("add", number of terms, whether there is a constant), ("mul", exponents; None for one among the numbers),
        ("power",), ("call", name, number of arguments)
    leaves : for each "leaf" its source, and the positions (size,) in it
    numbers : for each number of the program its values (size,): of "number" itself; coefficients, then the constant, of
        "add"; the exponents that "mul" has as None
    size : how many instances
    """

    program: tuple[tuple, ...]
    leaves: tuple[tuple[Source, np.ndarray], ...]
    numbers: tuple[np.ndarray, ...]
    size: int


@dataclass(frozen=True, eq=False)
class Places:
    """Where values are, in an array of any shape: each one's source, as its place in `sources`, and position there."""

    sources: tuple[Source, ...]
    which: np.ndarray
    positions: np.ndarray


@dataclass(frozen=True, eq=False)
class Combination:
    """Linear combinations of values: constants + sum over terms of coefs * values.

    Attributes
    ----------
    terms : the places (width, size) of the terms of each, with `CONSTANTS` zero where there are fewer
    coefs : (width, size), zero there
    constants : (size,)
    """

    terms: Places
    coefs: np.ndarray
    constants: np.ndarray

    @property
    def size(self) -> int:
        return len(self.constants)


@dataclass(frozen=True, eq=False)
class Plan:
    """Groups in an order of evaluation (a group's number is its place), the places of the roots, numbers among them."""

    groups: tuple[Group | Combination, ...]
    roots: Places
    constants: np.ndarray
    functions: frozenset[str]


def plan(nodes: Sequence[tuple], roots: Sequence[int], where: Mapping[int, tuple[str, int | None]]) -> Plan:
    """Groups for the expressions `roots` over a graph of nodes, each made of nodes with smaller numbers only."""
    graph = _Graph(nodes, roots, where)
    groups, members, place = graph.groups()
    while rare := graph.rare(groups, members):
        for n in rare:
            graph.cut_at(n)
        groups, members, place = graph.groups()
    numbers = {r: nodes[r][1] for r in roots if nodes[r][0] == "number"}
    constants = list(numbers)
    place |= {r: (CONSTANTS, i) for i, r in enumerate(constants, start=1)}
    return Plan(tuple(groups), _places([place[r] for r in roots]), _array([0, *numbers.values()]), graph.functions)


def arguments(kind: tuple) -> Sequence[int]:
    """The nodes that a node is made of."""
    match kind[0]:
        case "add":
            return [n for n, _ in kind[2]]
        case "mul":
            return [n for n, _ in kind[1]]
        case "power":
            return kind[1:]
        case "call":
            return kind[2]
    return ()


def special(exponent) -> bool:
    """Whether an exponent is part of a template: those with an operation of their own."""
    if isinstance(exponent, complex):
        return False
    return abs(exponent) == 0.5 or (exponent == math.floor(exponent) and abs(exponent) <= 1024)


class _Graph:
    """The nodes below the roots, with what is a value and what is cut, which only grow."""

    def __init__(self, nodes, roots, where):
        self.nodes, self.where = nodes, where
        seen, pending = set(), list(roots)
        while pending:
            node = pending.pop()
            if node not in seen:
                seen.add(node)
                pending += arguments(nodes[node])
        self.order = sorted(seen)
        self.below = {n: arguments(nodes[n]) for n in self.order}
        powers = lambda kind: tuple(e if e == 1 or special(e) else math.inf for _, e in kind[1])
        self.powers = {n: powers(nodes[n]) for n in self.order if nodes[n][0] == "mul"}
        missing = [n for n in self.order if nodes[n][0] in ("unknown", "parameter", "time") and n not in where]
        if missing:
            names = ", ".join(str(nodes[n]) for n in missing[:5])
            raise ValueError(f"{len(missing)} leaves have no place in a pool: {names}; add them to `where`")
        calls = {nodes[n][1] for n in self.order if nodes[n][0] == "call"}
        self.functions = frozenset(c.removeprefix("user:").split("@")[0] for c in calls if c.startswith("user:"))
        self.keys: dict[tuple, int] = {}
        self.cut: set[int] = set()
        self.values: set[int] = {r for r in roots if self.is_compound(r)}
        self._share()
        for n in self.order:
            if nodes[n][0] == "add" and len(nodes[n][2]) > LONGEST:
                self.cut_at(n)

    def is_compound(self, n: int) -> bool:
        return n not in self.where and self.nodes[n][0] != "number"

    def _share(self):
        """What is used more than once and is not cheap becomes a value."""
        uses = Counter(c for n in self.order for c in self.below[n])
        cost = {}
        for n in self.order:
            if not self.is_compound(n):
                cost[n] = 0
                continue
            own = {"call": 4, "power": 8}.get(self.nodes[n][0]) or max(1, len(self.below[n]) - 1)
            cost[n] = own + sum(0 if c in self.values else cost[c] for c in self.below[n])
            if uses[n] > 1 and cost[n] >= CHEAP:
                self.values.add(n)

    def cut_at(self, n: int):
        """Make a sum a linear combination of values."""
        self.cut.add(n)
        self.values.add(n)
        self.values.update(c for c in self.below[n] if self.is_compound(c))

    def _intern(self, key: tuple) -> int:
        return self.keys.setdefault(key, len(self.keys))

    # ------------------------------------------------------------ templates

    def _templates(self):
        """For each node its level, shape, and what it costs: operations, leaves included."""
        nodes, where, values, intern = self.nodes, self.where, self.values, self._intern
        level, shape, ops = {}, {}, {}
        outside: dict[int, int] = {}  # the shape that users of a node see
        for n in self.order:
            kind, below = nodes[n], self.below[n]
            level[n] = max((level[c] + (c in values) for c in below), default=0)
            ops[n] = 1 + sum(1 if c in values else ops[c] for c in below)
            if n in where:
                key = ("leaf", where[n][0])
            elif n in self.cut:
                key = ("combination", (len(below) - 1).bit_length())
            elif kind[0] == "number":
                key = ("number",)
            elif kind[0] == "add":
                ops[n] += len(below) - 1
                key = ("add", kind[1] != 0, *sorted(outside[c] for c in below))
            elif kind[0] == "mul":
                ops[n] += len(below) - 1
                key = ("mul", *sorted(zip([outside[c] for c in below], self.powers[n], strict=True)))
            elif kind[0] == "power":
                key = ("power", *(outside[c] for c in below))
            else:
                key = ("call", kind[1], *(outside[c] for c in below))
            shape[n] = intern(key)
            outside[n] = intern(("value", level[n], shape[n])) if n in values else shape[n]
        self.level, self.shape, self.ops, self.outside = level, shape, ops, outside

    def rare(self, groups: list, members: list[list[int]]) -> list[int]:
        """The sums in templates that are beyond the budget, which those that read slices do not draw on."""
        spent, out = 0, []
        for i in sorted(range(len(groups)), key=lambda i: -groups[i].size):
            group, first = groups[i], members[i][0]
            if isinstance(group, Group) and self._sums(first) and not _regular(group):
                spent += self.ops[first] * (group.size if group.size < FEW else 1)
                if spent > BUDGET:
                    out += [s for n in members[i] for s in self._sums(n)]
        return out

    def _sums(self, value: int) -> list[int]:
        """The sums of more than one term in the tree of a value."""
        out, pending = [], [value]
        while pending:
            n = pending.pop()
            if self.nodes[n][0] == "add" and (len(self.below[n]) > 1):
                out.append(n)
            pending += [c for c in self.below[n] if c not in self.values]
        return out

    # ------------------------------------------------------------ groups

    def groups(self) -> tuple[list, list[list[int]], dict[int, tuple[Source, int]]]:
        """The groups, level by level, the nodes that they give, and where each leaf and each value is."""
        self._templates()
        self.place: dict[int, tuple[Source, int]] = {n: (p, i or 0) for n, (p, i) in self.where.items()}
        self.positions: dict[int, tuple] = {}  # of the leaves of a tree, in the order of its program
        self.seen: dict[int, tuple] = {
            n: (i,) for n, (_, i) in self.place.items()
        }  # the same, as a node's users see it
        self.numbers: dict[int, tuple] = {}
        self.arranged: dict[int, Sequence[int]] = {}
        by_coefficient = self._where_coefficients_repeat()
        levels: dict[int, list[int]] = {}
        for n in self.order:
            levels.setdefault(self.level[n], []).append(n)
        out, nodes = [], []
        for _, level in sorted(levels.items()):
            members: dict[int, list[int]] = {}
            for n in level:
                if self.nodes[n][0] == "number":
                    self.seen[n], self.numbers[n] = (), (self.nodes[n][1],)
                if self.is_compound(n) and n not in self.cut:
                    self._arrange(n, self.shape[n] in by_coefficient)
                if n in self.values:
                    members.setdefault(self.shape[n], []).append(n)
            for same in members.values():
                if same[0] not in self.cut:
                    same.sort(key=self.positions.__getitem__)
                self.place.update((n, (len(out), i)) for i, n in enumerate(same))
                self.seen.update((n, (i,)) for i, n in enumerate(same))
                out.append(self._combination(same) if same[0] in self.cut else self._group(same))
                nodes.append(same)
        return out, nodes, self.place

    def _where_coefficients_repeat(self) -> set[int]:
        """The shapes of sums whose terms are ordered by coefficients before positions: those where they recur.

        Equal coefficients in one place stay literal; where they differ at random, their order would scramble the
        positions, which are slices if they are left in order.
        """
        kinds: dict[int, set] = {}
        count: Counter = Counter()
        for n in self.order:
            if self.nodes[n][0] == "add" and n not in self.cut:
                coefs = tuple(sorted((self.outside[c], _real(k)) for c, k in self.nodes[n][2]))
                kinds.setdefault(self.shape[n], set()).add(coefs)
                count[self.shape[n]] += 1
        return {s for s, k in kinds.items() if len(k) <= max(1, count[s] // 8)}

    def _arrange(self, n: int, by_coefficient: bool):
        """Put a node's arguments in the order of its template: by shape, then so that instances line up."""
        kind, below = self.nodes[n], self.below[n]
        outside, seen = self.outside, self.seen
        own: list = []
        if kind[0] == "add":
            if by_coefficient:
                terms = sorted(kind[2], key=lambda term: (outside[term[0]], _real(term[1]), seen[term[0]]))
            else:
                terms = sorted(kind[2], key=lambda term: (outside[term[0]], seen[term[0]]))
            below = [c for c, _ in terms]
            own = [k for _, k in terms] + ([kind[1]] if kind[1] != 0 else [])
        elif kind[0] == "mul":
            factors = zip([outside[c] for c in below], self.powers[n], [seen[c] for c in below], kind[1], strict=True)
            factors = [factor for *_, factor in sorted(factors)]
            below = [c for c, _ in factors]
            if math.inf in self.powers[n]:
                own = [e for _, e in factors if not special(e)]
        self.arranged[n] = below
        self.positions[n] = self.seen[n] = tuple([i for c in below for i in seen[c]])
        if len(below) == 1 and not own:  # as it is, so that a deep nest of functions takes no more than its leaves
            self.positions[n] = self.seen[n] = seen[below[0]]
        numbers = self.numbers
        self.numbers[n] = tuple([x for c in below if c in numbers and c not in self.place for x in numbers[c]] + own)

    def _group(self, members: list[int]) -> Group:
        program, sources = self._program(members[0])
        positions = np.array([self.positions[n] for n in members], dtype=np.int64).reshape(len(members), -1)
        numbers = [_array(column) for column in zip(*(self.numbers[n] for n in members), strict=True)]
        leaves = tuple(zip(sources, positions.T, strict=True))
        return Group(program, leaves, tuple(numbers), len(members))

    def _program(self, value: int) -> tuple[tuple, list[Source]]:
        """The instructions of a value's template, and the sources of its leaves."""
        program: list[tuple] = []
        sources: list[Source] = []
        pending = [(value, False)]
        while pending:
            n, ready = pending.pop()
            kind = self.nodes[n]
            if n in self.place and n != value:
                program.append(("leaf",))
                sources.append(self.place[n][0])
            elif kind[0] == "number":
                program.append(("number",))
            elif not ready:
                pending.append((n, True))
                pending += [(c, False) for c in reversed(self.arranged[n])]
            elif kind[0] == "add":
                program.append(("add", len(kind[2]), kind[1] != 0))
            elif kind[0] == "mul":
                powers = dict(kind[1])
                program.append(("mul", tuple(powers[c] if special(powers[c]) else None for c in self.arranged[n])))
            elif kind[0] == "power":
                program.append(("power",))
            else:
                program.append(("call", kind[1], len(kind[2])))
        return tuple(program), sources

    def _combination(self, members: list[int]) -> Combination:
        width = max(len(self.below[n]) for n in members)
        places, coefs = [], []
        for n in members:
            terms = sorted(((self.place[c], k) for c, k in self.nodes[n][2]), key=lambda x: (str(x[0][0]), x[0][1]))
            pad = width - len(terms)
            places += [place for place, _ in terms] + [(CONSTANTS, 0)] * pad
            coefs.append([k for _, k in terms] + [0] * pad)
        flat = _places(places)
        which, positions = (x.reshape(len(members), width).T for x in (flat.which, flat.positions))
        constants = _array([self.nodes[n][1] for n in members])
        return Combination(Places(flat.sources, which, positions), _array(coefs).T, constants)


def _places(places: Sequence[tuple[Source, int]]) -> Places:
    """Sources in the order of their first occurrence."""
    number: dict[Source, int] = {}
    which = [number.setdefault(source, len(number)) for source, _ in places]
    return Places(tuple(number), np.array(which, dtype=int), np.array([i for _, i in places], dtype=int))


def _regular(group: Group) -> bool:
    """Whether all that a group reads is slices."""
    return group.size >= FEW and all(segments(at) is not None for _, at in group.leaves)


def _real(x):
    return x.real if isinstance(x, complex) else x


def _array(numbers) -> np.ndarray:
    """Numbers of any kind as doubles, complex where one is."""
    array = np.array(numbers, dtype=object)
    complex_ = any(isinstance(x, complex) for x in array.flat)
    return array.astype(complex if complex_ else float)
