"""Order conditions and linear stability of the Rosenbrock and ESDIRK methods, in decimals of 80 digits.

ESDIRK methods obey the conditions of `test_tableaus`.  A Rosenbrock method, whose untransformed form has the matrices
``alpha`` and ``G``, obeys the same conditions with ``alpha + G`` on the edge below a vertex of one branch and
``alpha`` on the edges below a vertex of several (Hairer and Wanner, Solving ODEs II, section IV.7, theorem 7.4).  An
additive pair needs them for every colouring of the edges with its two matrices.

For ``u' = lambda u`` with ``z = h lambda`` all methods have the stages ``h k = z (I - z B)**-1 1 u``, with ``B = a`` or
``B = alpha + G``.  This gives the stability function, the error estimate and the interpolant in the stiff limit.
"""

from decimal import Decimal, localcontext
from functools import cache

import numpy as np
import pytest

from odesens.methods.tableaus.esdirk import KENCARP4, KENCARP5, KVAERNO3, KVAERNO5, TRBDF2
from odesens.methods.tableaus.implicit import EsdirkTableau, RosenbrockTableau
from odesens.methods.tableaus.rosenbrock import RODAS4, RODAS5P, ROSENBROCK23
from tests.test_tableaus import gamma as density
from tests.test_tableaus import trees

ROSENBROCK = (ROSENBROCK23, RODAS4, RODAS5P)
ESDIRK = (TRBDF2, KVAERNO3, KVAERNO5, KENCARP4, KENCARP5)
PAIRS = (KENCARP4, KENCARP5)

# Largest allowed residual of an order condition.
TOLERANCE = {
    "Rosenbrock23": ("1e-48", "irrational coefficients up to 25, to 50 digits"),
    "Rodas4": ("4e-15", "published to 16 digits, with coefficients up to 34"),
    "Rodas5P": ("3e-14", "published to 16 digits, with coefficients up to 165"),
    "TRBDF2": ("1e-48", "irrational coefficients, to 50 digits"),
    "Kvaerno3": ("1e-48", "irrational coefficients, to 50 digits"),
    "Kvaerno5": ("1e-15", "published to 17 digits; interpolant with coefficients up to 16"),
    "KenCarp4": ("1e-24", "explicit partner and interpolant published as fractions good to 26 digits"),
    "KenCarp5": ("2e-24", "published as fractions good to 26 digits"),
}

each_method = pytest.mark.parametrize("tab", ROSENBROCK + ESDIRK, ids=lambda tab: tab.name)
each_rosenbrock = pytest.mark.parametrize("tab", ROSENBROCK, ids=lambda tab: tab.name)
each_esdirk = pytest.mark.parametrize("tab", ESDIRK, ids=lambda tab: tab.name)
each_pair = pytest.mark.parametrize("tab", PAIRS, ids=lambda tab: tab.name)


@pytest.fixture(autouse=True)
def digits():
    with localcontext() as context:
        context.prec = 80
        yield


def tolerance(tab):
    return Decimal(TOLERANCE[tab.name][0])


def decimals(values):
    return np.array([Decimal(x.numerator) / Decimal(x.denominator) for x in values], dtype=object)


def vector(tab, field):
    return decimals(tab.fractions(field))


def square(tab, field):
    out = np.full((tab.stages, tab.stages), Decimal(0), dtype=object)
    for i, row in enumerate(tab.fractions(field)):
        out[i, : len(row)] = decimals(row)
    return out


def identity(n):
    return np.array([[Decimal(int(i == j)) for j in range(n)] for i in range(n)], dtype=object)


def solve_lower(matrix, rhs):
    out = rhs.copy()
    for i in range(len(matrix)):
        out[i] = (rhs[i] - sum(matrix[i, j] * out[j] for j in range(i))) / matrix[i, i]
    return out


