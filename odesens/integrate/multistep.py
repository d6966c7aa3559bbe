"""What the time loop does for BDF methods: begin, renew the matrix that is kept, judge a step, choose the next one.

A lane's u holds the past too, its auto is order and count, its work is what steps keep; see `methods.bdf`. Owns: these
parts of a lane. Must not know: the loop itself, adjoints.

The matrix is renewed outside of the arithmetic that is mapped over the lanes: a branch there would be taken for all.
"""

import jax.numpy as jnp

from ..extension import while_loop
from ..methods import bdf
from ..methods import step as one_step
from ..methods.bdf import PERIOD as PERIOD
from ..methods.step import AUTO, mode_of
from .lanes import Lanes, choose


def restart(method, system, u, slope, dt, t, blocks: int):
    """u (blocks n,), auto and work of one lane at a start or after a jump, from the state, u' and the first step."""
    z = one_step.remember(method, u, slope, dt, blocks)
    work = one_step.no_work(method, system, t, u[: u.size // blocks])
    return z, jnp.asarray(one_step.steady(1), jnp.int32), work


def solution(mesh, lanes: Lanes, i, n: int) -> bdf.Known:
    """The solution of step i of a mesh: final where the rows of the record are its steps."""
    value = lanes.row(mesh.states, jnp.minimum(i + 1, mesh.size))[..., :n]
    return bdf.Known(value, lanes.spread(mesh.stride == 1))


def attempt(method, task, system, p, lane, dt, t_stop, tol, known: bdf.Known | None):
    """The solution of one lane's step: that of the state by iteration, of its tangents by linearising there."""
    mode, block = mode_of(lane.auto), lane.u[: lane.u.size // task.blocks]
    given = lane.work, known
    out = one_step.stages(method, system, lane.t, lane.t_lo, block, dt, given, t_stop, mode, exact=False)
    if task.stages is None:
        return out
    whole = task.stages(p, lane.t, lane.t_lo, lane.u, dt, t_stop, mode, tol, out.k[0])
    return out._replace(k=whole.k)


def renewed(method, at, lanes: Lanes, axes, args, lane, known: bdf.Known | None):
    """The lanes with J and factors renewed where a step needs that; at(*args, lane) is its (system, z, dt, t_stop)."""
    if method.linear.kind == "krylov":
        return lane

    def wants(args, lane, known):
        _, _, dt, _ = at(*args, lane)
        c = bdf.leading(method.tableau, dt, mode_of(lane.auto))
        needed = (lane.code < 0) if known is None else (lane.code < 0) & ~known.final
        return tuple(x & needed for x in bdf.wants(lane.work, c))

    def renew(which: int):
        def one(args, lane, work):
            system, z, dt, t_stop = at(*args, lane)
            return one_step.renewal(method, system, lane.t, lane.t_lo, z, dt, t_stop, mode_of(lane.auto))[which](work)

        return lanes.map(one, (axes, 0, 0))

    def where(flag, new, old):
        if lanes.size is None:  # here only where it is wanted
            return new
        return choose(flag, new, old)

    flags, work = lanes.map(wants, (axes, 0, 0))(args, lane, known), lane.work
    for which, flag in enumerate(flags):
        body = lambda s, which=which: (where(s[1], renew(which)(args, lane, s[0]), s[0]), jnp.zeros_like(s[1]))
        work, _ = while_loop(lambda s: jnp.any(s[1]), body, (work, flag))
    return lane._replace(work=work, nfactor=lane.nfactor + flags[1].astype(jnp.int32))


def counted(trial, new):
    """The lanes after a step that any of them accepted: they are numbered by one clock."""
    clock = new.work.clock + jnp.any(trial.accepted).astype(jnp.int32)
    return trial, new._replace(work=new.work._replace(clock=clock))


def judge(settings, lane, dt, out, options) -> bdf.Plan:
    """The plan of a step of one lane; an equation that was not solved is tried again with J renewed, then with less."""
    method = settings.method
    seen = settings.controlled
    plan = one_step.plan(method, lane.u, dt, out.k, options.abstol, options.reltol, seen, lane.auto)
    failed, mode = out.code != 0, mode_of(lane.auto)
    retry = jnp.where(failed, jnp.where(bdf.outdated(out.work), 1.0, 0.25), plan.retry)
    retry = jnp.where(jnp.isfinite(retry), retry, 0.1)
    return plan._replace(retry=retry, retry_mode=jnp.where(failed, mode, plan.retry_mode))


def after(settings, lane, new, out, plan: bdf.Plan, accepted):
    """`new` with order, count and work after a step of one lane."""
    mode, count, most = mode_of(lane.auto), lane.auto % AUTO, settings.method.tableau.order
    if settings.adaptive:
        mode_1, count_1 = plan.mode, plan.count
    else:  # with steps that are given, the highest order as soon as the past is long enough
        rise = (count + 1 > mode) & (mode < most)
        mode_1, count_1 = mode + rise, jnp.where(rise, 0, jnp.minimum(count + 1, most + 1))
    again = jnp.where(plan.retry_mode == mode, count, 0)
    auto = jnp.where(accepted, mode_1 * AUTO + count_1, plan.retry_mode * AUTO + again).astype(jnp.int32)
    stale = (out.code != 0) & bdf.outdated(out.work)
    work = out.work._replace(own=out.work.own & ~accepted, stale=stale)
    return new._replace(auto=jnp.where(lane.code < 0, auto, lane.auto), work=work)
