"""`GaussAdjoint`: lam backwards; within each accepted backward step the parameter integral at Gauss-Legendre nodes.

    p_bar += -dt sum_g weight_g F_p(t_g, z(t_g))^T lam(t_g)

with lam(t_g) from the backward step's own dense output. Owns: nodes and accumulation. Must not know: the sweep.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ..extension import count_down
from ..methods import step as one_step
from . import backward
from .augment import Flow
from .continuous import Adjoint, Step, lam_stages, lam_sweep, outputs, p_integral, prepare, state_at

AT_ONCE = 512  # states up to which the nodes of a step are taken side by side


def adjoint(flow: Flow, w, wanted: list[int]):
    """The gradient of <w, D^k Phi> with respect to u0 ([lanes], n) and the wanted leaves of p; and how it ended."""
    adj = prepare(flow, w, wanted)
    count = (adj.settings.tableau.order + 1) // 2 + 1
    nodes, weights = gauss_legendre(count)

    def accumulate(p_bar, lane, trial, step):
        at = flow.lanes.map(
            lambda params, lane, trial, step, stop: nodes_of_step(adj, params, lane, trial, step, stop, nodes, weights),
            (adj.params_axes, 0, 0, 0, 0),
        )
        ts, z, lam = at(adj.params, lane, trial, step, step.times[..., 0])
        if adj.size <= AT_ONCE:
            return jax.tree.map(jnp.add, p_bar, p_integral(adj, adj.params, ts, z, lam))

        def add(g, p_bar):
            one = lambda x: jax.lax.dynamic_slice_in_dim(x, g, 1, axis=0 if flow.lanes.size is None else 1)
            return jax.tree.map(jnp.add, p_bar, p_integral(adj, adj.params, one(ts), one(z), one(lam)))

        return count_down(count, add, p_bar)

    sweep, p_bar = lam_sweep(adj, accumulate if wanted else None)
    lam1 = flow.lanes.spread(jnp.zeros(adj.size, flow.u0.dtype))
    lam, p_bar, ended = backward.run(sweep, lam1, flow.t0, flow.t1, flow.ts, p_bar)
    return outputs(adj, lam, p_bar, ended)


def gauss_legendre(count: int):
    """Nodes and weights of the Gauss-Legendre rule on (0, 1)."""
    x, w = np.polynomial.legendre.leggauss(count)
    return (x + 1) / 2, w / 2


def nodes_of_step(adj: Adjoint, params, lane, trial, step: Step, t_stop, nodes, weights):
    """Times, z and weighted lam at the nodes of one lane's backward step; zero weight where it was rejected."""
    k = lam_stages(adj, params, lane.t, lane.t_lo, lane.u, trial.dt, trial.k, t_stop, step)
    theta = jnp.asarray(nodes, trial.dt.dtype)
    ts = lane.t + (lane.t_lo + theta * trial.dt)
    lam = jax.vmap(lambda x: one_step.interpolate(adj.settings.method, lane.u, trial.dt, k, x, trial.mode))(theta)
    weighted = lam * (jnp.asarray(weights, lam.dtype) * -trial.dt.astype(lam.dtype))[:, None]
    z = jax.vmap(lambda t: state_at(adj, step, t))(ts)
    return ts, z, jnp.where(trial.accepted, weighted, 0)
