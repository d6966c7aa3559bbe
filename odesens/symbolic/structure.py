"""What follows from which variable occurs in which equation, and how often differentiated.

Equations and variables are integers from 0; a system is `rows`: the variables of each equation, or a `signature`: the
highest order of derivative of each variable in each equation. Every function takes time near linear in their entries.

Owns: matchings, what is structurally singular, the order of blocks, the structural index, the choice of dummy
derivatives. Must not know: expressions, names, JAX.
Sources: A. Dulmage, N. Mendelsohn, Coverings of bipartite graphs, Canad. J. Math. 10 (1958); J. Pryce, A simple
structural analysis method for DAEs, BIT 41 (2001); C. Pantelides, SIAM J. Sci. Stat. Comput. 9 (1988); S. Mattsson,
G. Soederlind, SIAM J. Sci. Comput. 14 (1993).
"""

import heapq
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse import csgraph

Rows = Sequence[Collection[int]]
Signature = Sequence[Mapping[int, int]]

NEGLIGIBLE = 1e-10  # a derivative that is smaller, against the largest of its equation, is no pivot
EQUAL = 1e-6  # sizes are equal within it, so that rounding does not decide


class Part(NamedTuple):
    """Some equations and some variables, each in ascending order."""

    equations: list[int]
    variables: list[int]


class Singular(NamedTuple):
    """Where a system has too many and where too few equations; both parts are empty in a regular system.

    over : equations, more than the variables that occur in them (which are these)
    under : variables, more than the equations in which they occur (which are these)
    """

    over: Part
    under: Part


class StructuralSingularity(ValueError):
    """A system that is singular whatever its coefficients are; `singular` says where."""

    def __init__(self, message: str, singular: Singular):
        super().__init__(message)
        self.singular = singular


# ---------------------------------------------------------------- matchings


def matching(rows: Rows, n_variables: int, priority: Sequence[float] | np.ndarray | None = None) -> np.ndarray:
    """A maximum matching of equations and variables.

    Parameters
    ----------
    rows : the variables of each equation
    priority : (n_variables,), prefers to match the variables of highest priority, of equal ones the first: the set of
        variables matched is the first, in this order, of all that a maximum matching can have

    Returns
    -------
    int, (equations,), the variable of each equation or -1

    Raises
    ------
    ValueError : a variable that is not in 0 .. n_variables - 1; a priority of another shape
    """
    graph = _incidence(rows, n_variables)
    match = _maximum(graph)
    if priority is None:
        return match
    wanted = np.asarray(priority)
    if wanted.shape != (n_variables,):
        raise ValueError(f"priority must have one entry for each of {n_variables} variables, got shape {wanted.shape}")
    return _preferring(graph, match, np.argsort(-wanted, kind="stable"))


def singular(rows: Rows, n_variables: int, match: Sequence[int] | np.ndarray) -> Singular:
    """The over-determined and the under-determined part of a system (Dulmage and Mendelsohn).

    The parts do not depend on which maximum matching is given.
    """
    graph, match = _incidence(rows, n_variables), np.asarray(match)
    over = _reached(graph, match)
    variables, equations = _reached(sp.csr_array(graph.T), _inverse(match, n_variables))
    listed = lambda mask: np.flatnonzero(mask).tolist()
    return Singular(Part(listed(over[0]), listed(over[1])), Part(listed(equations), listed(variables)))


def _incidence(rows: Rows, n_variables: int) -> Any:
    counts = np.fromiter(map(len, rows), int, len(rows))
    columns = np.fromiter(itertools.chain.from_iterable(rows), int, counts.sum())
    wrong = np.flatnonzero((columns < 0) | (columns >= n_variables))
    if wrong.size:
        i = np.repeat(np.arange(len(rows)), counts)[wrong[0]]
        raise ValueError(
            f"equation {i} has variable {columns[wrong[0]]}: variables are numbered from 0 to {n_variables - 1}"
        )
    pointers = np.concatenate([[0], np.cumsum(counts)])
    return sp.csr_array((np.ones(len(columns), np.int8), columns, pointers), shape=(len(rows), n_variables))


def _maximum(graph) -> np.ndarray:
    return csgraph.maximum_bipartite_matching(graph, perm_type="column").astype(int)


def _inverse(match: np.ndarray, n_variables: int) -> np.ndarray:
    """The equation of each variable or -1."""
    out = np.full(n_variables, -1)
    out[match[match >= 0]] = np.flatnonzero(match >= 0)
    return out


