"""Order conditions of every tableau, in exact rational arithmetic.

For each rooted tree ``t`` a formula with weights ``w`` has order ``p`` when ``sum_i w_i Phi_i(t) = 1 / gamma(t)`` for
all trees of at most ``p`` nodes (Hairer, Norsett, Wanner, Solving ODEs I, section II.2, theorem 2.13).  An interpolant
needs ``sum_i b_i(theta) Phi_i(t) = theta**|t| / gamma(t)`` (section II.6), which is tested coefficient by coefficient
in ``theta``, hence for every ``theta`` at once.

All sums run over Python integers: the coefficients of one array share a common denominator which is divided out at
the end.  This is as exact as `Fraction` and avoids its many gcds, which matters with the 486 trees of order 9.
"""

from fractions import Fraction
from functools import cache
from math import lcm

import numpy as np
import pytest

from odesens.methods.tableaus import ALL, DOP853, DP5, EULER, TSIT5, VERN9

# Largest allowed residual of an order condition, where the coefficients are not exact rationals.
TOLERANCE = {
    "Tsit5": (Fraction(1, 10**55), "irrational coefficients, stored to 60 digits"),
    "DOP853": (Fraction(1, 10**25), "published to 28-30 digits, with interpolant coefficients up to 1e3"),
    "Vern7": (Fraction(1, 10**31), "interpolant to 36 digits, with coefficients up to 1e3"),
    "Vern8": (Fraction(1, 10**33), "interpolant published to 40 digits, with coefficients up to 1e6"),
    "Vern9": (Fraction(1, 10**34), "interpolant published to 40 digits, with coefficients up to 1e4"),
}

each_tableau = pytest.mark.parametrize("tab", ALL, ids=lambda tab: tab.name)


def tolerance(tab):
    return TOLERANCE.get(tab.name, (0, "exact rationals"))[0]


@cache
def trees(order):
    """All rooted trees of `order` nodes; a tree is the sorted tuple of the subtrees below its root."""
    return tuple(_forests(order - 1, order - 1, None))


def _forests(nodes, largest, bound):
    """Tuples of trees with `nodes` nodes in all, in non-increasing (size, position) order from `bound` down."""
    if nodes == 0:
        yield ()
    for n in range(min(nodes, largest), 0, -1):
        for position, tree in enumerate(trees(n)):
            if bound is None or (n, position) <= bound:
                for rest in _forests(nodes - n, n, (n, position)):
                    yield (tree, *rest)


@cache
def size(tree):
    return 1 + sum(map(size, tree))


@cache
def gamma(tree):
    """Density: the size of the tree times the densities of its subtrees."""
    value = size(tree)
    for child in tree:
        value *= gamma(child)
    return value


