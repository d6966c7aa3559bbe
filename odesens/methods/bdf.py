"""One step of the backward differentiation formulas, as a one-step map of the state and its past.

The state of a step is one vector z (N,), N = 6 n + 5: u and the five states before it, the last first, then the times
that have passed since those. With h, the order q and these times as plain numbers, a step solves one equation for the
next state v,

    M (base - v) + c f(t + h, v) = 0,    c = h / alpha_q,    base = sum_(j <= q) w_j u_(n-j)

(`BdfTableau`), and puts it before the others. So its derivative is the derivative of that equation, and the recorded
solve that of a one-step method: T and A of the flow need z, h and q of every step, and v, at which the equation is
linearised, is in the next z. A derivative of the state has a z of its own, whose times are zero; several are blocks.

The matrix M - c J is factored seldom: `Work` keeps it from step to step. Owns: the layout of z, the equation and its
iteration, dense output, the choice of order and step size, when J and its factors are renewed. Must not know: loops,
adjoints.
Sources: `BdfTableau`; Hindmarsh et al., SUNDIALS, ACM TOMS 31 (2005), section 2.1, for the tests of the iteration, for
when a matrix is renewed and for how order and step size are chosen.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..extension import while_loop
from ..status import ReturnCode
from .explicit import combine
from .linear import Linear, Mass, by_factors, columns_of, factorise, mass_columns, of_map, solve_exactly
from .tableaus.bdf import PAST, BdfTableau

ROWS = PAST + 1
ITERATIONS = 4  # most Newton iterations with a matrix that is kept
KAPPA = 0.05  # the iteration's error, in parts of the tolerance
PERIOD = 16  # steps after which J and factors are renewed in any case; see `Work`
INEXACT = 1e-4  # relative residual of GMRES that an iteration needs, being one itself
LEVELS, LEVEL_RANGE = 16, (-64, 256)  # factors of the step size are 2^(i/16)
DRIFT = 0.3  # relative change of c after which the factors are
ITERATING, CONVERGED, DIVERGED = 0, 1, 2


# ---------------------------------------------------------------- the state


def memory(n: int) -> int:
    """The size N of z for states (n,)."""
    return ROWS * n + PAST


def remember(u, slope, dt, blocks: int):
    """z at a start, or after a jump, from u (blocks n,), u' and the first step: the one state past is u - dt u'.

    That serves estimates alone: order 1, which a start has, needs no state of the past, and order 2 comes after two
    steps. Nothing of the future depends on `slope` and dt but through order and step sizes.
    """
    u, slope = u.reshape(blocks, -1), slope.reshape(blocks, -1)
    zeros = jnp.zeros_like(u)
    ages = jnp.zeros((blocks, PAST), u.dtype).at[:1, 0].set(dt.astype(u.dtype))
    past = u - dt.astype(u.dtype) * slope
    return jnp.concatenate([u, past, *[zeros] * (PAST - 1), ages], axis=1).reshape(-1)


def read(z, size: int):
    """The states (blocks n,) = (size,) in z, the last first, and the times (5,) since those before it."""
    blocks = (z.size - ROWS * size) // PAST
    n = size // max(blocks, 1)
    z = z.reshape(blocks, ROWS * n + PAST)
    ages = jax.lax.stop_gradient(jnp.real(z[0, ROWS * n :]))
    return [z[:, i * n : (i + 1) * n].reshape(-1) for i in range(ROWS)], ages


def present(z, size: int):
    """u (blocks n,) = (size,) of z (.., blocks N)."""
    blocks = (z.shape[-1] - ROWS * size) // PAST
    n = size // max(blocks, 1)
    return z.reshape(*z.shape[:-1], blocks, -1)[..., :n].reshape(*z.shape[:-1], size)


def advance(z, dt, k):
    """z after the step whose solution is k (1, blocks n)."""
    size = k.shape[-1]
    blocks = (z.size - ROWS * size) // PAST
    rows, ages = read(z, size)
    ages = dt.astype(ages.dtype) + jnp.concatenate([jnp.zeros_like(ages[:1]), ages[:-1]])
    tail = jnp.concatenate([ages[None], jnp.zeros((blocks - 1, PAST), ages.dtype)]) if blocks > 1 else ages[None]
    parts = [x.reshape(blocks, -1) for x in (k[0], *rows[:-1])]
    return jnp.concatenate([*parts, tail.astype(z.dtype)], axis=1).reshape(-1)


def follows(z, dt, after):
    """Whether z (2^k, N) and a step of length dt lead to the past that `after` (2^k, N) has; see `sensitivity`.

    Steps that were made again from a checkpoint are the recorded ones but for rounding; should a decision turn on
    that, the adjoint of the recorded past would be given to another one.
    """
    start = z.shape[1] - PAST
    old, new = jnp.real(z[0, start:]), jnp.real(after[0, start:])
    expected = dt.astype(old.dtype) + jnp.concatenate([jnp.zeros_like(old[:1]), old[:-1]])
    return (dt == 0) | jnp.all(jnp.abs(new - expected) <= 1e-3 * jnp.sum(jnp.abs(expected)))


# ---------------------------------------------------------------- coefficients


def nodes(ages, dt):
    """(t_i - t) / dt (7,) of the step's end, its start and the past."""
    h = jnp.where(dt == 0, 1, dt).astype(ages.dtype)
    return jnp.concatenate([jnp.stack([jnp.ones_like(h), jnp.zeros_like(h)]), -ages / h])