def _reached(graph, match: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which rows and columns alternating paths from the unmatched rows reach."""
    m, n = graph.shape
    free, back = np.flatnonzero(match < 0), _inverse(match, n)
    # one graph of rows, columns (numbers from m on) and a source: row -> its columns -> row that is matched
    targets = np.concatenate([graph.indices + m, back[back >= 0], free])
    counts = np.concatenate([np.diff(graph.indptr), back >= 0, [len(free)]])
    pointers = np.concatenate([[0], np.cumsum(counts)])
    whole = sp.csr_array((np.ones(len(targets), np.int8), targets, pointers), shape=(m + n + 1, m + n + 1))
    seen = np.zeros(m + n + 1, bool)
    seen[csgraph.breadth_first_order(whole, m + n, directed=True, return_predecessors=False)] = True
    return seen[:m], seen[m:-1]


def _preferring(graph, match: np.ndarray, order: np.ndarray) -> np.ndarray:
    """A maximum matching made one that takes variables in an order, each as long as those before it stay matched.

    A variable takes the place of one that comes later, found by an alternating path. The sets of variables that can be
    matched are a matroid's independent sets, so that being greedy is right.
    """
    columns: Any = sp.csc_array(graph)
    pointers, indices = columns.indptr.tolist(), columns.indices.tolist()
    taken, place = match.tolist(), _inverse(match, graph.shape[1]).tolist()
    settled, closed = [False] * len(place), set()
    for root in order.tolist():
        settled[root] = True
        queue, came = [root] if place[root] < 0 else [], {}
        for v in queue:
            if not settled[v]:
                i, place[v] = place[v], -1
                while i >= 0:
                    v = came[i]
                    taken[i], place[v], i = v, i, place[v]
                break
            for i in indices[pointers[v] : pointers[v + 1]]:
                if i not in came and i not in closed:
                    came[i] = v
                    queue.append(taken[i])
        else:  # nothing to give way here: nor will there be for a later variable
            closed.update(came)
    return np.array(taken, int)


# ---------------------------------------------------------------- blocks


def blocks(rows: Rows, match: Sequence[int] | np.ndarray) -> list[list[int]]:
    """The sets of equations that must be solved together, in an order in which each needs earlier ones only.

    A variable that no equation is matched to is known. Where the order is free, it is that of the equations.

    Returns
    -------
    the equations of each block, ascending; block triangular form with the variables match[block]

    Raises
    ------
    ValueError : not one variable or -1 for each equation
    """
    match = np.asarray(match, int)
    if match.shape != (len(rows),):
        raise ValueError(f"match must have one entry for each of {len(rows)} equations, got shape {match.shape}")
    n = 1 + max(match.max(initial=-1), max((v for row in rows for v in row), default=-1))
    graph = _incidence(rows, n)
    needs = _inverse(match, n)[graph.indices]
    user = np.repeat(np.arange(len(rows)), np.diff(graph.indptr))[needs >= 0]
    needs = needs[needs >= 0]
    shape = (len(rows), len(rows))
    uses = sp.csr_array((np.ones(len(user), np.int8), (user, needs)), shape=shape)
    parts: Any = csgraph.connected_components(uses, connection="strong")
    count, label = parts
    members: list[list[int]] = [[] for _ in range(count)]
    for i, b in enumerate(label.tolist()):
        members[b].append(i)
    edges = np.unique(np.stack([label[needs], label[user]])[:, label[needs] != label[user]], axis=1)
    users: list[list[int]] = [[] for _ in range(count)]
    waits = np.bincount(edges[1], minlength=count).tolist()
    for a, b in edges.T.tolist():
        users[a].append(b)
    ready = [(members[b][0], b) for b in range(count) if not waits[b]]
    heapq.heapify(ready)
    out = []
    while ready:
        _, b = heapq.heappop(ready)
        out.append(members[b])
        for a in users[b]:
            waits[a] -= 1
            if not waits[a]:
                heapq.heappush(ready, (members[a][0], a))
    return out


# ---------------------------------------------------------------- the structural index


def offsets(signature: Signature, n_variables: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How often each equation must be differentiated (Pryce's Sigma method; Pantelides' algorithm gives the same).

    The smallest c_i >= 0 and d_j with d_j - c_i >= sigma_ij, with equality on a transversal. They are the duals of the
    transversal of largest weight: from c = 0, the equations that are one too many for the variables of highest order
    in them are differentiated together, until these match all equations. This takes at most max(c) + 1 rounds.

    Parameters
    ----------
    signature : sigma_i, {variable: its highest order of derivative} of each equation

    Returns
    -------
    c : int, (n,), times to differentiate each equation
    d : int, (n,), highest derivative of each variable in the differentiated equations
    match : int, (n,), the variable of each equation, such that d[match] - c = sigma on it

    Raises
    ------
    StructuralSingularity : no transversal; also where equations and variables differ in number
    ValueError : a variable out of range; a negative order
    """
    graph = _incidence(signature, n_variables)
    i, j, m = np.repeat(np.arange(len(signature)), np.diff(graph.indptr)), graph.indices.copy(), len(signature)
    sigma = np.fromiter(itertools.chain.from_iterable(row.values() for row in signature), int, len(j))
    if sigma.min(initial=0) < 0:
        k = int(np.argmin(sigma))
        raise ValueError(f"equation {i[k]} has derivative {sigma[k]} of variable {j[k]}: orders are 0, 1, 2, ..")
    full = _maximum(graph)
    if m != n_variables or (full < 0).any():
        parts = singular(signature, n_variables, full)
        raise StructuralSingularity(
            f"{m} equations do not determine {n_variables} variables: too many equations {_few(parts.over.equations)} "
            f"for variables {_few(parts.over.variables)}, too few equations {_few(parts.under.equations)} "
            f"for variables {_few(parts.under.variables)}",
            parts,
        )
    c, d = np.zeros(m, int), np.zeros(m, int)
    np.maximum.at(d, j, sigma)
    while True:
        slack = d[j] - c[i] - sigma
        ones = np.ones((slack == 0).sum(), np.int8)
        tight = sp.csr_array((ones, (i[slack == 0], j[slack == 0])), shape=(m, m))
        match = _maximum(tight)
        if (match >= 0).all():
            return c, d, match
        equations, variables = _reached(tight, match)
        step = slack[equations[i] & ~variables[j]].min()
        c[equations] += step
        d[variables] += step


def _few(numbers: list[int]) -> str:
    return f"[{', '.join(map(str, numbers[:8]))}{', ..' if len(numbers) > 8 else ''}]"


def dummies(
    signature: Signature,
    c: Sequence[int] | np.ndarray,
    d: Sequence[int] | np.ndarray,
    priority: Sequence[float] | np.ndarray,
    weights: Mapping[tuple[int, int], float] | None = None,
) -> set[tuple[int, int]]:
    """Which derivatives become algebraic variables when the differentiated equations join the system.

    Level by level l = 1, 2, ..: the equations i with c_i >= l, differentiated c_i - l + 1 times, choose as many
    derivatives v_j^(d_j - l + 1) in which they are structurally regular, from level 2 on of variables chosen before.

    Parameters
    ----------
    c, d : offsets
    priority : (n_variables,); variables of lowest priority are chosen, those of high priority stay states; of equal
        ones the earlier stay
    weights : {(i, j): size of the derivative of e_i^(c_i) by v_j^(d_j)}; among choices of equal priority the one with
        the largest product along a matching is made, of those equal within rounding again the earlier stay. An entry
        that is absent, or negligible against the largest of its equation, is no candidate

    Returns
    -------
    {(variable, order)}, sum(c) many

    Raises
    ------
    StructuralSingularity : the weights leave no choice
    ValueError : arguments of other shapes; weights that are not finite
    """
    c, d, priority = np.asarray(c, int), np.asarray(d, int), np.asarray(priority)
    if c.shape != (len(signature),) or d.shape != priority.shape or d.ndim != 1:
        raise ValueError(
            f"expected c of shape ({len(signature)},) and d and priority of one entry for each variable, "
            f"got {c.shape}, {d.shape} and {priority.shape}"
        )
    # of each differentiated equation, what it may choose and how large its derivative is
    entries = {i: {j: 1.0 for j, s in signature[i].items() if d[j] - c[i] == s} for i in np.flatnonzero(c).tolist()}
    if weights is not None:
        entries = {i: _pivots(i, row, weights) for i, row in entries.items()}
    late = np.empty(len(d), int)
    late[np.lexsort((-np.arange(len(d)), priority))] = -np.arange(len(d))
    out = set()
    for level in range(1, c.max(initial=0) + 1):
        entries = {i: row for i, row in entries.items() if c[i] >= level}
        rows = list(entries.values())
        match = matching(rows, len(d), late)
        if (match < 0).any():
            excess, names = singular(rows, len(d), match).over, list(entries)
            part = Part([names[k] for k in excess.equations], excess.variables)
            raise StructuralSingularity(
                f"equations {_few(part.equations)}, differentiated, do not determine derivatives of variables "
                f"{_few(part.variables)}: these are too few that the equations depend on here",
                Singular(part, Part([], [])),
            )
        chosen = set((match if weights is None else _heaviest(rows, priority)).tolist())
        out |= {(j, int(d[j]) - level + 1) for j in chosen}
        entries = {i: {j: w for j, w in row.items() if j in chosen} for i, row in entries.items()}
    return out


def _pivots(i: int, row: Mapping[int, float], weights: Mapping[tuple[int, int], float]) -> dict[int, float]:
    sizes = {j: abs(weights.get((i, j), 0.0)) for j in row}
    if not all(np.isfinite(w) for w in sizes.values()):
        raise ValueError(f"the weights of equation {i} must be finite, got {sizes}")
    return {j: w for j, w in sizes.items() if w > NEGLIGIBLE * max(sizes.values())}


def _heaviest(rows: Sequence[Mapping[int, float]], priority: np.ndarray) -> np.ndarray:
    """The matching of all equations that has lowest priorities first, then the largest product of entries."""
    graph: Any = sp.csr_array(_incidence(rows, len(priority)), dtype=float)
    size = np.log(np.fromiter(itertools.chain.from_iterable(row.values() for row in rows), float, graph.nnz))
    ends = np.maximum.reduceat(size, graph.indptr[:-1]), np.minimum.reduceat(size, graph.indptr[:-1])
    spread = ends[0] - ends[1]
    _, rank = np.unique(priority, return_inverse=True)
    # one rank outweighs all that sizes can do; costs are positive, as a zero would be no entry
    cost = np.repeat(ends[0], np.diff(graph.indptr)) - size + (len(rows) + spread.sum()) * rank[graph.indices]
    graph.data = cost + 2 - EQUAL * graph.indices / len(priority)
    return csgraph.min_weight_full_bipartite_matching(graph)[1]
