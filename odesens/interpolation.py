"""Functions of time from data, for use inside f(t, u, p): constant, linear and cubic Hermite between knots.

Owns: the interpolants as equinox modules, their checks. Must not know: methods, loops, derivatives.

A module may come to f in p, in another module, captured or global; its knots and values are then differentiated like
all else. It tells the solve its knots (`trace.declare_stops`): steps end just before each and start anew at it, so that
what is smooth between knots is solved at the method's order, and derivatives with respect to knots are right, although
f has a jump or a kink there.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import ArrayLike, PyTree, Real

from .trace import declare_stops

__all__ = ["ConstantInterpolation", "CubicHermiteInterpolation", "LinearInterpolation"]


class Interpolation(eqx.Module):
    """Base of the interpolants: `interp(t)` for a scalar t, or for an array of times whose axes then lead.

    Parameters
    ----------
    knots : array (m,)
    values : pytree of arrays (m, ..)
    extrapolate : "hold" or "extend"
    fewest : int
        The least number of knots.

    Raises
    ------
    TypeError, ValueError
        For knots that decrease or are not real, or too few of them, values without a leading axis of m.
    """

    knots: Any
    values: PyTree
    extrapolate: str = eqx.field(static=True)

    def __init__(self, knots: Real[ArrayLike, " m"], values: PyTree, *, extrapolate: str = "hold", fewest: int = 2):
        name = type(self).__name__
        self.knots = _checked_knots(knots, name, fewest)
        self.values = _checked_values(values, self.knots.shape[0], f"{name}: values")
        if extrapolate not in ("hold", "extend"):
            raise ValueError(f'{name}: extrapolate must be "hold" or "extend", got {extrapolate!r}')
        self.extrapolate = extrapolate

    def __call__(self, t: Real[ArrayLike, "..."]) -> PyTree:
        """The value at the time t, a real scalar or an array of times, whose axes then lead."""
        declare_stops(self.knots, "jump")
        t = jnp.asarray(t)
        if jnp.issubdtype(t.dtype, jnp.integer):
            t = t.astype(jnp.result_type(float))
        if not jnp.issubdtype(t.dtype, jnp.floating):
            raise TypeError(f"{type(self).__name__} needs real times, got dtype {t.dtype}")
        t = t.astype(jnp.promote_types(t.dtype, self.knots.dtype))
        flat = jax.vmap(self._at)(t.reshape(-1)) if t.ndim else self._at(t)
        return jax.tree.map(lambda x: x.reshape(*t.shape, *x.shape[1:]), flat) if t.ndim else flat

    def _at(self, t) -> PyTree:
        """The value at one time, of the dtype in which times and knots are compared."""
        raise NotImplementedError

    def derivative(self, t: Real[ArrayLike, "..."]) -> PyTree:
        """The derivative in time at the real time t, at a knot to its right; zero where the end values are held."""
        t = jnp.asarray(t, None if jnp.issubdtype(jnp.result_type(t), jnp.floating) else jnp.result_type(float))
        return jax.jvp(self, (t,), (jnp.ones_like(t),))[1]

    def _interval(self, t):
        """The interval [x_i, x_i+1) of t, its length, and theta in [0, 1] where in it t is."""
        x = self.knots.astype(t.dtype)
        below = t < x[0]
        if self.extrapolate == "hold":
            t = jnp.where(below, x[0], jnp.where(t > x[-1], x[-1], t))
        i = jnp.where(below, 0, jnp.clip(_count(x, t) - 1, 0, x.shape[0] - 2))
        x0, x1 = _row(x, i), _row(x, i + 1)
        h = x1 - x0
        # an interval without length is met only where the ends are held: the first knot repeated, or the last
        theta = jnp.where(h > 0, (t - x0) / jnp.where(h > 0, h, 1), jnp.where(below, 0, 1))
        return i, h, theta


class ConstantInterpolation(Interpolation):
    """A step function of time, right-continuous at its knots.

    Parameters
    ----------
    knots : array (m,), m >= 1
        Times that do not decrease, differentiable: derivatives of a solve with respect to them are those of the times
        at which f jumps.
    values : pytree of arrays (m, ..)
        Real or complex, differentiable; integers become the default float.
    side : "left" or "right"
        The value between two knots is that of the left one (SciPy's `previous`), or that of the right one (`next`).

        value = values[j],  knots[j] <= t < knots[j + 1]  (side "left")

    Before the first knot the value is the first one, from the last knot on the last one.

    Raises
    ------
    TypeError, ValueError
        For knots that decrease or are not real, values without a leading axis of m, an unknown side.

    Examples
    --------
    >>> import odesens as ode
    >>> dose = ode.interpolation.ConstantInterpolation([0.0, 1.0], [5.0, 0.0])
    >>> float(dose(0.5)), float(dose(1.0))
    (5.0, 0.0)
    """

    side: str = eqx.field(static=True)

    def __init__(self, knots: Real[ArrayLike, " m"], values: PyTree, *, side: str = "left"):
        super().__init__(knots, values, fewest=1)
        if side not in ("left", "right"):
            raise ValueError(f'ConstantInterpolation: side must be "left" or "right", got {side!r}')
        self.side = side

    def _at(self, t) -> PyTree:
        passed = _count(self.knots.astype(t.dtype), t)
        i = jnp.clip(passed - (self.side == "left"), 0, self.knots.shape[0] - 1)
        return jax.tree.map(lambda y: _row(y, i), self.values)


class LinearInterpolation(Interpolation):
    """The piecewise linear function of time through the data.

    Parameters
    ----------
    knots : array (m,), m >= 2
        Times that do not decrease, differentiable. A repeated knot makes a jump there, from the first of its values to
        the last; knots repeated at the end, with their values, are padding.
    values : pytree of arrays (m, ..)
        Real or complex, differentiable; integers become the default float.
    extrapolate : "hold" or "extend"
        Outside the knots: the end values, or the end pieces' lines. There is no error for times out of range, since
        under a transform their values are not known.

    Raises
    ------
    TypeError, ValueError
        For knots that decrease or are not real, or fewer than two, values without a leading axis of m.

    Examples
    --------
    >>> import odesens as ode
    >>> ramp = ode.interpolation.LinearInterpolation([0.0, 2.0], [0.0, 4.0])
    >>> float(ramp(0.5)), float(ramp.derivative(0.5)), float(ramp(3.0))
    (1.0, 2.0, 4.0)
    >>> prob = ode.ODEProblem(lambda t, u, w: w(t), 0.0, (0.0, 2.0))
    >>> print(f"{ode.solve(prob, p=ramp, saveat=[2.0]).u[0]:.6f}")  # the area below it
    4.000000
    """

    def __init__(self, knots: Real[ArrayLike, " m"], values: PyTree, *, extrapolate: str = "hold"):
        super().__init__(knots, values, extrapolate=extrapolate)

    def _at(self, t) -> PyTree:
        i, _, theta = self._interval(t)

        def leaf(y):
            s = theta.astype(_real_dtype(y))
            return (1 - s) * _row(y, i) + s * _row(y, i + 1)

        return jax.tree.map(leaf, self.values)


class CubicHermiteInterpolation(Interpolation):
    """The piecewise cubic function of time with the data's values and derivatives at the knots; C1.

    On [x_i, x_i+1] of length h, with s = (t - x_i) / h,

        (1 + 2 s) (1 - s)^2 y_i + s^2 (3 - 2 s) y_i+1 + h s (1 - s)^2 d_i - h s^2 (1 - s) d_i+1

    Parameters
    ----------
    knots : array (m,), m >= 2
        Times that do not decrease, differentiable. A repeated knot separates two pieces of data; knots repeated at the
        end, with their values, are padding.
    values : pytree of arrays (m, ..)
        Real or complex, differentiable; integers become the default float.
    derivatives : pytree of arrays (m, ..), optional
        d_i. Default: those of the parabola through a knot and its two neighbours, at an end through the three last
        knots (Bessel's choice; with equal distances Catmull-Rom's), of the values and knots as they are at each call.
    extrapolate : "hold" or "extend"
        Outside the knots: the end values, or the end pieces' cubics. There is no error for times out of range, since
        under a transform their values are not known.

    Raises
    ------
    TypeError, ValueError
        For knots that decrease or are not real, or fewer than two, values or derivatives without a leading axis of m.

    Notes
    -----
    Source: de Boor, A Practical Guide to Splines (2001), chapter IV.

    Examples
    --------
    >>> import numpy as np, odesens as ode
    >>> x = np.array([0.0, 1.0, 3.0])
    >>> cubic = ode.interpolation.CubicHermiteInterpolation(x, x**3, 3 * x**2)
    >>> print(f"{cubic(2.0):.6f} {cubic.derivative(2.0):.6f}")
    8.000000 12.000000
    """

    derivatives: PyTree

    def __init__(
        self, knots: Real[ArrayLike, " m"], values: PyTree, derivatives: PyTree = None, *, extrapolate: str = "hold"
    ):
        super().__init__(knots, values, extrapolate=extrapolate)
        if derivatives is not None:
            what = "CubicHermiteInterpolation: derivatives"
            derivatives = _checked_values(derivatives, self.knots.shape[0], what)
            trees, shapes = zip(*map(_outline, (derivatives, self.values)), strict=True)
            if trees[0] != trees[1] or shapes[0] != shapes[1]:
                raise ValueError(
                    f"{what} must have the structure and shapes of values: expected {trees[1]} with shapes "
                    f"{shapes[1]}, got {trees[0]} with shapes {shapes[0]}"
                )
        self.derivatives = derivatives

    def _at(self, t) -> PyTree:
        i, h, theta = self._interval(t)

        def leaf(y, d0, d1):
            dtype = _real_dtype(y)
            s, width = theta.astype(dtype), h.astype(dtype)
            ends = (1 + 2 * s) * (1 - s) ** 2 * _row(y, i) + s**2 * (3 - 2 * s) * _row(y, i + 1)
            return ends + width * (s * (1 - s) ** 2 * d0 - s**2 * (1 - s) * d1)

        if self.derivatives is not None:
            d0 = jax.tree.map(lambda d: _row(d, i), self.derivatives)
            d1 = jax.tree.map(lambda d: _row(d, i + 1), self.derivatives)
        else:
            slopes = [self._slopes(y, i, t.dtype) for y in jax.tree.leaves(self.values)]
            tree = jax.tree.structure(self.values)
            d0, d1 = (jax.tree.unflatten(tree, column) for column in zip(*slopes, strict=True))
        return jax.tree.map(leaf, self.values, d0, d1)

    def _slopes(self, y, i, dtype):
        """d_i and d_i+1 of one leaf, from the four knots around the interval; at the ends one of them counts twice."""
        at = [jnp.clip(i + j, 0, self.knots.shape[0] - 1) for j in (-1, 0, 1, 2)]
        x = [_row(self.knots.astype(dtype), j).astype(_real_dtype(y)) for j in at]
        values = [_row(y, j) for j in at]
        h = [x[j + 1] - x[j] for j in range(3)]
        slope = [(values[j + 1] - values[j]) / jnp.where(h[j] > 0, h[j], 1) for j in range(3)]
        left, middle, right = zip(h, slope, strict=True)
        return _parabola(middle, left, right), _parabola(middle, right, left)


def _parabola(own: tuple, near: tuple, far: tuple):
    """The derivative, at the knot between the intervals own and near, of the parabola through both.

    Intervals are (length, slope of the data). Where near has no length the parabola goes through own and far, which is
    beyond own; where that has none either it is a line.
    """
    (h, slope), (h_near, near_slope), (h_far, far_slope) = own, near, far
    by_near = (near_slope - slope) / jnp.where(h_near > 0, h + h_near, 1)
    by_far = (slope - far_slope) / jnp.where(h_far > 0, h + h_far, 1)
    return slope + h * jnp.where(h_near > 0, by_near, jnp.where(h_far > 0, by_far, 0))


# ---------------------------------------------------------------- data


def _count(x, t):
    """How many of the knots are at or before t."""
    return jnp.searchsorted(x, t, side="right", method="scan_unrolled")


def _row(x, i):
    return jax.lax.dynamic_index_in_dim(x, i, keepdims=False)


def _real_dtype(x):
    return jnp.finfo(x.dtype).dtype


def _outline(tree):
    leaves, structure = jax.tree.flatten(tree)
    return structure, [x.shape for x in leaves]


def _is_list(x) -> bool:
    """A flat list of numbers, traced ones among them, which stands for an array."""
    return (
        isinstance(x, list) and len(x) > 0 and all(isinstance(v, (int, float, complex)) or np.ndim(v) == 0 for v in x)
    )


def _array(x, what: str):
    """A number list or array as a floating or complex array; integers become the default float."""
    if isinstance(x, list) and any(isinstance(v, Tracer) for v in x):
        x = jnp.stack([jnp.asarray(v) for v in x])
    x = x if isinstance(x, jax.Array) else np.asarray(x)
    if jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.asarray(x, jnp.result_type(float))
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        raise TypeError(f"{what} must hold real or complex numbers, got dtype {x.dtype}")
    return jnp.asarray(x)


def _checked_knots(knots, name: str, fewest: int):
    """The knots as a floating array (m,)."""
    x = _array(knots, f"{name}: knots")
    if jnp.iscomplexobj(x) or x.ndim != 1:
        raise TypeError(f"{name}: knots must be a vector of real times, got {x.dtype}{list(x.shape)}")
    if x.shape[0] < fewest:
        raise ValueError(f"{name} needs at least {fewest} knot{'s' * (fewest > 1)}, got {x.shape[0]}")
    if not isinstance(x, Tracer):
        known = np.asarray(x)
        if np.any(np.isnan(known)):
            raise ValueError(f"{name}: knots hold NaN")
        if np.any(known[1:] < known[:-1]):
            i = int(np.argmax(known[1:] < known[:-1]))
            raise ValueError(
                f"{name}: knots must not decrease, got {known[i]:g} followed by {known[i + 1]:g}: sort them, and the "
                "values with them"
            )
    return x


def _checked_values(values, m: int, what: str):
    """A pytree of floating or complex arrays (m, ..)."""

    def leaf(x):
        x = _array(x, what)
        if x.ndim == 0 or x.shape[0] != m:
            raise ValueError(f"{what} must have a leading axis of {m}, one entry for each knot, got {list(x.shape)}")
        return x

    if not jax.tree.leaves(values):
        raise TypeError(f"{what} must hold arrays, got {values!r}")
    return jax.tree.map(leaf, values, is_leaf=_is_list)
