"""`InterpolatingAdjoint`: lam and the parameter integral in one backward equation, u(t) from the dense record.

Owns: the joint state (lam, p_bar). Must not know: the sweep's stepping.
"""

from dataclasses import replace

import jax.numpy as jnp

from ..field import Flat
from . import backward
from .augment import Flow
from .continuous import (
    add_impulse,
    impulse_data,
    impulses,
    jacobian,
    outputs,
    prepare,
    pullback,
    recorded_rows,
    state_at,
)


def adjoint(flow: Flow, w, wanted: list[int]):
    """The gradient of <w, D^k Phi> with respect to u0 ([lanes], n) and the wanted leaves of p; and how it ended."""
    adj = prepare(flow, w, wanted)
    pack = Joint(flow, adj.params_axes, wanted, adj.size)

    def rhs(t, y, step, params):
        lam = pack.lam(y)
        lam_dot, p_dot = pullback(adj, t, state_at(adj, step, t), params, lam)
        return -pack.join(lam_dot, p_dot)

    def own_jacobian(t, y, step, params):
        def tail(x):
            return -pack.join(x, pullback(adj, t, state_at(adj, step, t), params, pack.lam(x))[1])[adj.size :]

        return jacobian(adj, t, step, params, tail)

    nu, direct = impulses(adj)
    sweep = backward.Sweep(
        joint_settings(adj, pack.flat.size),
        flow.lanes,
        adj.options,
        flow.axes["options"],
        adj.params,
        adj.params_axes,
        rhs,
        recorded_rows(adj),
        add_impulse(adj),
        impulse_data(adj, nu),
        jacobian=own_jacobian,
    )
    y1 = flow.lanes.spread(jnp.zeros(pack.size, pack.dtype))
    y, _, ended = backward.run(sweep, y1, flow.t0, flow.t1, flow.ts)
    lam, p_bar = pack.split(y)
    if direct is not None:
        p_bar = [a + b for a, b in zip(p_bar, direct, strict=True)]
    return outputs(adj, lam, p_bar, ended)


def joint_settings(adj, extra: int):
    """The settings of the joint equation, whose last `extra` components are quadratures."""
    method = adj.settings.method
    mass = None if method.mass is None else method.mass.extended(extra)
    return replace(adj.settings, method=replace(method, mass=mass))


class Joint:
    """(lam, p_bar) of one lane as one vector."""

    def __init__(self, flow: Flow, params_axes, wanted: list[int], n_lam: int):
        self.lanes = flow.lanes
        self.axes = [params_axes["p"][i] for i in wanted]
        shaped = [flow.p[i] if axis is None else flow.p[i][0] for i, axis in zip(wanted, self.axes, strict=True)]
        self.flat = Flat(shaped)
        self.n_lam = n_lam
        self.lam_dtype = flow.u0.dtype
        self.dtype = jnp.promote_types(flow.u0.dtype, self.flat.dtype) if wanted else flow.u0.dtype
        self.size = n_lam + self.flat.size

    def lam(self, y):
        part = y[..., : self.n_lam]
        real = not jnp.issubdtype(self.lam_dtype, jnp.complexfloating)
        return (jnp.real(part) if real else part).astype(self.lam_dtype)

    def join(self, lam, p_bar: list):
        parts = [lam.astype(self.dtype)]
        if self.flat.size:
            parts.append(self.flat.pack(p_bar).astype(self.dtype))
        return jnp.concatenate(parts)

    def split(self, y):
        """lam and the leaves; those that all lanes share are summed over the lanes."""
        leaves = self.flat.unpack(y[..., self.n_lam :])
        shared = self.lanes.size is not None
        return self.lam(y), [
            jnp.sum(g, 0) if shared and axis is None else g for g, axis in zip(leaves, self.axes, strict=True)
        ]