class Method:
    """Untransformed coefficients: a matrix an edge of a tree (or several, for a pair) and the weights of all sums."""

    def __init__(self, tab, matrices=("a",)):
        s = tab.stages
        rosenbrock = isinstance(tab, RosenbrockTableau)
        g = identity(s)
        if rosenbrock:
            gamma = decimals([tab.fractions("gamma")])[0]
            g = solve_lower(identity(s) / gamma - square(tab, "coupling"), identity(s))
        self.g = g
        several = [square(tab, field) @ g for field in matrices]
        self.several = several
        self.single = [several[0] + g] if rosenbrock else several
        self.b = vector(tab, "b") @ g
        self.b_err = vector(tab, "b_err") @ g
        self.b_hat = self.b - self.b_err
        self.b_dense = np.array([decimals(row) for row in tab.fractions("b_dense")]).T @ g
        self.below = {}

    def phi(self, tree):
        """Elementary weights of the stages, for all colourings of the edges of `tree`."""
        values = [np.full(len(self.g), Decimal(1), dtype=object)]
        for child in tree:
            matrices = self.single if len(tree) == 1 else self.several
            key = child, len(tree) == 1
            if key not in self.below:
                self.below[key] = [matrix @ inner for matrix in matrices for inner in self.phi(child)]
            values = [v * w for v in values for w in self.below[key]]
        return values

    def residual(self, weights, order):
        """Largest ``|sum_i w_i Phi_i(t) - 1 / gamma(t)|`` over the trees of `order` nodes.

        Weights of two dimensions are the coefficients of ``theta, theta**2, ...``, and the sums must be those of
        ``theta**order / gamma(t)``.
        """
        dense = weights.ndim == 2
        powers = range(1, len(weights) + 1) if dense else [order]
        worst = Decimal(0)
        for tree in trees(order):
            target = 1 / Decimal(density(tree))
            if order not in powers:
                worst = max(worst, target)
            for value in self.phi(tree):
                sums = weights @ value if dense else [weights @ value]
                worst = max(worst, *(abs(x - target * (power == order)) for x, power in zip(sums, powers, strict=True)))
        return worst

    def stages_at(self, z):
        """``h k`` for ``u' = lambda u`` with ``u = 1`` and ``h lambda = z``."""
        n = len(self.g)
        return z * solve_lower(identity(n) - z * self.single[0], np.full(n, Decimal(1), dtype=object))


@cache
def _method(tab, matrices):
    return Method(tab, matrices)


def method(tab, *matrices):
    return _method(tab, matrices or ("a",))


def assert_order(residual, order, tol):
    """`residual(n)` vanishes to `tol` for ``n <= order`` and clearly does not for ``n = order + 1``."""
    for n in range(1, order + 1):
        assert residual(n) <= tol, f"order {n}"
    assert residual(order + 1) > Decimal("1e-4"), f"order above {order}"


@each_method
def test_order(tab):
    m = method(tab)
    assert_order(lambda n: m.residual(m.b, n), tab.order, tolerance(tab))


@each_method
def test_embedded_order(tab):
    m = method(tab)
    assert_order(lambda n: m.residual(m.b_hat, n), tab.embedded_order, tolerance(tab))
    assert tab.embedded_order != tab.order


@each_method
def test_dense_order(tab):
    m = method(tab)
    assert_order(lambda n: m.residual(m.b_dense, n), tab.dense_order, tolerance(tab))


@each_method
def test_interpolant_ends_at_the_step(tab):
    for row, weight in zip(tab.fractions("b_dense"), tab.fractions("b"), strict=True):
        assert abs(sum(row) - weight) <= tolerance(tab)


@each_rosenbrock
def test_rosenbrock_row_sums(tab):
    m = method(tab)
    assert np.max(abs(m.several[0].sum(axis=1) - vector(tab, "c"))) <= tolerance(tab)
    assert np.max(abs(m.g.sum(axis=1) - vector(tab, "d"))) <= tolerance(tab)
    gamma = decimals([tab.fractions("gamma")])[0]
    assert np.max(abs(np.diag(m.g) - gamma)) <= tolerance(tab)


@each_esdirk
def test_esdirk_row_sums(tab):
    """Also ``sum_j a_ij c_j = c_i**2 / 2``, which all these methods share."""
    a, c = square(tab, "a"), vector(tab, "c")
    assert np.max(abs(a.sum(axis=1) - c)) <= tolerance(tab)
    assert np.max(abs(a @ c - c**2 / 2)) <= tolerance(tab)


