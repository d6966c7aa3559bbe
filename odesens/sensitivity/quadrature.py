"""`QuadratureAdjoint`: lam backwards; on each accepted step the parameter integral by Gauss-Kronrod panels.

On each accepted backward step, int F_p^T lam dt is taken by the 7-15 point Gauss-Kronrod pair over the step's dense
output; where the pair's difference exceeds the tolerance, the step's panels are halved, at most `HALVINGS` times. As
each step's panels are done with the step, no lam is recorded. Owns: the quadrature. Must not know: the sweep.
Source: Piessens, de Doncker-Kapenga, Ueberhuber, Kahaner, QUADPACK (1983), routine QK15.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ..extension import count_down, while_loop
from ..methods import step as one_step
from . import backward
from .augment import Flow
from .continuous import Adjoint, Step, lam_stages, lam_sweep, outputs, p_integral, prepare, state_at

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


def adjoint(flow: Flow, w, wanted: list[int]):
    """The gradient of <w, D^k Phi> with respect to u0 ([lanes], n) and the wanted leaves of p; and how it ended."""
    adj = prepare(flow, w, wanted)
    tolerance = jnp.max(adj.options.abstol), jnp.max(adj.options.reltol)
    sweep, p_bar = lam_sweep(adj, (lambda *args: add_panels(adj, tolerance, *args)) if wanted else None)
    lam1 = flow.lanes.spread(jnp.zeros(adj.size, flow.u0.dtype))
    lam, p_bar, ended = backward.run(sweep, lam1, flow.t0, flow.t1, flow.ts, p_bar)
    return outputs(adj, lam, p_bar, ended)


def add_panels(adj: Adjoint, tolerance, total: list, lane, trial, step: Step) -> list:
    """`total` and the parameter integral over the backward step just tried, where it was accepted."""
    lanes = adj.flow.lanes
    x, kronrod, gauss = gauss_kronrod()
    atol, rtol = tolerance

    def all_stages(params, lane, trial, step):
        return lam_stages(adj, params, lane.t, lane.t_lo, lane.u, trial.dt, trial.k, step.times[0], step)

    k = lanes.map(all_stages, (adj.params_axes, 0, 0, 0))(adj.params, lane, trial, step)

    def at_nodes(lane, trial, k, step, low, width, weights):
        """Times, z and weighted lam at the nodes of the panel [low, low + width] of one lane's step."""
        dt = trial.dt
        theta = low + width * jnp.asarray(x, dt.dtype)
        ts = lane.t + (lane.t_lo + theta * dt)
        value = jax.vmap(lambda c: one_step.interpolate(adj.settings.method, lane.u, dt, k, c, trial.mode))(theta)
        value = value * (jnp.asarray(weights, value.dtype) * (-dt * width).astype(value.dtype))[:, None]
        z = jax.vmap(lambda t: state_at(adj, step, t))(ts)
        return ts, z, jnp.where(trial.accepted, value, 0)

    def panel(low, width, weights):
        at = lambda lane, trial, k, step: at_nodes(lane, trial, k, step, low, width, weights)
        return p_integral(adj, adj.params, *lanes.map(at)(lane, trial, k, step))

    def panels(n):
        """The integral over n panels, and its Gauss counterpart's difference."""
        width = 1 / n.astype(trial.dt.dtype)

        def add_panel(j, sums):
            whole, error = sums
            add = lambda a, b: jax.tree.map(jnp.add, a, b)
            low = j.astype(width.dtype) * width
            return add(whole, panel(low, width, kronrod)), add(error, panel(low, width, kronrod - gauss))

        zeros = [jnp.zeros_like(g) for g in total]
        return count_down(n, add_panel, (zeros, zeros))

    def unfinished(state):
        n, _, error, total = state
        worst = [jnp.any(jnp.abs(e) > atol + rtol * jnp.abs(s)) for e, s in zip(error, total, strict=True)]
        return (n < 2**HALVINGS) & jnp.any(jnp.stack(worst))

    def halve(state):
        n, whole, _, total = state
        finer, error = panels(2 * n)
        total = [s - a + b for s, a, b in zip(total, whole, finer, strict=True)]
        return 2 * n, finer, error, total

    one = jnp.ones((), jnp.int32)
    whole, error = panels(one)
    total = jax.tree.map(jnp.add, total, whole)
    return while_loop(unfinished, halve, (one, whole, error, total))[3]
