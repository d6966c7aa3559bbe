"""One step of any method: the stages by its family, and what all families do with them.

    u1 = u + dt sum_i b_i k_i,    u(t + theta dt) = u + dt sum_i b_i(theta) k_i

The backward differentiation formulas differ: their state z holds the past too (see `bdf`), their one "stage" is the
next u itself, and their mode is the order in use.

Owns: the choice of the family, complex states of the implicit ones, methods that switch between two. Must not know:
loops, controllers, adjoints.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..status import ReturnCode
from . import bdf, esdirk, explicit, linear, rosenbrock
from .explicit import combine, stage_times
from .linear import DENSE, Jacobian, Linear, Mass, parts_of
from .tableaus import AutoSwitch, BdfTableau, EsdirkTableau, RosenbrockTableau, Tableau

NONSTIFF, STIFF = 0, 1  # the modes of a method that switches
NOISE = 8  # units of rounding in u that an error estimate cannot be told from


AUTO = 1024  # mode and count in one number, which rows of a record hold exactly


def steady(mode):
    """The number of a mode for which nothing speaks against it."""
    return mode * AUTO


def mode_of(auto):
    """Which of its two methods a method that switches uses, which order a BDF method; NONSTIFF for all others."""
    return (auto // AUTO).astype(jnp.int32)


class System(NamedTuple):
    """The equation M u' = f(t, u) of one lane, as a step sees it.

    jacobian(t, u) : the `Jacobian` of f, or of its implicit part
    parts : (implicit, explicit) parts of f, or None
    tol : (abstol, reltol), to which stage equations are solved
    """

    f: Callable
    jacobian: Callable
    parts: tuple[Callable, Callable] | None = None
    tol: tuple = (1e-9, 1e-6)


def make_system(f: Callable, *, tol=(1e-9, 1e-6), matrix: Callable | None = None, parts=None) -> System:
    """The system of f(t, u), its Jacobian by forward mode, or `matrix(t, u)` as the user gave it."""
    implicit = f if parts is None else parts[0]

    def jacobian(t, u):
        if matrix is not None:
            return Jacobian(_no_products, matrix=jax.lax.stop_gradient(matrix(t, u)))
        return Jacobian(lambda x: jax.jvp(lambda u: implicit(t, u), (u,), (x,))[1])

    return System(f, jacobian, parts, tol)


def _no_products(x):
    raise AssertionError("a Jacobian that was given is not multiplied")


@dataclass(frozen=True)
class Method:
    """A method as it is compiled: its tableau, the mass matrix, the linear solver, the operations in f."""

    tableau: Any
    mass: Mass | None = None
    linear: Linear = DENSE
    operations: int = 0

    @property
    def implicit(self) -> bool:
        return not isinstance(self.tableau, Tableau)

    @property
    def implicit_only(self) -> bool:
        """Whether every step is implicit, and may have a mass matrix."""
        return isinstance(self.tableau, (RosenbrockTableau, EsdirkTableau, BdfTableau))

    @property
    def multistep(self) -> bool:
        """Whether its state holds the past."""
        return isinstance(self.tableau, BdfTableau)

    def memory(self, n: int) -> int:
        """The size of what it carries from step to step, for states (n,)."""
        return bdf.memory(n) if self.multistep else n

    def states(self, size: int) -> int:
        """n of the size of what it carries."""
        return (size - bdf.PAST) // bdf.ROWS if self.multistep else size

    @property
    def roll(self) -> bool:
        """Whether explicit stages are a loop: for a large field or many stages, unrolled code takes long to compile."""
        return self.operations * (self.tableau.stages + self.tableau.n_extra) > explicit.ROLL_ABOVE

    @property
    def error_order(self) -> int:
        """The order k of the error estimate's decay with the step size."""
        t = self.tableau
        return t.order if t.b_err_low is not None else min(t.order, t.embedded_order or t.order) + 1


class Stages(NamedTuple):
    """k (stages, n); the error estimate (n,) where it is no sum over k, else None; 0 or why they could not be had;
    evaluations of f; factorisations; the largest rate |J| where the method switches, else None; what the next step is
    given as `known`."""

    k: Any
    err: Any = None
    code: Any = 0
    nf: Any = 0
    nfactor: Any = 0
    rate: Any = None
    work: Any = None


