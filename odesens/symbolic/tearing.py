"""How to solve a block of equations by iterating on few of its variables.

Owns: the choice of tearing variables. Must not know: expressions, names, JAX, the rest of the system.
Sources: F. Cellier, E. Kofman, Continuous System Simulation (2006), chapter 7; E. Carpanzano, Order reduction of
general nonlinear DAE systems by automatic tearing, Math. Comput. Model. Dyn. Syst. 6 (2000).
"""

import heapq
from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple


class Tearing(NamedTuple):
    """A block solved for a few variables: with those known, each equation of `order` gives one more variable.

    order : (equation, variable) in the order of their evaluation
    tears : the variables to iterate on
    residuals : the equations that must then hold, as many as there are tears
    """

    order: list[tuple[int, int]]
    tears: list[int]
    residuals: list[int]


def tear(rows: Sequence[Collection[int]], solvable: Sequence[Collection[int]]) -> Tearing:
    """Few variables of a block with which known the others follow one by one.

    An equation with one variable left gives it; a variable left in one equation is given by it, after all others.
    Where neither is left, the variable that frees most equations is torn, of equal ones that in most equations, then
    the first. The result is not always of fewest tears (finding that is NP-hard).

    Parameters
    ----------
    rows : the variables of each equation of the block, and no others; as many variables as equations
    solvable : the variables that each equation can be solved for explicitly

    Returns
    -------
    with equations numbered as in `rows`

    Raises
    ------
    ValueError : equations and variables differ in number; solvable for a variable that does not occur
    """
    names = sorted(set().union(*rows))
    n = len(rows)
    if len(names) != n or len(solvable) != n:
        raise ValueError(f"a block of {n} equations has {len(names)} variables, and {len(solvable)} entries solvable")
    number = {v: n + k for k, v in enumerate(names)}
    # equations are nodes 0 .. n - 1 and variables n .. 2n - 1: what holds for one kind holds for the other
    near, explicit = [set() for _ in range(2 * n)], [set() for _ in range(2 * n)]
    for i, (row, may) in enumerate(zip(rows, solvable, strict=True)):
        if not set(may) <= set(row):
            raise ValueError(f"equation {i} is solvable for {sorted(set(may) - set(row))}, which do not occur in it")
        for links, variables in ((near, row), (explicit, may)):
            links[i] = {number[v] for v in variables}
            for v in links[i]:
                links[v].add(i)
    first, last, tears, residuals = _Peeling(near, explicit).run()
    order = [(i, names[v - n]) for i, v in first + last[::-1]]
    return Tearing(order, sorted(names[v - n] for v in tears), sorted(residuals))


class _Peeling:
    """The graph of a block from which nodes are taken until none is left."""

    def __init__(self, near: list[set[int]], explicit: list[set[int]]):
        self.near, self.explicit, self.n = near, explicit, len(near) // 2
        self.left = [True] * len(near)
        self.agenda = deque(range(len(near)))  # nodes whose neighbours have changed
        self.frees = [0] * len(near)  # equations in which a variable, once known, leaves one to solve for
        self.queued = [self.key(v) for v in range(len(near))]  # the entry of the heap that counts
        self.heap = self.queued[self.n :]
        heapq.heapify(self.heap)
        for i in range(self.n):
            self.count(i, 1)

    def run(self):
        first, last, tears, residuals = [], [], [], []
        while True:
            while self.agenda:
                node = self.agenda.popleft()
                if not self.left[node]:
                    continue
                if not self.explicit[node]:
                    (residuals if node < self.n else tears).append(node)
                    self.take(node)
                elif len(self.near[node]) == 1:
                    (other,) = self.near[node]
                    (first if node < self.n else last).append((min(node, other), max(node, other)))
                    self.take(node)
                    self.take(other)
            v = self.best()
            if v is None:
                return first, last, tears, residuals
            tears.append(v)
            self.take(v)

    def take(self, node: int) -> None:
        self.left[node] = False
        if node < self.n:
            self.count(node, -1)
        for other in sorted(self.near[node]):
            if other < self.n:
                self.count(other, -1)
            self.near[other].discard(node)
            self.explicit[other].discard(node)
            if other < self.n:
                self.count(other, 1)
            self.agenda.append(other)
        self.near[node] = self.explicit[node] = set()

    def count(self, equation: int, sign: int) -> None:
        if len(self.near[equation]) == 2:
            a, b = self.near[equation]
            for v, other in ((a, b), (b, a)):
                if other in self.explicit[equation]:
                    self.frees[v] += sign
                    if self.key(v) < self.queued[v]:
                        self.queue(v)

    def key(self, v: int) -> tuple[int, int, int]:
        return -self.frees[v], -len(self.near[v]), v

    def queue(self, v: int) -> None:
        self.queued[v] = self.key(v)
        heapq.heappush(self.heap, self.queued[v])

    def best(self) -> int | None:
        while self.heap:
            key = heapq.heappop(self.heap)
            v = key[2]
            if self.left[v] and key == self.queued[v]:
                if key == self.key(v):
                    return v
                self.queue(v)  # it was better once
        return None