@each_pair
def test_pair_orders(tab):
    """The explicit method alone, and the additive method with all coupling conditions."""
    explicit, both = method(tab, "a_explicit"), method(tab, "a", "a_explicit")
    tol = tolerance(tab)
    assert np.max(abs(explicit.several[0].sum(axis=1) - vector(tab, "c"))) <= tol
    for m in (explicit, both):
        assert_order(lambda n, m=m: m.residual(m.b, n), tab.order, tol)
        assert_order(lambda n, m=m: m.residual(m.b_hat, n), tab.embedded_order, tol)
        assert_order(lambda n, m=m: m.residual(m.b_dense, n), tab.dense_order, tol)


@each_esdirk
def test_only_the_pairs_have_an_explicit_partner(tab):
    assert (tab.a_explicit is not None) == (tab in PAIRS)
    assert (tab.A_EXPLICIT is None) == (tab.a_explicit is None)


@each_method
def test_stiffly_accurate(tab):
    m = method(tab)
    last = m.single[0][-1]
    assert tab.stiffly_accurate == (np.max(abs(last - m.b)) <= tolerance(tab))
    assert tab.stiffly_accurate == (tab is not ROSENBROCK23)
    if isinstance(tab, EsdirkTableau):
        assert tab.a[-1] == tab.b
    elif tab.stiffly_accurate:
        assert tab.a[-1] == tab.b[:-1] and tab.b[-1] == tab.c[-1] == "1"


@each_method
def test_a_stable(tab):
    """``|R(iy)| <= 1``; the poles are all at ``1 / gamma``, so this is A-stability."""
    m = method(tab)
    matrix, b = m.single[0].astype(float), m.b.astype(float)
    one = np.ones(tab.stages)
    for y in np.concatenate([[0.0], np.geomspace(1e-3, 1e5, 400)]):
        r = 1 + 1j * y * b @ np.linalg.solve(np.eye(tab.stages) - 1j * y * matrix, one)
        assert abs(r) <= 1 + 1e-12, y


@each_method
def test_stiff_limit(tab):
    """``R(infinity) = 0``, a bounded interpolant, and an error estimate that is bounded for all methods but TRBDF2."""
    m = method(tab)
    z = Decimal("-1e8")
    k = m.stages_at(z)
    assert tab.l_stable and abs(1 + m.b @ k) < Decimal("1e-6")
    for theta in map(Decimal, ("0.1", "0.25", "0.5", "0.75", "0.9")):
        powers = np.array([theta ** (j + 1) for j in range(len(m.b_dense))], dtype=object)
        assert abs(1 + powers @ m.b_dense @ k) < 2
    error = m.b_err @ k
    if tab is TRBDF2:
        assert abs(error / z - Decimal("0.4714")) < Decimal("1e-4")
        assert abs(error / (1 - decimals([tab.fractions("gamma")])[0] * z)) < 2
    else:
        assert abs(error) < 2


def test_kvaerno5_interpolant_at_infinity():
    """The free weight of the interpolant makes its stability function ``(1 - theta)**4`` at infinity."""
    m = method(KVAERNO5)
    got = m.b_dense @ m.stages_at(Decimal("-1e8"))
    assert np.max(abs(got - np.array([-4, 6, -4, 1]))) < Decimal("1e-5")


@each_esdirk
def test_predictor_is_exact_for_linear_slopes(tab):
    """From the third stage on, or where an earlier stage has the same node; the second copies the first."""
    predict, c = square(tab, "predict"), vector(tab, "c")
    assert np.max(abs(predict.sum(axis=1)[1:] - 1)) == 0
    assert np.max(abs((predict @ c - c)[2:])) < Decimal("1e-18")
    assert np.max(abs(predict)) < 3


@each_method
def test_arrays_are_the_rounded_fractions(tab):
    s = tab.stages
    assert (tab.n_extra, tab.fsal, tab.b_err_low, tab.B_ERR_LOW) == (0, False, None, None)
    assert float(tab.fractions("gamma")) == tab.GAMMA
    triangles = ("a", "coupling") if tab in ROSENBROCK else ("a", "a_explicit", "predict")
    for field in (*triangles, "b_dense"):
        array, rows = getattr(tab, field.upper()), tab.fractions(field)
        if rows is not None:
            assert array.shape == (s, len(rows[-1]) if field == "b_dense" else s) and not array.flags.writeable
            assert all(
                got[: len(row)].tolist() == [float(x) for x in row] for got, row in zip(array, rows, strict=True)
            )
            assert field == "b_dense" or not np.triu(array, k=int(field == "a" and tab in ESDIRK)).any()
    for field in ("b", "b_err", "c", *(("d",) if tab in ROSENBROCK else ())):
        array = getattr(tab, field.upper())
        assert array.tolist() == [float(x) for x in tab.fractions(field)] and not array.flags.writeable


