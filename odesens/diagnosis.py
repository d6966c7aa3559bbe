"""Why an eager solve failed, in words: the offending component and the likely cause.

Owns: the messages of `SolveError`. Must not know: transforms (nothing here runs under one).
"""

import jax
import jax.numpy as jnp
import numpy as np

from .call import Spec
from .methods import explicit
from .sensitivity.augment import Flow
from .status import ReturnCode, SolveError


def raise_solve(spec: Spec, flow: Flow, code: int, t, dt, u) -> None:
    """Raise the error of a failed forward solve that reached (t, u) and would have tried the step dt."""
    retcode = ReturnCode(code)
    lines = [
        f"the solve ended with ReturnCode.{retcode.name}: {retcode.cause}.",
        f"  reached t = {float(t):.10g} of the span ({float(flow.t0):.10g}, {float(flow.t1):.10g})",
        f"  {_suspect(spec, flow, t, dt, u)}",
        f"  what to do: {retcode.remedy}; throw=False returns what was reached instead of raising.",
    ]
    raise SolveError("\n".join(lines), retcode, float(t))


def check_adjoint(code: int) -> None:
    """Raise the error of a failed backward solve."""
    if code > 1:
        inner = ReturnCode(code)
        retcode = ReturnCode.AdjointFailure
        raise SolveError(
            f"the backward solve of the gradient ended with ReturnCode.{inner.name}: {inner.cause}.\n"
            f"  what to do: {retcode.remedy}; throw=False gives a NaN gradient instead of raising.",
            retcode,
            float("nan"),
        )


def _suspect(spec: Spec, flow: Flow, t, dt, u) -> str:
    """The component whose derivative is not finite, or whose error is the largest, with the likely cause."""
    f = lambda t, u: flow.field(t, u, flow.p, flow.aux)
    du = np.asarray(f(t, u))
    bad = np.flatnonzero(~np.isfinite(du))
    if bad.size:
        name = component(spec, int(bad[0]))
        where = "at the initial state" if float(t) == float(flow.t0) else "at the state reached"
        return (
            f"likely cause: the field gives {du[bad[0]]} for d{name}/dt {where}, {name} = {np.asarray(u)[bad[0]]:.6g}"
        )
    for offset in [dt * (1 + 1e-9), *(10.0 ** np.arange(-12, 0) * (flow.t1 - t))]:
        ahead = np.asarray(f(t + offset, u))
        bad = np.flatnonzero(~np.isfinite(ahead))
        if bad.size:
            name = component(spec, int(bad[0]))
            return f"likely cause: the field gives {ahead[bad[0]]} for d{name}/dt just after the time reached"
    size, start = np.abs(np.asarray(u)), np.abs(np.asarray(flow.u0))
    largest = int(np.argmax(size))
    if size[largest] > 1e6 * max(1.0, float(start.max())):
        name = component(spec, largest)
        return f"likely cause: the solution runs to infinity near that time, {name} = {np.asarray(u)[largest]:.3g}"
    tableau = flow.settings.tableau
    k = explicit.stages(tableau, f, t, jnp.zeros_like(t), u, dt, f(t, u), flow.t1, roll=flow.settings.roll)
    bad = np.flatnonzero(~np.all(np.isfinite(np.asarray(k)), axis=0))
    if bad.size:
        return (
            f"likely cause: the field gives NaN or infinity for d{component(spec, int(bad[0]))}/dt just after that time"
        )
    rate = _stiffness(f, t, u)
    stiff = abs(float(dt)) * rate
    if tableau.b_err is not None:
        err = np.abs(np.asarray(jnp.tensordot(jnp.asarray(tableau.B_ERR, u.dtype), k[: tableau.stages], 1)))
        worst = component(spec, int(np.nanargmax(np.where(np.isfinite(err), err, np.inf))))
    else:
        worst = component(spec, int(np.argmax(np.abs(du))))
    if stiff > 1.0:
        return f"likely cause: a stiff problem (|J| |dt| = {stiff:.2g} at the end, {worst} has the largest error)"
    return (
        f"likely cause: a discontinuity or a long time span; {worst} has the largest error, last dt = {float(dt):.3g}"
    )


def _stiffness(f, t, u) -> float:
    """An estimate of the largest |eigenvalue| of f_u by a few power iterations."""
    if u.size == 0:
        return 0.0
    v = jnp.ones_like(u) + jnp.arange(u.size, dtype=jnp.finfo(u.dtype).dtype).astype(u.dtype) / u.size
    norm = lambda x: jnp.sqrt(jnp.sum(jnp.square(jnp.abs(x))))
    size = 0.0
    try:
        for _ in range(8):
            v = v / jnp.maximum(norm(v), jnp.finfo(u.dtype).tiny)
            v = jax.jvp(lambda u: f(t, u), (u,), (v,))[1]
            size = float(norm(v))
    except TypeError:  # a field with a custom_vjp has no forward mode
        return 0.0
    return size if np.isfinite(size) else 0.0


def component(spec: Spec, i: int) -> str:
    """The user's name of entry i of the flat state."""
    state = spec.field.state
    for name, shape, size in zip(spec.names, state.shapes, state.sizes, strict=True):
        if i < size:
            index = np.unravel_index(i, shape) if shape else ()
            return f"u{name}" + (f"[{', '.join(map(str, map(int, index)))}]" if index else "")
        i -= size
    return f"u[{i}]"