def _others(x, used):
    """x_i - x_j for the used i != j, one elsewhere (a product's neutral element)."""
    pair = used[:, None] & used[None, :] & ~np.eye(x.shape[0], dtype=bool)
    return jnp.where(pair, x[:, None] - x[None, :], 1)


def lagrange(x, used, at):
    """The values at `at` of the polynomials that are one at one of the used nodes x and zero at the others."""
    away = jnp.where(used[None, :] & ~np.eye(x.shape[0], dtype=bool), at - x[None, :], 1)
    return jnp.where(used, jnp.prod(away / _others(x, used), axis=1), 0)


def divided_difference(x, used):
    """The weights of the divided difference of all used nodes."""
    return jnp.where(used, 1 / jnp.prod(_others(x, used), axis=1), 0)


def interpolate(z, dt, k, theta, mode):
    """The polynomial of degree q through the new state and the q before it, at theta in [0, 1]."""
    rows, ages = read(z, k.shape[-1])
    x = nodes(ages, dt)
    weights = lagrange(x, np.arange(ROWS + 1) <= mode, theta.astype(x.dtype))
    return combine(weights.astype(z.dtype), [k[0], *rows])


class Equation(NamedTuple):
    """M (base - v) + c f(t1, v) = 0, and where its iteration starts."""

    guess: Any
    base: Any
    c: Any


def equation(tableau: BdfTableau, z, n: int, dt, mode) -> Equation:
    """The equation of a step of order `mode`."""
    rows, ages = read(z, n)
    x, used = nodes(ages, dt)[1:], np.arange(ROWS) <= mode
    alpha = jnp.asarray(tableau.ALPHA, x.dtype)[mode]
    predict = lagrange(x, used, 1)
    inverse = jnp.where(used, 1 / (1 - x), 0)
    slope = predict * (jnp.sum(inverse) - inverse)
    mix = lambda weights: combine(weights.astype(z.dtype), rows)
    return Equation(mix(predict), mix(predict - slope / alpha), leading(tableau, dt, mode).astype(z.dtype))


def leading(tableau: BdfTableau, dt, mode):
    """c = h / alpha_q; a lane that waits has a step of no length, for which all must stay finite."""
    h = jnp.where(dt == 0, 1e-8, dt)
    return h / jnp.asarray(tableau.ALPHA, h.dtype)[mode]


# ---------------------------------------------------------------- the matrix that is kept


class Work(NamedTuple):
    """What the iteration keeps from step to step.

    columns : of J when it was found; factors : of M - c J with that J and the c kept here
    rate : of convergence, as seen last
    clock : steps since the start; where it is a multiple of `PERIOD` nothing kept is used, so that a solve that is
        taken up there again finds the same
    own : whether J was found for the step that is tried; stale : whether it must be; njacs : how often it was found
    """

    columns: Any
    factors: Any
    c: Any
    rate: Any
    clock: Any
    own: Any
    stale: Any
    njacs: Any