@each_method
def test_centred_interpolant_is_the_interpolant(tab):
    for theta in (0.0, 0.3, 1.0):
        plain = tab.B_DENSE @ theta ** np.arange(1, tab.B_DENSE.shape[1] + 1)
        centred = tab.B_CENTRED @ (theta - 0.5) ** np.arange(tab.B_CENTRED.shape[1])
        np.testing.assert_allclose(centred, plain, rtol=0, atol=1e-13)


def rosenbrock_step(tab, f, jac, f_t, mass, t, u, h):
    """One step as the docstring of `RosenbrockTableau` has it: ``(u_new, error, u(t + h / 2))``."""
    w = mass / tab.GAMMA - h * jac(t, u)
    k = np.zeros((tab.stages, len(u)))
    for i in range(tab.stages):
        rhs = f(t + tab.C[i] * h, u + h * tab.A[i] @ k) + mass @ (tab.COUPLING[i] @ k) + tab.D[i] * h * f_t(t, u)
        k[i] = np.linalg.solve(w, rhs)
    middle = tab.B_DENSE @ 0.5 ** np.arange(1, tab.B_DENSE.shape[1] + 1)
    return u + h * tab.B @ k, h * tab.B_ERR @ k, u + h * middle @ k


@each_rosenbrock
def test_rosenbrock_step_with_mass_matrix(tab):
    """Error of one step against the closed form of a non-autonomous non-linear system ``M u' = f(t, u)``."""
    mass, mix = np.array([[2.0, 1.0], [-0.5, 1.5]]), np.array([[1.0, -0.4], [0.3, 0.8]])
    back = np.linalg.inv(mix)

    def f(t, u):
        v, w = back @ u
        return mass @ mix @ np.array([-t * v**2, w * np.cos(t)])

    def jac(t, u):
        v, _ = back @ u
        return mass @ mix @ np.diag([-2 * t * v, np.cos(t)]) @ back

    def f_t(t, u):
        v, w = back @ u
        return mass @ mix @ np.array([-(v**2), -w * np.sin(t)])

    def exact(t):
        return mix @ np.array([1 / (0.5 + t**2 / 2), np.exp(np.sin(t))])

    t = 0.8
    found = []
    for h in (0.05, 0.025):
        new, error, middle = rosenbrock_step(tab, f, jac, f_t, mass, t, exact(t), h)
        found.append([np.linalg.norm(x) for x in (new - exact(t + h), error, middle - exact(t + h / 2))])
    orders = np.log2(np.array(found[0]) / found[1])
    expected = np.array([tab.order, min(tab.order, tab.embedded_order), tab.dense_order]) + 1
    np.testing.assert_allclose(orders, expected, rtol=0, atol=0.3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"c": ("0",)}, "one entry a stage"),
        ({"b_dense": (("1",), ("1", "0"), ("0",))}, "one length"),
        ({"a": ((), (), ())}, "triangles"),
        ({"d": ("0",)}, "`d`"),
    ],
)
def test_rosenbrock_shapes_are_checked(change, message):
    fields = {name: getattr(ROSENBROCK23, name) for name in ROSENBROCK23.__dataclass_fields__}
    with pytest.raises(ValueError, match=message):
        RosenbrockTableau(**{**fields, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": TRBDF2.predict}, "with its diagonal"),
        ({"gamma": "1/4"}, "0, gamma"),
        ({"predict": TRBDF2.a}, "strictly lower"),
        ({"a_explicit": TRBDF2.a}, "strictly lower"),
    ],
)
def test_esdirk_shapes_are_checked(change, message):
    fields = {name: getattr(TRBDF2, name) for name in TRBDF2.__dataclass_fields__}
    with pytest.raises(ValueError, match=message):
        EsdirkTableau(**{**fields, **change})
