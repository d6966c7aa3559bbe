"""`check_jacobian`: a user's Jacobian against the field's own derivative.

Owns: the comparison and its message. Must not know: solvers.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .inputs import as_params, as_state
from .problem import ODEProblem, SplitODEProblem
from .trace import trace_field


def check_jacobian(prob: ODEProblem, *, t: Any = None, u: Any = None, p: Any = None, rtol: float = 1e-6) -> float:
    """Compare jac(t, u, p) with df/du by forward mode, at one time and state.

    Parameters
    ----------
    prob : ODEProblem with `jac`
    t, u, p : optional
        By default those at the start of the problem. A state at which no entry happens to vanish says more than a
        special one.
    rtol : float
        How far an entry may be off, relative to the largest entry of its row.

    Returns
    -------
    float
        The largest difference relative to the largest entry of its row.

    Raises
    ------
    TypeError
        Where `prob` is no ODEProblem.
    ValueError
        Where that exceeds rtol: with the entry that is off most. Also where an entry outside `jac_sparsity` is not
        zero, and where the problem has neither.

    Examples
    --------
    >>> import jax.numpy as jnp, odesens as ode
    >>> f = lambda t, u, p: jnp.stack([u[1], -p * u[0]])
    >>> jac = lambda t, u, p: jnp.array([[0.0, 1.0], [p, 0.0]])
    >>> try:
    ...     ode.check_jacobian(ode.ODEProblem(f, [1.0, 2.0], (0.0, 1.0), 3.0, jac=jac))
    ... except ValueError as error:
    ...     print(str(error).split(";")[0])
    jac is wrong at t = 0: entry [1, 0], df[1]/du[0], is 3 but should be -3
    """
    if not isinstance(prob, ODEProblem):
        raise TypeError(f"check_jacobian needs an ODEProblem first, got {type(prob).__name__}")
    if prob.jac is None and (prob.jac_sparsity is None or prob.jac_sparsity is False):
        raise ValueError("check_jacobian needs an ODEProblem with jac= or jac_sparsity=, this one has neither")
    u = as_state(prob.u0 if u is None else u)
    params = as_params(prob.p if p is None else p)
    f = prob.f1 if isinstance(prob, SplitODEProblem) else prob.f
    jac = {} if prob.jac is None else {"jac": prob.jac}
    field, p_leaves, aux = trace_field(f, u, params, others=jac)
    state = field.state
    at = jnp.asarray(prob.tspan[0] if t is None else t, state.real_dtype)
    flat = state.pack(jax.tree.leaves(u))
    want = np.asarray(jax.jacfwd(lambda u: field(at, u, p_leaves, aux), holomorphic=jnp.iscomplexobj(flat))(flat))
    size = np.max(np.abs(want), axis=1, keepdims=True)
    if prob.jac_sparsity is not None and prob.jac_sparsity is not False:
        given = prob.jac_sparsity.toarray() if hasattr(prob.jac_sparsity, "toarray") else np.asarray(prob.jac_sparsity)
        if np.shape(given) != want.shape:
            raise ValueError(f"jac_sparsity must have shape {want.shape}, got {np.shape(given)}")
        outside = np.where((given == 0) & ~np.eye(len(want), dtype=bool), np.abs(want), 0)
        if np.any(outside > 0):
            i, j = np.unravel_index(np.argmax(outside), want.shape)
            raise ValueError(f"jac_sparsity says that df[{i}]/du[{j}] is zero, but it is {want[i, j]:.6g}")
    if field.matrix is None:
        return 0.0
    got = np.asarray(field.matrix(at, flat, p_leaves, aux))
    off = np.abs(got - want) / np.where(size == 0, 1, size)
    off = np.where(np.isfinite(off), off, np.inf)
    i, j = np.unravel_index(np.argmax(off), off.shape)
    if off[i, j] > rtol:
        raise ValueError(
            f"jac is wrong at t = {float(at):g}: entry [{i}, {j}], df[{i}]/du[{j}], is {got[i, j]:.6g} but should be "
            f"{want[i, j]:.6g}; jac(t, u, p)[i, j] is the derivative of f's entry i with respect to u's entry j"
            + ("; its transpose is right" if np.allclose(got.T, want, rtol=rtol, atol=rtol * np.max(size)) else "")
        )
    return float(off[i, j])