def empty(linear: Linear, jacobian: Callable, t, u) -> Work:
    """Nothing yet: the first step finds everything; `jacobian(t, u)` is used for shapes alone."""
    one, zero, no = jnp.ones((), jnp.finfo(u.dtype).dtype), jnp.zeros((), jnp.int32), jnp.zeros((), bool)

    def shapes(t, u):
        columns = columns_of(linear, jacobian(t, u), u)
        return columns, factorise(linear, columns)

    kept = ((), ()) if linear.kind == "krylov" else jax.eval_shape(shapes, t, u)
    columns, factors = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), kept)
    return Work(columns, factors, one, one, zero, no, no, zero)


def wants(work: Work, c):
    """Whether J and whether the factors are to be renewed for a step with this c."""
    new_j = work.stale | (work.clock % PERIOD == 0)
    return new_j, new_j | (jnp.abs(c.astype(work.c.dtype) / work.c - 1) > DRIFT)


def renew_jacobian(linear: Linear, jacobian: Callable, t1, guess, work: Work) -> Work:
    columns = columns_of(linear, jacobian(t1, guess), guess)
    yes = jnp.ones_like(work.own)
    return work._replace(columns=columns, own=yes, stale=~yes, njacs=work.njacs + 1)


def renew_factors(linear: Linear, mass: Mass | None, c, work: Work) -> Work:
    m = jnp.asarray(mass_columns(linear, mass, work.columns.shape[0]), work.columns.dtype)
    c = c.astype(work.c.dtype)
    return work._replace(factors=factorise(linear, m - c * work.columns), c=c, rate=jnp.ones_like(work.rate))


def outdated(work: Work):
    """Whether a failure of the iteration may be due to a matrix of other steps."""
    return ~work.own if jax.tree.leaves(work.columns) else jnp.zeros_like(work.own)


# ---------------------------------------------------------------- solving the equation


class Newton(NamedTuple):
    v: Any
    size: Any
    rate: Any
    count: Any
    state: Any


class Known(NamedTuple):
    """The solution of a step that was recorded, and whether it is to be taken as that."""

    value: Any
    final: Any


def _residual(mass: Mass | None, f: Callable, t1, eq: Equation):
    weigh = (lambda x: x) if mass is None else mass.times
    return lambda v: weigh(eq.base - v) + eq.c * f(t1, v)


def iterate(linear: Linear, mass: Mass | None, system, t1, u, eq: Equation, work: Work, known: Known | None):
    """v by simplified Newton iterations with the matrix that is kept: v, code, iterations, work."""
    residual = _residual(mass, system.f, t1, eq)
    abstol, reltol = system.tol
    scale = jnp.maximum(abstol + reltol * jnp.abs(u), jnp.finfo(u.dtype).tiny)
    norm = lambda d: jnp.sqrt(jnp.mean(jnp.square(d / scale))) if d.size else jnp.zeros((), d.dtype)
    if linear.kind == "krylov":
        jacobian = system.jacobian(t1, eq.guess)
        weigh = (lambda x: x) if mass is None else mass.times
        loose = replace(linear, rtol=max(linear.rtol, INEXACT))
        solver = of_map(loose, lambda x: weigh(x) - eq.c * jacobian.times(x), u)
        gain = jnp.ones((), u.dtype)
    else:
        solver = by_factors(linear, work.factors)
        gain = 2 / (1 + eq.c / work.c)  # what is best for the matrix of another c (SUNDIALS, eq. 2.9)

    def body(it: Newton) -> Newton:
        change = gain * solver.solve(residual(it.v))
        size = norm(change)
        first = it.count == 0
        rate = jnp.where(first, it.rate, jnp.maximum(0.3 * it.rate, size / jnp.where(it.size == 0, 1, it.size)))
        done = (size * jnp.minimum(rate, 1) <= KAPPA) | (size == 0)
        worse = (~first & (size > 2 * it.size)) | ~jnp.isfinite(size) | (it.count + 1 >= ITERATIONS)
        state = jnp.where(done, CONVERGED, jnp.where(worse, DIVERGED, ITERATING)).astype(jnp.int32)
        return Newton(it.v + change, size, rate, it.count + 1, state)

    zero = jnp.zeros((), jnp.int32)
    begin, guess = zero, eq.guess
    if known is not None:
        begin = jnp.where(known.final, CONVERGED, ITERATING).astype(jnp.int32)
        guess = jnp.where(known.final, known.value, guess)
    start = Newton(guess, jnp.zeros_like(work.rate), work.rate, zero, begin)
    end = while_loop(lambda it: it.state == ITERATING, body, start)
    code = jnp.where(end.state == CONVERGED, 0, int(ReturnCode.NewtonFailure))
    regular = solver.ok if known is None else solver.ok | known.final
    code = jnp.where(regular, code, int(ReturnCode.SingularMatrix))
    return end.v, code, end.count, work._replace(rate=end.rate)


