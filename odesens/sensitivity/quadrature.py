"""`QuadratureAdjoint`: lam backwards with a record of its own, then the parameter integral by Gauss-Kronrod panels.

On each recorded backward step, int F_p^T lam dt is taken by the 7-15 point Gauss-Kronrod pair; where the pair's
difference exceeds the tolerance, the step's panels are halved, at most `HALVINGS` times. Owns: the backward record, the
quadrature. Must not know: the sweep.
Source: Piessens, de Doncker-Kapenga, Ueberhuber, Kahaner, QUADPACK (1983), routine QK15.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..extension import count_down, while_loop
from ..methods import explicit
from . import backward
from .augment import Flow
from .continuous import (
    Adjoint,
    lam_stages,
    lam_sweep,
    outputs,
    p_integral,
    prepare,
    recorded_step,
    state_at,
    state_pullback,
)

HALVINGS = 6

_X = (
    "0.991455371120812639206854697526329 0.949107912342758524526189684047851 0.864864423359769072789712788640926 "
    "0.741531185599394439863864773280788 0.586087235467691130294144691693013 0.405845151377397166906606412076961 "
    "0.207784955007898467600689403773245 0.0"
)
_KRONROD = (
    "0.022935322010529224963732008058970 0.063092092629978553290700663189204 0.104790010322250183839876322541518 "
    "0.140653259715525918745189590510238 0.169004726639267902826583426598550 0.190350578064785409913256402421014 "
    "0.204432940075298892414161999234649 0.209482141084727828012999174891714"
)
_GAUSS = (
    "0 0.129484966168869693270611432679082 0 0.279705391489276667901467771423780 0 0.381830050505118944950369775488975 "
    "0 0.417959183673469387755102040816327"
)


def gauss_kronrod():
    """Nodes on (0, 1), Kronrod weights, and Gauss weights (zero where a node belongs to Kronrod only)."""
    half = lambda text: np.array([float(x) for x in text.split()])
    x, kronrod, gauss = half(_X), half(_KRONROD), half(_GAUSS)
    mirror = lambda v: np.concatenate([v, v[-2::-1]])
    return (np.concatenate([-x, x[-2::-1]]) + 1) / 2, mirror(kronrod) / 2, mirror(gauss) / 2


class Backward(NamedTuple):
    """One record row for each backward step: times (rows, [lanes], 3), lam (rows, [lanes], N), its row of the mesh."""

    times: Any
    lam: Any
    mesh_row: Any
    size: Any


def adjoint(flow: Flow, w, wanted: list[int]):
    """The gradient of <w, D^k Phi> with respect to u0 ([lanes], n) and the wanted parameter leaves; and a code."""
    adj = prepare(flow, w, wanted)
    lam1 = flow.lanes.spread(jnp.zeros(adj.size, flow.u0.dtype))
    record = _empty(adj, lam1) if wanted else None
    sweep = lam_sweep(adj, _remember if wanted else None)
    lam, record, code = backward.run(sweep, lam1, flow.t0, flow.t1, flow.ts, jnp.max(adj.record.size), record)
    p_bar = integrate_panels(adj, record) if wanted else []
    return outputs(adj, lam, p_bar, code)


def _empty(adj: Adjoint, lam1) -> Backward:
    rows = adj.settings.max_steps + 1
    zero = jnp.zeros((), jnp.int32)
    times = jnp.zeros((rows, *adj.flow.t0.shape, 3), adj.flow.t0.dtype)
    return Backward(times, jnp.zeros((rows, *lam1.shape), lam1.dtype), jnp.zeros(rows, jnp.int32), zero)


def _remember(record: Backward, i, lane, trial, step) -> Backward:
    dt = jnp.where(trial.accepted, trial.dt, 0)
    times = jnp.stack([lane.t, lane.t_lo, dt], axis=-1)
    write = lambda buffer, value: jax.lax.dynamic_update_index_in_dim(buffer, value, record.size, 0)
    return record._replace(
        times=write(record.times, times),
        lam=write(record.lam, lane.u),
        mesh_row=write(record.mesh_row, i),
        size=record.size + jnp.any(trial.accepted).astype(jnp.int32),
    )


def integrate_panels(adj: Adjoint, record: Backward) -> list:
    """The parameter integral over all recorded backward steps."""
    lanes = adj.flow.lanes
    x, kronrod, gauss = gauss_kronrod()
    atol, rtol = jnp.max(adj.options.abstol), jnp.max(adj.options.reltol)

    def stages_of(params, times, lam, step):
        t, t_lo, dt = times
        f = lambda t, lam: -state_pullback(adj, t, state_at(adj, step, t), params, lam)
        k = explicit.stages(adj.settings.tableau, f, t, t_lo, lam, dt, f(t, lam), step.times[0], roll=adj.settings.roll)
        return lam_stages(adj, params, t, t_lo, lam, dt, k, step.times[0], step)

    def at_nodes(times, lam, k, step, low, width, weights):
        """Times, z and weighted lam at the nodes of the panel [low, low + width] of one lane's step."""
        t, t_lo, dt = times
        theta = low + width * jnp.asarray(x, dt.dtype)
        ts = t + (t_lo + theta * dt)
        value = jax.vmap(lambda c: explicit.interpolate(adj.settings.tableau, lam, dt, k, c))(theta)
        value = value * (jnp.asarray(weights, lam.dtype) * (-dt * width).astype(lam.dtype))[:, None]
        z = jax.vmap(lambda t: state_at(adj, step, t))(ts)
        return ts, z, jnp.where(dt == 0, 0, value)

    def body(i, total):
        times, lam = lanes.row(record.times, i), lanes.row(record.lam, i)
        _, step = recorded_step(adj, record.mesh_row[i])
        k = lanes.map(stages_of, (adj.params_axes, 0, 0, 0))(adj.params, times, lam, step)

        def panel(low, width, weights):
            at = lambda times, lam, k, step: at_nodes(times, lam, k, step, low, width, weights)
            nodes = lanes.map(at)(times, lam, k, step)
            return p_integral(adj, adj.params, *nodes)

        def panels(level):
            """The integral over 2^level panels, and its Gauss counterpart's difference."""
            n = 2**level
            width = 1 / n.astype(times.dtype)

            def one(j, sums):
                whole, error = sums
                add = lambda a, b: jax.tree.map(jnp.add, a, b)
                low = j.astype(times.dtype) * width
                return add(whole, panel(low, width, kronrod)), add(error, panel(low, width, kronrod - gauss))

            return count_down(n, one, (zeros, zeros))

        def unfinished(state):
            level, _, error, total = state
            worst = [jnp.any(jnp.abs(e) > atol + rtol * jnp.abs(s)) for e, s in zip(error, total, strict=True)]
            return (level < HALVINGS) & jnp.any(jnp.stack(worst))

        def halve(state):
            level, whole, _, total = state
            finer, error = panels(level + 1)
            total = [s - a + b for s, a, b in zip(total, whole, finer, strict=True)]
            return level + 1, finer, error, total

        whole, error = panels(jnp.zeros((), jnp.int32))
        total = jax.tree.map(jnp.add, total, whole)
        return while_loop(unfinished, halve, (jnp.zeros((), jnp.int32), whole, error, total))[3]

    zeros = [jnp.zeros_like(g) for g in adj.p]
    return count_down(record.size, body, zeros)
