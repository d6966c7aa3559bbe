"""What the functions of a problem must take and return, and what is said where they do not; which options are numbers.

Owns: the checks of signatures and of results while a function is traced, of plain numbers. Must not know: programs,
solvers.
"""

import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def is_number(x: Any) -> bool:
    """Whether x is a finite number of Python or NumPy; truth values, traced values and arrays are none."""
    return isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, bool) and math.isfinite(x)


def is_positive(x: Any) -> bool:
    """Whether x is such a number above zero."""
    return is_number(x) and x > 0


def is_count(x: Any) -> bool:
    """Whether x is a positive integer of Python or NumPy."""
    return isinstance(x, (int, np.integer)) and is_positive(x)


def check_tolerances(alg) -> None:
    """Refuse an algorithm whose own reltol or abstol is neither None nor such a number above zero."""
    for name in ("reltol", "abstol"):
        value = getattr(alg, name)
        if value is not None and not is_positive(value):
            raise ValueError(f"{type(alg).__name__} needs {name} > 0, a number, got {value!r}")


def check_signature(f, name: str = "f") -> None:
    """Refuse what is not f(t, u, p), by the number of arguments and by a time that is not the first."""
    if not callable(f):
        raise TypeError(f"{name} must be a function {name}(t, u, p), got {type(f).__name__}: {f!r}")
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):  # builtins have no signature; tracing will tell
        return
    positional = [q for q in parameters if q.kind in (q.POSITIONAL_ONLY, q.POSITIONAL_OR_KEYWORD)]
    required = [q for q in positional if q.default is q.empty]
    variadic = any(q.kind is q.VAR_POSITIONAL for q in parameters)
    names = [q.name for q in positional]
    shown = f"{name}({', '.join(names)})"
    gives = "df/du" if name == "jac" else "du/dt"
    if len(required) > 3 or (len(positional) < 3 and not variadic):
        raise TypeError(
            f"{name} must take three arguments {name}(t, u, p), got {shown}; "
            f"write p even where it is unused, and return {gives} instead of writing into an argument"
        )
    if "t" in names[1:3] and names[0] != "t":
        raise TypeError(f"{name} must take its arguments in the order {name}(t, u, p), got {shown}: time comes first")


def check_results(role: str, out, name: str, u_tree, us, p_tree, ps: list) -> tuple[list, list | None]:
    """The results of a function as flat leaves, and the leaves of p where it gives new ones."""
    if role == "jac":
        return [_checked_matrix(out, sum(x.size for x in us), jnp.result_type(*us) if us else float)], None
    if role in ("condition", "when", "times"):
        return [_RESULTS[role](out, name)], None
    if role != "affect":
        return _checked_result(out, u_tree, us, name), None
    tree = jax.tree.structure(out)
    if tree != u_tree and isinstance(out, tuple) and len(out) == 2 and jax.tree.structure(out[0]) == u_tree:
        u, p = out
        if jax.tree.structure(p) != p_tree:
            raise TypeError(
                f"{name} must return u, or (u, p) with the structure of p: expected {p_tree}, "
                f"got {jax.tree.structure(p)}"
            )
        return _checked_result(u, u_tree, us, name, "the state after the jump"), jax.tree.leaves(p)
    return _checked_result(out, u_tree, us, name, "the state after the jump"), None


def _checked_condition(out, name: str):
    """A condition's values as a real or boolean array (c,)."""
    if not hasattr(out, "dtype") and not isinstance(out, (bool, int, float)):
        raise TypeError(f"{name} must return a real number or a vector of them, got {type(out).__name__}: {out!r}")
    x = jnp.asarray(out)
    if x.ndim > 1 or jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise TypeError(f"{name} must return a real number or a vector of them, got {x.dtype}{list(x.shape)}")
    x = x if x.dtype == jnp.bool_ or jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))
    return x.reshape(-1)


def _checked_when(out, name: str):
    x = jnp.asarray(out)
    if x.dtype != jnp.bool_ or x.ndim:
        raise TypeError(f"{name} must return True or False, got {x.dtype}{list(x.shape)}")
    return x


def _checked_times(out, name: str):
    x = jnp.asarray(out)
    if x.ndim > 1 or not (jnp.issubdtype(x.dtype, jnp.floating) or jnp.issubdtype(x.dtype, jnp.integer)):
        raise TypeError(f"{name} must be real, a number or a vector of them, got {x.dtype}{list(x.shape)}")
    return x.reshape(-1).astype(x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.result_type(float))


_RESULTS = {"condition": _checked_condition, "when": _checked_when, "times": _checked_times}


def _checked_matrix(jac, n: int, dtype):
    """The user's Jacobian as an array (n, n), or an error that says what it must return."""
    leaves = jax.tree.leaves(jac)
    if len(leaves) != 1 or jnp.size(leaves[0]) != n * n:
        got = [jnp.shape(x) for x in leaves]
        raise ValueError(f"jac must return one array df/du of shape ({n}, {n}) for the {n} entries of u, got {got}")
    return jnp.asarray(leaves[0]).astype(dtype).reshape(n, n)


def _checked_result(du, u_tree, us, name: str, what: str = "du/dt") -> list:
    """The leaves of f's result cast to the state's dtypes, or an error that says what it must return."""
    leaves, tree = jax.tree.flatten(du)
    for x in leaves:
        if not hasattr(x, "dtype") and not isinstance(x, (bool, int, float, complex)):
            raise TypeError(f"{name} must return {what} as numbers or arrays, got {type(x).__name__}: {x!r}")
    shapes = [jnp.shape(x) for x in leaves]
    want = [x.shape for x in us]
    if tree != u_tree:
        hint = "; return an array, e.g. jnp.stack([...])" if isinstance(du, (list, tuple)) and len(us) == 1 else ""
        raise TypeError(
            f"{name} must return {what} with the structure of u: expected {u_tree} with shapes {want}, "
            f"got {tree} with shapes {shapes}{hint}"
        )
    if shapes != want:
        raise ValueError(f"{name} must return {what} with the shapes of u: expected {want}, got {shapes}")
    out = []
    for x, u in zip(leaves, us, strict=True):
        dtype = jnp.result_type(x)
        if dtype == jnp.bool_:
            raise TypeError(f"{name} must return numbers, got booleans")
        weak = not isinstance(x, jax.Array) or jnp.asarray(x).weak_type
        if jnp.issubdtype(dtype, jnp.complexfloating) and not jnp.issubdtype(u.dtype, jnp.complexfloating):
            raise TypeError(
                f"{name} returned {dtype} for a state of dtype {u.dtype}: give a complex u0, or return the real part"
            )
        if not weak and jnp.issubdtype(dtype, jnp.inexact) and jnp.promote_types(dtype, u.dtype) != u.dtype:
            raise TypeError(
                f"{name} returned {dtype} for a state of dtype {u.dtype}: a parameter or constant of wider dtype is "
                f"mixed in; give u0 as {dtype}, or cast the parameters to {u.dtype}"
            )
        out.append(jnp.asarray(x).astype(u.dtype))
    return out