def scaled(values):
    """Integers and their common denominator."""
    denominator = lcm(*(x.denominator for x in values))
    return [x.numerator * (denominator // x.denominator) for x in values], denominator


class Weights:
    """Elementary weights of the stages of one tableau: ``Phi_i(t) = phi(t)[i] / denominator**(|t| - 1)``."""

    def __init__(self, tab):
        flat = [x for row in tab.fractions("a") for x in row] or [Fraction(0)]
        ints, self.denominator = scaled(flat)
        ends = [i * (i + 1) // 2 for i in range(len(tab.c))]
        self.rows = [[(j, x) for j, x in enumerate(ints[end - i : end]) if x] for i, end in enumerate(ends)]
        self.below = {}

    def phi(self, tree):
        value = [1] * len(self.rows)
        for child in tree:
            if child not in self.below:
                inner = self.phi(child)
                self.below[child] = [sum(x * inner[j] for j, x in row) for row in self.rows]
            value = [v * w for v, w in zip(value, self.below[child], strict=True)]
        return value

    def residual(self, weights, order):
        """Largest ``|sum_i w_i Phi_i(t) - 1 / gamma(t)|`` over the trees of `order` nodes."""
        ints, denominator = scaled(weights)
        denominator *= self.denominator ** (order - 1)
        worst = Fraction(0)
        for tree in trees(order):
            total = sum(w * p for w, p in zip(ints, self.phi(tree), strict=False))
            worst = max(worst, abs(Fraction(total, denominator) - Fraction(1, gamma(tree))))
        return worst

    def dense_residual(self, b_dense, order):
        """Largest coefficient of ``sum_i b_i(theta) Phi_i(t) - theta**order / gamma(t)`` over the same trees."""
        worst = Fraction(0)
        columns = [scaled(column) for column in zip(*b_dense, strict=True)]
        for tree in trees(order):
            phi = self.phi(tree)
            for power, (ints, denominator) in enumerate(columns, start=1):
                total = sum(w * p for w, p in zip(ints, phi, strict=True))
                target = Fraction(1, gamma(tree)) if power == order else 0
                worst = max(worst, abs(Fraction(total, denominator * self.denominator ** (order - 1)) - target))
        if order > len(columns):
            worst = max(worst, Fraction(1, min(map(gamma, trees(order)))))
        return worst


@pytest.fixture(scope="module")
def weights():
    return cache(Weights)


def assert_order(residual, order, tol):
    """`residual(n)` vanishes to `tol` for ``n <= order`` and clearly does not for ``n = order + 1``."""
    for n in range(1, order + 1):
        assert residual(n) <= tol, f"order {n}"
    assert residual(order + 1) > Fraction(1, 10**9), f"order above {order}"


def difference(tab, field):
    """Weights ``b - field``."""
    return [x - y for x, y in zip(tab.fractions("b"), tab.fractions(field), strict=True)]


def test_number_of_trees():
    assert [len(trees(n)) for n in range(1, 11)] == [1, 1, 2, 4, 9, 20, 48, 115, 286, 719]
    assert all(len(set(trees(n))) == len(trees(n)) for n in range(1, 11))


@each_tableau
def test_order(tab, weights):
    b = tab.fractions("b")
    assert_order(lambda n: weights(tab).residual(b, n), tab.order, tolerance(tab))


@each_tableau
def test_embedded_order(tab, weights):
    if tab.b_err is None:
        assert tab.embedded_order is None
        return
    b_hat = difference(tab, "b_err")
    assert_order(lambda n: weights(tab).residual(b_hat, n), tab.embedded_order, tolerance(tab))


def test_dop853_low_order_estimator(weights):
    b_low = difference(DOP853, "b_err_low")
    assert_order(lambda n: weights(DOP853).residual(b_low, n), 3, tolerance(DOP853))


@each_tableau
def test_dense_order(tab, weights):
    b_dense = tab.fractions("b_dense")
    assert_order(lambda n: weights(tab).dense_residual(b_dense, n), tab.dense_order, tolerance(tab))


@each_tableau
def test_interpolant_ends_at_the_step(tab):
    b = tab.fractions("b") + (0,) * tab.n_extra
    for row, weight in zip(tab.fractions("b_dense"), b, strict=True):
        assert abs(sum(row) - weight) <= tolerance(tab)


@each_tableau
def test_row_sums(tab):
    for row, node in zip(tab.fractions("a"), tab.fractions("c"), strict=True):
        assert abs(sum(row) - node) <= tolerance(tab)


@each_tableau
def test_fsal(tab):
    last_row_is_b = tab.stages > 1 and tab.a[tab.stages - 1] == tab.b[:-1] and Fraction(tab.b[-1]) == 0
    assert tab.fsal == last_row_is_b


@each_tableau
def test_arrays_are_the_rounded_fractions(tab):
    total = tab.stages + tab.n_extra
    assert tab.A.shape == (total, total) and not np.triu(tab.A).any()
    for field in ("a", "b_dense"):
        array = tab.A if field == "a" else tab.B_DENSE
        for got, row in zip(array, tab.fractions(field), strict=True):
            assert got[: len(row)].tolist() == [float(x) for x in row]
    for field in ("b", "b_err", "b_err_low", "c"):
        values, array = tab.fractions(field), getattr(tab, field.upper())
        assert array is None if values is None else array.tolist() == [float(x) for x in values]
        assert array is None or not array.flags.writeable


@pytest.mark.parametrize(
    ("tab", "stages", "n_extra"), [(EULER, 1, 0), (DP5, 7, 0), (TSIT5, 7, 0), (DOP853, 13, 3), (VERN9, 16, 10)]
)
def test_stage_counts(tab, stages, n_extra):
    assert (tab.stages, tab.n_extra) == (stages, n_extra)