def stages(method: Method, system: System, t, t_lo, u, dt, known, t_stop, mode, *, exact: bool = True) -> Stages:
    """The main stages of a step from (t + t_lo, u).

    known is the first one of an explicit method, or None; of a BDF method its `bdf.Work` with a `bdf.Known` or None,
    with `exact` the solution itself. With `exact`, implicit stages have derivatives of every order, by the implicit
    function theorem.
    """
    tableau = method.tableau
    if isinstance(tableau, Tableau):
        k1 = system.f(t, u) if known is None else known
        k = explicit.stages(tableau, system.f, t, t_lo, u, dt, k1, t_stop, roll=method.roll)
        return Stages(k, nf=tableau.stages - int(tableau.fsal))
    if isinstance(tableau, AutoSwitch):
        return _switching(method, system, t, t_lo, u, dt, t_stop, mode, exact)
    if isinstance(tableau, BdfTableau):
        return _multistep(method, system, t, t_lo, u, dt, known, t_stop, mode, exact)
    if method.mass is not None and method.mass.singular:
        # a step of no length, of a lane that waits, has no use for k, which must be finite all the same: not so by M
        dt = jnp.where(dt == 0, 1e-8 * jnp.maximum(jnp.abs(t), 1e-3), dt)
    if jnp.iscomplexobj(u):
        return _of_real(method, system, t, t_lo, u, dt, t_stop, exact)
    if isinstance(tableau, RosenbrockTableau):
        k, ok = rosenbrock.stages(method, system, t, t_lo, u, dt, t_stop, exact=exact)
        code = jnp.where(_solved(method, k), 0, int(ReturnCode.NewtonFailure))
        code = jnp.where(ok, code, int(ReturnCode.SingularMatrix))
        return Stages(k, code=code, nf=tableau.stages + 1, nfactor=1)
    assert isinstance(tableau, EsdirkTableau)
    k, err, solved, ok, nf = esdirk.stages(method, system, t, t_lo, u, dt, t_stop, exact=exact)
    code = jnp.where(solved & _solved(method, k), 0, int(ReturnCode.NewtonFailure))
    return Stages(k, err, jnp.where(ok, code, int(ReturnCode.SingularMatrix)), nf, 1)


def _solved(method: Method, k):
    """Whether linear systems were solved; an iteration that does not get there gives NaN."""
    return jnp.all(jnp.isfinite(k)) if method.linear.kind == "krylov" else True


def _of_real(method: Method, system: System, t, t_lo, u, dt, t_stop, exact: bool) -> Stages:
    """Stages of a complex state by those of its real and imaginary parts."""
    split, join = parts_of(u.dtype)
    own, inner = in_parts(method, system, u.dtype)
    out = stages(own, inner, t, t_lo, split(u), dt, None, t_stop, NONSTIFF, exact=exact)
    return out._replace(k=join(out.k), err=None if out.err is None else join(out.err))


def in_parts(method: Method, system: System, dtype) -> tuple[Method, System]:
    """The method and the equation of the real and imaginary parts of a complex state, as f need not be holomorphic."""
    split, join = parts_of(dtype)
    real = lambda f: lambda t, x: split(f(t, join(x)))
    parts = None if system.parts is None else (real(system.parts[0]), real(system.parts[1]))
    twice = lambda tol: tol if jnp.ndim(tol) == 0 else jnp.concatenate([tol, tol])
    inner = make_system(real(system.f), tol=tuple(map(twice, system.tol)), parts=parts)
    krylov = method.linear.kind == "krylov"
    own = replace(
        method,
        mass=None if method.mass is None else method.mass.blocks(2),
        linear=replace(method.linear, sparsity=None) if krylov else DENSE,
    )
    return own, inner


# ---------------------------------------------------------------- BDF methods


def _real_parts(method: Method, system: System, dtype) -> tuple[Method, System]:
    """What solves the equation of a BDF step, which is real."""
    if system.parts is not None:
        system = make_system(system.f, tol=system.tol)
    return in_parts(method, system, dtype) if jnp.issubdtype(dtype, jnp.complexfloating) else (method, system)


def _multistep(method: Method, system: System, t, t_lo, z, dt, known, t_stop, mode, exact: bool) -> Stages:
    """The next u as k (1, n)."""
    own, inner = _real_parts(method, system, z.dtype)
    split, join = parts_of(z.dtype)
    t1, eq, u = _equation(method, t, t_lo, z, dt, t_stop, mode)
    if exact:
        return Stages(join(bdf.linearise(own.linear, own.mass, inner, t1, eq, split(known)))[None])
    work, solution = known
    solution = None if solution is None else solution._replace(value=split(solution.value))
    v, code, count, work = bdf.iterate(own.linear, own.mass, inner, t1, u, eq, work, solution)
    code = jnp.where(_solved(method, v), code, int(ReturnCode.NewtonFailure))
    return Stages(join(v)[None], code=code, nf=count, work=work)


