"""The Hessian of the Lotka-Volterra loss in its four parameters: odesens' default call beside its peers.

    python benchmarks/hessian.py [--flag] [--quick] [--seconds 1] [--only ..]

The problem of gradient_lotka_volterra.py. odesens and diffrax with DirectAdjoint by `jax.hessian` (forward over
reverse); jax's odeint, which has reverse mode only, by reverse over reverse. Reference: SciPy's DOP853 at 1e-12 on the
variational equations of second order. What is timed: the warm Hessian at several tolerances, and its first call, which
traces and compiles.
"""

import harness
import jax
import jax.numpy as jnp
import numpy as np
from gradient_lotka_volterra import PROBLEM, T1, TS, U0, P, field

TOLERANCES = [1e-4, 1e-6, 1e-8, 1e-10]
ERRORS = [1e-3, 1e-5, 1e-7]


def reference(tol: float = 1e-12) -> dict:
    """u, its first and its second derivatives in p as one equation of 2 + 8 + 32 states."""
    from scipy.integrate import solve_ivp

    def right(z):
        u, s, h = z[:2], z[2:10].reshape(2, 4), z[10:].reshape(2, 4, 4)
        along = lambda d: field(0.0, u + s @ d + 0.5 * h @ d @ d, P + d)
        zero = jnp.zeros(4)
        return jnp.concatenate([x.ravel() for x in (along(zero), jax.jacfwd(along)(zero), jax.hessian(along)(zero))])

    right = jax.jit(right)
    z0 = np.r_[U0, np.zeros(40)]
    options = {"method": "DOP853", "rtol": tol, "atol": tol, "t_eval": TS}
    z = solve_ivp(lambda t, z: np.asarray(right(z)), (0, T1), z0, **options).y
    return {"hessian": z[10:].sum(1).reshape(2, 4, 4).sum(0)}


def by(solve, derivative=jax.hessian, *choice):
    """make(tol) for `harness.work_precision`."""

    def make(tol):
        run = solve(PROBLEM, tol, *choice)
        u0 = jnp.asarray(U0)
        return {"hessian": harness.call(derivative(lambda p: jnp.sum(run(p, u0))), jnp.asarray(P))}

    return make


PEERS = {
    "odesens Tsit5": by(harness.odesens_solve),
    "diffrax Tsit5 DirectAdjoint": by(harness.diffrax_solve, jax.hessian, "Tsit5", "DirectAdjoint"),
    "jax odeint (reverse over reverse)": by(harness.odeint_solve, lambda f: jax.jacrev(jax.grad(f))),
}


def main():
    options = harness.arguments(__doc__)
    known = reference()
    tolerances = TOLERANCES[:1] if options.quick else TOLERANCES
    points = harness.work_precision(PEERS, known, tolerances, options)
    text = harness.table(points, ERRORS, "diffrax Tsit5 DirectAdjoint", ("hessian",))
    harness.finish("hessian", options, {"columns": harness.columns(known), "points": points}, text)


if __name__ == "__main__":
    main()