def linearise(linear: Linear, mass: Mass | None, system, t1, eq: Equation, v):
    """The solution v as a function with derivatives of every order, by the implicit function theorem."""

    def linearised(times, b):
        return solve_exactly(times, of_map(linear, times, b), b)

    return jax.lax.custom_root(_residual(mass, system.f, t1, eq), v, lambda _, v: v, linearised)


# ---------------------------------------------------------------- order and step size


class Plan(NamedTuple):
    """How the step is judged: its error, 1 being the tolerance; the factor of the step size, order and count, where it
    is accepted and where not."""

    err: Any
    factor: Any
    mode: Any
    count: Any
    retry: Any
    retry_mode: Any


def estimates(tableau: BdfTableau, z, dt, k, mode):
    """The local errors (3, blocks n) of orders q - 1, q and q + 1; only those of orders 1 to 5 mean anything."""
    rows, ages = read(z, k.shape[-1])
    x = nodes(ages, dt)
    out = []
    for order in (mode - 1, mode, mode + 1):
        weights = divided_difference(x, np.arange(ROWS + 1) <= order + 1)
        out.append(combine((jnp.asarray(tableau.ERROR, x.dtype)[order] * weights).astype(z.dtype), [k[0], *rows]))
    return out


def plan(tableau: BdfTableau, norms, mode, count, first) -> Plan:
    """What to do after a step of order `mode` whose errors at orders q - 1, q, q + 1 have these norms.

    `count` accepted steps went before it since the order changed; `first`: it is the first after a start.
    """
    lower, same, higher = norms
    q = mode.astype(same.dtype)
    eta = lambda err, order, bias: 1 / ((bias * err) ** (1 / (order + 1)) + 1e-6)
    count = count + 1
    ready = count > mode
    down = jnp.where(ready & (mode > 1), eta(lower, q - 1, 6.0), 0)
    up = jnp.where(ready & (mode < tableau.order), eta(higher, q + 1, 10.0), 0)
    stay = eta(same, q, 6.0)
    best = jnp.maximum(stay, jnp.maximum(down, up))
    change = best >= 1.5
    new = jnp.where(best == stay, mode, jnp.where(best == down, mode - 1, mode + 1))
    new = jnp.where(change, new, mode)
    factor = jnp.where(change, jnp.minimum(best, jnp.where(first, 1e4, 10.0)), 1.0)
    count = jnp.where(new != mode, 0, jnp.where(ready, mode - 1, count))
    fewer = (mode > 1) & (lower < same)
    retry_mode = jnp.where(fewer, mode - 1, mode)
    retry = jnp.clip(jnp.where(fewer, eta(lower, q - 1, 6.0), stay), 0.1, 0.9)
    return Plan(same, rounded_down(factor), new, count, rounded_down(retry), retry_mode)


def rounded_down(factor):
    """The next lower of the numbers 2^(i/16): a step size is the same whatever the rounding errors of an estimate."""
    index = jnp.floor(LEVELS * jnp.log2(jnp.where(jnp.isfinite(factor), factor, 0.1)) + 1e-6).astype(jnp.int32)
    low, high = LEVEL_RANGE
    return jnp.asarray(2.0 ** (np.arange(low, high) / LEVELS), factor.dtype)[jnp.clip(index, low, high - 1) - low]