def _equation(method: Method, t, t_lo, z, dt, t_stop, mode):
    """The end of a BDF step, its equation and the state at its start, in real parts."""
    split, n = parts_of(z.dtype)[0], (z.size - bdf.PAST) // bdf.ROWS
    t1 = stage_times(method.tableau, t, t_lo, dt, t_stop)[0]
    eq = bdf.equation(method.tableau, z, n, dt, mode)
    return t1, bdf.Equation(split(eq.guess), split(eq.base), jnp.real(eq.c)), split(z[:n])


def renewal(method: Method, system: System, t, t_lo, z, dt, t_stop, mode):
    """How the matrix that BDF steps keep is renewed: functions of `bdf.Work` that find J, and factors with it."""
    own, inner = _real_parts(method, system, z.dtype)
    t1, eq, _ = _equation(method, t, t_lo, z, dt, t_stop, mode)
    jacobian = lambda work: bdf.renew_jacobian(own.linear, inner.jacobian, t1, eq.guess, work)
    return jacobian, lambda work: bdf.renew_factors(own.linear, own.mass, eq.c, work)


def no_work(method: Method, system: System, t, u):
    """What a BDF step is given where none went before it."""
    own, inner = _real_parts(method, system, u.dtype)
    return bdf.empty(own.linear, inner.jacobian, t, parts_of(u.dtype)[0](u))


def remember(method: Method, u, slope, dt, blocks: int):
    """What the method carries from step to step, of u (blocks n,) and u' at a start or after a jump."""
    return bdf.remember(u, slope, dt, blocks) if method.multistep else u


def present(method: Method, z, size: int):
    """u (size,) of what the method carries (.., blocks N)."""
    return bdf.present(z, size) if method.multistep else z


def plan(method: Method, z, dt, k, abstol, reltol, controlled, auto) -> bdf.Plan:
    """How a BDF step is judged and what follows: by the first block where `controlled` is its size, else by all."""
    size, mode = k.shape[-1], mode_of(auto)
    rows, ages = bdf.read(z, size)
    n = controlled or size
    judged = jnp.stack([x[:n] for x in bdf.estimates(method.tableau, z, dt, k, mode)])
    blocks = (z.size - bdf.ROWS * size) // bdf.PAST
    shape = (blocks if controlled is None else 1, -1)
    of_blocks = lambda tol: tol if jnp.ndim(tol) == 0 else tol[:n].reshape(shape)
    norm = scaled_norm(rows[0][:n].reshape(shape), k[0, :n].reshape(shape), of_blocks(abstol), of_blocks(reltol))
    norms = [norm(x.reshape(shape)) for x in judged]
    return bdf.plan(method.tableau, norms, mode, auto % AUTO, ages[1] == 0)


# ---------------------------------------------------------------- methods that switch


def _switching(method: Method, system: System, t, t_lo, u, dt, t_stop, mode, exact: bool) -> Stages:
    """The stages of the method in use, with an estimate of the largest rate |J| at which it was used."""
    tableau, rows = method.tableau, method.tableau.stages
    own = lambda tableau: replace(method, tableau=tableau)
    full = lambda k: jnp.pad(k, [(0, rows - k.shape[0]), (0, 0)])

    def nonstiff():
        out = stages(own(tableau.nonstiff), system, t, t_lo, u, dt, None, t_stop, mode, exact=exact)
        # v = J (difference of the last two stages' states) and J v: two steps of the power method
        size = lambda x: jnp.sqrt(jnp.sum(jnp.square(jnp.abs(x))))
        v, u1 = out.k[-1] - out.k[-2], advance(own(tableau.nonstiff), u, dt, out.k, mode)
        length = size(v)
        t1 = jnp.where(dt >= 0, jnp.minimum(t + dt, t_stop), jnp.maximum(t + dt, t_stop))
        v = v / jnp.where(length == 0, 1, length).astype(v.dtype)
        rate = size(jax.jvp(lambda u: system.f(t1, u), (u1,), (v,))[1])
        zero = jnp.zeros((), jnp.int32)
        err = error_estimate(own(tableau.nonstiff), dt, out, mode)
        return Stages(full(out.k), err, zero, zero + out.nf + 2, zero, rate)

    def stiff():
        out = stages(own(tableau.stiff), system, t, t_lo, u, dt, None, t_stop, mode, exact=exact)
        rows = linear.row_sums(method.linear, system.jacobian(t, u), u)
        rate = rows[jnp.argmax(rows)] if u.size else jnp.zeros((), jnp.finfo(u.dtype).dtype)
        whole = lambda x: jnp.asarray(x, jnp.int32)
        err = error_estimate(own(tableau.stiff), dt, out, mode)
        return Stages(full(out.k), err, whole(out.code), whole(out.nf), whole(out.nfactor), rate)

    return jax.lax.cond(mode == STIFF, stiff, nonstiff)


