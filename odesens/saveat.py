"""Saved times: from `saveat` in its three forms to an array of times, checked where its values are known.

Owns: `saved_times`, reading concrete values out of arrays. Must not know: how values at those times come about.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

MOST_SAVES = 10**8
MOST_KEPT = 2**16  # bytes of a saveat whose times are remembered


def concrete(x) -> np.ndarray | None:
    """The value of an array, also of one that is being differentiated eagerly; None where it is only traced."""
    if not isinstance(x, Tracer):
        return np.asarray(x)
    try:
        if x.ndim == 0:
            return np.asarray(float(jax.lax.stop_gradient(x)))
        return np.asarray(jax.lax.stop_gradient(x))
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
        return None


def as_array(x, dtype):
    """x with this dtype; as a NumPy array where its value is known, since arrays made under `jit` no longer tell it."""
    if isinstance(x, Tracer):
        return x.astype(dtype)
    return np.asarray(x).astype(dtype)


def saved_times(saveat: Any, t0, t1, dtype):
    """The times (m,) at which values are saved; None where every accepted step is."""
    if saveat is None:
        return None
    wrong = TypeError(f"saveat must be a step, an array of real times or None, got {saveat!r}")
    times: Any = saveat
    if isinstance(saveat, (list, tuple)) and any(isinstance(x, Tracer) for x in saveat):
        times = jnp.stack([jnp.asarray(x) for x in saveat])
    if not hasattr(times, "dtype"):
        try:
            times = np.asarray(saveat) if np.size(saveat) else np.zeros(0)
            times = times.astype(float) if times.dtype == object else times
        except (TypeError, ValueError):
            raise wrong from None
    if not (jnp.issubdtype(times.dtype, jnp.floating) or jnp.issubdtype(times.dtype, jnp.integer)):
        raise TypeError(f"saveat must hold real times, got dtype {times.dtype}: {saveat!r}")
    given = times.dtype if jnp.issubdtype(times.dtype, jnp.floating) else dtype
    array = as_array(times, dtype)
    if array.ndim > 1:
        raise ValueError(f"saveat must be a step or a one-dimensional array of times, got shape {array.shape}")
    if all(isinstance(x, np.ndarray) for x in (array, t0, t1)) and array.nbytes <= MOST_KEPT:
        return _known(array.shape, array.tobytes(), np.dtype(given), t0.item(), t1.item(), np.dtype(dtype))
    return _placed(array, given, t0, t1)


@functools.lru_cache(maxsize=256)
def _known(shape: tuple, data: bytes, given, t0: float, t1: float, dtype) -> np.ndarray:
    """Saved times of known values, made and checked once."""
    array = np.frombuffer(data, dtype).reshape(shape)
    ts = np.asarray(_placed(array, given, np.asarray(t0, dtype), np.asarray(t1, dtype)))
    ts.setflags(write=False)
    return ts


def _placed(array, given, t0, t1):
    if array.ndim == 0:
        return _steps(array, t0, t1)
    return _checked(array, t0, t1, max(jnp.finfo(given).eps, jnp.finfo(array.dtype).eps))


def _steps(step, t0, t1):
    """t0, t0 + step, .. and t1, in the direction of the span."""
    h, start, stop = concrete(step), concrete(t0), concrete(t1)
    if h is None or start is None or stop is None:
        raise ValueError(
            "saveat as a step needs a tspan and a step that are not traced, since the number of saves is a shape: "
            "give saveat as an array of times, e.g. t0 + (t1 - t0) * jnp.linspace(0, 1, m)"
        )
    if not np.isfinite(h) or h <= 0:
        raise ValueError(
            f"saveat as a step must be positive and finite, got {float(h)}; its direction is that of tspan"
        )
    span = abs(float(stop) - float(start))
    count = int(np.floor(span / float(h) * (1 + 4 * float(jnp.finfo(step.dtype).eps)) + 1e-9))
    if count > MOST_SAVES:
        raise ValueError(f"saveat = {float(h):g} on a span of {span:g} makes {count} saves; the most is {MOST_SAVES}")
    signed = step if stop >= start else -step
    ts = t0 + signed * np.arange(count + 1, dtype=step.dtype)
    lands = abs(count * float(h) - span) <= 1e-6 * float(h)
    if span == 0:
        return t1[None]
    ts = ts[:-1] if lands else ts
    join = jnp.concatenate if isinstance(ts, jax.Array) or isinstance(t1, jax.Array) else np.concatenate
    return join([ts, t1[None]])


def _checked(ts, t0, t1, eps):
    """Exactly these times; where they are known, monotone and within the span (rounding forgiven)."""
    known, start, stop = concrete(ts), concrete(t0), concrete(t1)
    if known is None or start is None or stop is None or known.size == 0:
        return ts
    if not np.all(np.isfinite(known)):
        raise ValueError("saveat holds times that are not finite")
    low, high = min(start, stop), max(start, stop)
    slack = 16 * float(eps) * max(abs(low), abs(high), high - low)
    if known.min() < low - slack or known.max() > high + slack:
        raise ValueError(
            f"saveat must lie within tspan = ({float(start):g}, {float(stop):g}), "
            f"got times from {known.min():g} to {known.max():g}"
        )
    steps = np.diff(known) * (1 if stop >= start else -1)
    if np.any(steps < 0):
        at = int(np.argmax(steps < 0))
        raise ValueError(
            f"saveat must go from t0 to t1 without turning back, got {known[at]:g} before {known[at + 1]:g} "
            f"on tspan = ({float(start):g}, {float(stop):g}); sort it"
        )
    if known.min() < low or known.max() > high:
        xp = jnp if any(isinstance(x, jax.Array) for x in (ts, t0, t1)) else np
        ts = xp.clip(ts, xp.minimum(t0, t1), xp.maximum(t0, t1))
    return ts
