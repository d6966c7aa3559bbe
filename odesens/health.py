"""What a finished solve says of its problem: stiffness, rejected steps, the component that is hardest, a better method.

Owns: `Diagnosis`, how it is found. Must not know: solutions, engines. Nothing here runs under a transformation.
"""

import functools
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from .call import RECORD, Call
from .diagnosis import component
from .display import table
from .integrate.record import FIELDS
from .methods.tableaus import BdfTableau
from .primitive import flow
from .sensealg import DiscreteAdjoint

DENSE = 200  # states up to which all eigenvalues are found
STEPS = 48  # of which eigenvalues are looked at
LIMIT = 2.0  # |lam| dt that explicit methods can just bear; what accuracy asks for is mostly below 1


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What `sol.diagnose()` found.

    Attributes
    ----------
    t : array (k,)
        Times of the steps that were looked at.
    stiffness : array (k,)
        |lam| dt, with the largest eigenvalue lam of df/du and the step taken there: how stiff the problem is for the
        tolerances asked for. An explicit method that is held by stability has about 2 to 4.
    ratio : array (k,)
        The largest over the smallest |Re lam| of the eigenvalues with negative real parts; NaN above 200 states, and
        where there are fewer than two.
    rejected : float
        The share of rejected steps.
    worst : str
        The component with the largest error in units of its tolerance, by a solve at tolerances ten times smaller.
    worst_error : float
        That error: of some tens or less it is what tolerances promise; NaN where that solve failed.
    stiff : bool
    suggestion : str
        The method to take, and why.

    Examples
    --------
    >>> import jax.numpy as jnp, odesens as ode
    >>> prob = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), 2.0, saveat=[1.0], reltol=1e-8)
    >>> found = ode.solve(prob).diagnose()
    >>> found.stiff, found.worst, found.rejected
    (False, 'u', 0.0)
    """

    t: np.ndarray
    stiffness: np.ndarray
    ratio: np.ndarray
    rejected: float
    worst: str
    worst_error: float
    stiff: bool
    suggestion: str

    def _lines(self) -> list[tuple[str, str]]:
        ratios = self.ratio[np.isfinite(self.ratio)]
        spread = f"{ratios.min():.1e} to {ratios.max():.1e}" if ratios.size else "none"
        known = self.stiffness[np.isfinite(self.stiffness)]
        size = f"{np.median(known):.2g} (median), {known.max():.2g} at most" if known.size else "none"
        return [
            ("|lam| dt along the steps", size),
            ("max / min |Re lam|", spread),
            ("rejected steps", f"{self.rejected:.0%}"),
            ("worst component", f"{self.worst}, error {self.worst_error:.2g} times its tolerance"),
            ("suggestion", self.suggestion),
        ]

    def __repr__(self) -> str:
        return "\n".join(f"{name:<26}{text}" for name, text in self._lines())

    def _repr_html_(self) -> str:
        return table("diagnosis", self._lines())


def diagnose(call: Call, operands: list, t, u, counts: np.ndarray) -> Diagnosis:
    """The diagnosis of the solve that `call` describes, whose saved values are t (m,) and u, leaves (m, ..)."""
    times, steps, states = _steps(call, operands, t, u, counts)
    lams = [_eigenvalues(call, operands, at, state) for at, state in zip(times, states, strict=True)]
    size = np.array([np.max(np.abs(lam), initial=0.0) for lam in lams])
    stiffness, ratio = size * np.abs(steps), np.array([_ratio(lam) for lam in lams])
    damped = np.array([_damped(lam) for lam in lams], bool)
    naccept, nreject = int(counts[0]), int(counts[1])
    rejected = nreject / max(naccept + nreject, 1)
    worst, error = _worst(call, operands, u)
    method = call.spec.settings.method
    stiff = bool(len(lams)) and bool(np.mean((stiffness > LIMIT) & damped) > (0.7 if method.implicit else 1 / 3))
    told = _suggestion(call, stiff, stiffness, rejected)
    return Diagnosis(np.asarray(times), stiffness, ratio, rejected, worst, error, stiff, told)


def _steps(call: Call, operands, t, u, counts):
    """Times, sizes and flat states of some steps: recorded ones, or with events the saved ones and the mean size."""
    state, spec = call.spec.field.state, call.spec
    if spec.events is None:
        meshed = replace(
            call, spec=replace(spec, sensealg=DiscreteAdjoint(), throw=False, width=None), emit_record=True
        )
        rows, kept, extent, _ = (np.asarray(x) for x in flow(meshed, *operands)[-RECORD:])
        rows, kept = rows.reshape(len(rows), FIELDS), kept[:, : state.size]
        used = np.flatnonzero(rows[: int(extent[0]), 2] != 0)
        times, steps, kept = rows[used, 0], rows[used, 2], kept[used]
    else:
        kept = (
            np.asarray(jax.vmap(lambda *x: state.pack(list(x)))(*map(jnp.asarray, u))) if len(t) else np.zeros((0, 1))
        )
        times, span = np.asarray(t), float(operands[call.i_t1]) - float(operands[call.i_t0])
        steps = np.full(len(times), span / max(int(counts[0]), 1))
    ok = np.isfinite(times) & np.all(np.isfinite(kept), axis=1)
    chosen = np.flatnonzero(ok)
    if len(chosen) > STEPS:
        chosen = chosen[np.linspace(0, len(chosen) - 1, STEPS).astype(int)]
    return times[chosen], steps[chosen], kept[chosen]


def _eigenvalues(call: Call, operands, t, u) -> np.ndarray:
    """Of df/du, or of (df/du, M) the finite ones; for many states the largest by power iteration."""
    spec, field = call.spec, call.spec.field
    p, aux = operands[call.n_u : call.i_t0], operands[call.n_r : call.n_r + field.n_aux]
    t, u = jnp.asarray(t, field.state.real_dtype), jnp.asarray(u)
    if not u.size or not field.has_forward_mode:
        return np.zeros(0)
    if u.size > DENSE:
        return _largest(spec, t, u, p, aux)
    jac = np.asarray(_jacobian(spec, t, u, p, aux))
    mass = spec.settings.method.mass
    if not np.all(np.isfinite(jac)):
        return np.zeros(0)
    lam = np.asarray(scipy.linalg.eigvals(jac, None if mass is None else mass.matrix))
    return lam[np.isfinite(lam)]


def _field(spec, p, aux):
    return lambda t, u: spec.field(t, u, p, aux)


@functools.partial(jax.jit, static_argnums=0)
def _jacobian(spec, t, u, p, aux):
    f = _field(spec, p, aux)
    return jax.jacfwd(lambda u: f(t, u), holomorphic=jnp.iscomplexobj(u))(u)


def _largest(spec, t, u, p, aux) -> np.ndarray:
    v = jax.random.normal(jax.random.key(0), u.shape, jnp.finfo(u.dtype).dtype).astype(u.dtype)
    return np.asarray(_power(spec, t, u, p, aux, v))[None]


@functools.partial(jax.jit, static_argnums=0)
def _power(spec, t, u, p, aux, v):
    """The Rayleigh quotient after 20 products."""
    f = _field(spec, p, aux)
    times = lambda v: jax.jvp(lambda u: f(t, u), (u,), (v,))[1]
    unit = lambda v: v / jnp.maximum(jnp.linalg.norm(v), jnp.finfo(v.dtype).tiny)
    v = jax.lax.fori_loop(0, 20, lambda _, v: unit(times(v)), unit(v))
    return jnp.vdot(v, times(v))


def _ratio(lam: np.ndarray) -> float:
    real = np.real(lam)
    sizes = np.abs(real[real < 0])
    sizes = sizes[sizes > 1e-14 * np.max(sizes, initial=0.0)]
    return float(sizes.max() / sizes.min()) if sizes.size > 1 else np.nan


def _damped(lam: np.ndarray) -> bool:
    """Whether the largest eigenvalue decays more than it oscillates."""
    if not lam.size:
        return False
    largest = lam[np.argmax(np.abs(lam))]
    return bool(largest.real < -abs(largest.imag))


def _worst(call: Call, operands, u) -> tuple[str, float]:
    state = call.spec.field.state
    tight = list(operands)
    reltol, abstol = (np.asarray(operands[call.i_t1 + i]) for i in (1, 2))
    tight[call.i_t1 + 1], tight[call.i_t1 + 2] = jnp.asarray(reltol / 10), jnp.asarray(abstol / 10)
    quiet = replace(call, spec=replace(call.spec, throw=False))
    right = flow(quiet, *tight)[: call.n_u]
    m = np.shape(right[0])[0] if right else 0
    if not state.size or not m or np.shape(u[0])[0] != m:
        return "none", np.nan
    pack = jax.vmap(lambda *x: state.pack(list(x)))
    got, want = (np.asarray(pack(*map(jnp.asarray, x))) for x in (u, right))
    error = np.abs(got - want) / (abstol + reltol * np.abs(want))
    if not np.any(np.isfinite(error)):
        return "none", np.nan
    i = int(np.argmax(np.nanmax(np.where(np.isfinite(error), error, 0), axis=0)))
    return component(call.spec, i), float(np.nanmax(error[:, i]))


def _suggestion(call: Call, stiff: bool, stiffness: np.ndarray, rejected: float) -> str:
    spec = call.spec
    method, n = spec.settings.method, spec.field.state.size
    good = "Rodas5P()" if n <= DENSE else "FBDF()"
    usual = float(np.median(stiffness)) if len(stiffness) else 1.0
    if method.mass is not None and method.mass.singular:
        large = n > DENSE and not isinstance(method.tableau, BdfTableau)
        return f"{'FBDF()' if large else repr(spec.alg)}: the equations are partly algebraic"
    if stiff and not method.implicit:
        return f"{good}: the steps are held by stability, not by accuracy; AutoTsit5(Rodas5P()) where that changes"
    if method.implicit and usual < 1 / 2:
        return "Tsit5() or Vern7(): the problem is not stiff at these tolerances, explicit steps cost less"
    if rejected > 0.3:
        return f"{spec.alg!r}, with jumps of f declared (discontinuities=, events): many steps are rejected"
    if not method.implicit and method.tableau.order < 6 and 0 < usual < 0.05:
        return "Vern9(): the steps are very short for the problem, a higher order takes longer ones"
    return f"{spec.alg!r} suits the problem"
