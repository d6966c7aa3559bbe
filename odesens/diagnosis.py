"""Why an eager solve failed, in words: the offending component and the likely cause.

Owns: the messages of `SolveError`. Must not know: transforms (nothing here runs under one).
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from .call import Spec
from .methods import step
from .methods.tableaus import BdfTableau, RosenbrockTableau
from .sensitivity.augment import Flow
from .status import ReturnCode, SolveError

STIFF = "likely cause: a stiff problem"


def raise_solve(spec: Spec, flow: Flow, code: int, t, dt, u) -> None:
    """Raise the error of a failed forward solve that reached (t, u) and would have tried the step dt."""
    retcode, cause = ReturnCode(code), _suspect(spec, flow, code, t, dt, u)
    lines = [
        f"the solve ended with ReturnCode.{retcode.name}: {retcode.cause}.",
        f"  reached t = {float(t):.10g} of the span ({float(flow.t0):.10g}, {float(flow.t1):.10g})",
        f"  {cause}",
        f"  what to do: {retcode.remedy}; throw=False returns what was reached instead of raising.",
    ]
    raise SolveError("\n".join(lines), retcode, float(t), stiff=cause.startswith(STIFF))


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


def _inconsistent(spec: Spec, mass, right) -> str:
    """The algebraic equation that u0 violates most."""
    residual = mass.left @ (mass.left.T @ right)
    worst = int(np.argmax(np.abs(np.where(np.isfinite(residual), residual, np.inf))))
    size = float(np.linalg.norm(mass.left.T @ right))
    return f"the residual of the algebraic equations at u0 is {size:.6g}, largest in that of {component(spec, worst)}"


def _suspect(spec: Spec, flow: Flow, code: int, t, dt, u) -> str:
    """The component whose derivative is not finite, or whose error is the largest, with the likely cause."""
    f = lambda t, u: flow.field(t, u, flow.p, flow.aux)
    mass = flow.settings.method.mass
    if code == ReturnCode.InitialisationFailure and mass is not None:
        return _inconsistent(spec, mass, np.asarray(f(flow.t0, flow.u0)))
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
    method, tol = flow.settings.method, (flow.options.abstol, flow.options.reltol)
    if code == ReturnCode.NonFinite and isinstance(method.tableau, RosenbrockTableau):
        slope = np.asarray(jax.jvp(lambda t: f(t, u), (t,), (jnp.ones_like(t),))[1])
        bad = np.flatnonzero(~np.isfinite(slope))
        if bad.size:
            name = component(spec, int(bad[0]))
            return (
                f"likely cause: df/dt, which Rosenbrock methods need, is {slope[bad[0]]} for d{name}/dt at that time; "
                "use an ESDIRK method such as Kvaerno5()"
            )
    mode = jnp.zeros((), jnp.int32)
    if isinstance(method.tableau, BdfTableau):  # whose steps need a past
        method = replace(method, tableau=method.tableau.companion)
    system = flow.system(flow.p, flow.aux, tol)
    out = step.stages(method, system, t, jnp.zeros_like(t), u, dt, None, flow.t1, mode, exact=False)
    bad = np.flatnonzero(~np.all(np.isfinite(np.asarray(out.k)), axis=0))
    if bad.size:
        return (
            f"likely cause: the field gives NaN or infinity for d{component(spec, int(bad[0]))}/dt just after that time"
        )
    rate = _stiffness(f, t, u)
    stiff = abs(float(dt)) * rate
    if method.tableau.b_err is not None:
        err = np.abs(np.asarray(step.error_estimate(method, dt, out, mode)))
        worst = component(spec, int(np.nanargmax(np.where(np.isfinite(err), err, np.inf))))
    else:
        worst = component(spec, int(np.argmax(np.abs(du))))
    if code in (ReturnCode.NewtonFailure, ReturnCode.SingularMatrix):
        return f"|J| |dt| = {stiff:.2g} at the end, last dt = {float(dt):.3g}"
    if stiff > 1.0 and not method.implicit:
        return (
            f"{STIFF} (|J| |dt| = {stiff:.2g} at the end, {worst} has the largest error); "
            "use Rodas5P() or AutoTsit5(Rodas5P())"
        )
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
    if spec.entries:
        return spec.entries[i]
    for name, shape, size in zip(spec.names, state.shapes, state.sizes, strict=True):
        if i < size:
            index = np.unravel_index(i, shape) if shape else ()
            return f"u{name}" + (f"[{', '.join(map(str, map(int, index)))}]" if index else "")
        i -= size
    return f"u[{i}]"