def extra_stages(method: Method, f, t, t_lo, u, dt, k, t_stop):
    """All stages, those that only dense output needs included."""
    if method.tableau.n_extra == 0:
        return k
    return explicit.extra_stages(method.tableau, f, t, t_lo, u, dt, k, t_stop, roll=method.roll)


def velocity(method: Method, f: Callable, t, u, *, exact: bool = True):
    """u' at (t, u)."""
    if method.mass is None:
        return f(t, u)
    if not jnp.iscomplexobj(u):
        return linear.velocity(method.linear, method.mass, f, t, u, exact=exact)
    split, join = parts_of(u.dtype)
    real = lambda t, x: split(f(t, join(x)))
    return join(linear.velocity(DENSE, method.mass.blocks(2), real, t, split(u), exact=exact))


def weights(method: Method, dtype, mode):
    """b (stages,)."""
    return _of_mode(method, method.tableau.B, dtype, mode)


def dense_weights(method: Method, theta, dtype, mode):
    """b_i(theta) of all stages (stages + n_extra,), in powers of theta - 1/2, which lose fewer digits."""
    centred = _of_mode(method, method.tableau.B_CENTRED, dtype, mode)
    x = theta.astype(dtype) - 0.5
    total = jnp.zeros(centred.shape[0], dtype)
    for column in reversed(centred.T):
        total = total * x + jnp.asarray(column, dtype)
    return jnp.where(theta == 0, 0, total)


def _of_mode(method: Method, array, dtype, mode):
    """A tableau's array, that of the mode where the method switches."""
    array = np.asarray(array, dtype)
    if not isinstance(method.tableau, AutoSwitch):
        return array
    return jnp.where(mode == STIFF, array[STIFF], array[NONSTIFF])


def advance(method: Method, u, dt, k, mode):
    """u1 = u + dt sum_i b_i k_i."""
    if method.multistep:
        return bdf.advance(u, dt, k)
    return u + dt.astype(u.dtype) * combine(weights(method, u.dtype, mode), k)


def interpolate(method: Method, u, dt, k, theta, mode):
    """The dense output u(t + theta dt), theta in [0, 1], from all stages k (stages + n_extra, n)."""
    if method.multistep:
        return bdf.interpolate(u, dt, k, theta, mode)
    return u + dt.astype(u.dtype) * combine(dense_weights(method, theta, u.dtype, mode), k)


def error_estimate(method: Method, dt, out: Stages, mode):
    """The estimate of the step's error (n,); none of a BDF step, which `plan` judges."""
    if method.multistep:
        return jnp.zeros_like(out.k[0])
    if out.err is not None:
        return out.err
    return dt.astype(out.k.dtype) * combine(_of_mode(method, method.tableau.B_ERR, out.k.dtype, mode), out.k)


def scaled_norm(u, u1, abstol, reltol) -> Callable:
    """err -> the root mean square of err_i / (abstol_i + reltol_i max(|u_i|, |u1_i|)).

    What lies below the rounding errors of u counts as them: step sizes that followed noise would differ between
    programs that compute the same thing.
    """
    if u.size == 0:
        return lambda err: jnp.zeros((), jnp.finfo(u.dtype).dtype)
    size = jnp.maximum(jnp.abs(u), jnp.abs(u1))
    scale = abstol + reltol * size
    noise = jnp.minimum(NOISE * jnp.finfo(u.dtype).eps * size, 0.1 * scale)
    return lambda err: jnp.sqrt(jnp.mean(jnp.square(jnp.maximum(jnp.abs(err), noise) / scale)))


def error_norm(method: Method, u, u1, dt, out: Stages, abstol, reltol, seen: slice, mode):
    """The norm of the error estimate over the components `seen`, in parts of the tolerance."""
    norm = scaled_norm(u[seen], u1[seen], abstol, reltol)
    err = norm(error_estimate(method, dt, out, mode)[seen])
    if method.tableau.b_err_low is None:
        return err
    # Hairer, Norsett, Wanner, section II.10, eq. (10.17): the two estimators of DOP853 in one
    low = norm(dt.astype(u.dtype) * combine(np.asarray(method.tableau.B_ERR_LOW, u.dtype), out.k)[seen])
    denominator = jnp.sqrt(jnp.square(err) + 0.01 * jnp.square(low))
    return jnp.where(denominator == 0, 0.0, jnp.square(err) / jnp.where(denominator == 0, 1.0, denominator))
