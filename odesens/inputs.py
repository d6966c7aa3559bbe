"""A user's values and options as what a solve works with: arrays of the right dtype, static settings, each checked.

Owns: validation before tracing, defaults that depend on the problem. Must not know: the primitive, solutions.
"""

import functools
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jax.core import Tracer

from . import algorithms
from .integrate.loop import Options, Settings
from .methods.controller import PIDController
from .methods.linear import SMALL, Linear, Mass
from .methods.step import Method
from .pattern import TooDense
from .problem import BrownBasic, CheckInit
from .saveat import as_array, concrete
from .sensealg import BacksolveAdjoint, ContinuousAlgorithm, SensitivityAlgorithm
from .sparsity import Sparsity

# ---------------------------------------------------------------- values


def _is_number(x) -> bool:
    return isinstance(x, (int, float, complex, np.number)) and not isinstance(x, (bool, np.bool_))


def _number_list(x) -> bool:
    return isinstance(x, list) and len(x) > 0 and all(_is_number(v) for v in x)


def _dtype(x, what: str):
    """The dtype of a number or array, or an error that names what was expected to be one."""
    if hasattr(x, "dtype") or isinstance(x, (bool, int, float, complex)):
        try:
            return jnp.result_type(x)
        except TypeError:
            pass
    raise TypeError(f"{what} must hold numbers or arrays, got {type(x).__name__}: {x!r}")


def _real(x, name: str):
    """x, if it is a real number or array."""
    dtype = _dtype(x, name)
    if not (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)):
        raise TypeError(f"{name} must be real, got dtype {dtype}: {x!r}")
    return x


def _floating(x, what: str):
    """A leaf as a floating or complex array; integers become the default float."""
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.inexact) and not x.weak_type:
        return x
    dtype = _dtype(x, what)
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.asarray(x, dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.asarray(x, jnp.result_type(float))
    raise TypeError(f"{what} must hold real or complex numbers, got dtype {dtype}")


def as_state(u0):
    """u0 as a pytree of floating or complex arrays."""
    if u0 is None:
        raise TypeError("u0 is None: give an initial state to ODEProblem or solve")
    u0 = np.asarray(u0) if _number_list(u0) else u0
    return jax.tree.map(lambda x: _floating(x, "u0"), u0)


def as_params(p):
    """p with a flat list of numbers turned into an array, integers into the default float."""
    return _floating(np.asarray(p), "p") if _number_list(p) else p


def time_dtype(real, *times):
    """The dtype of times: that of the state's real part, wider where times are given so, at least single precision."""
    dtype = real if jnp.finfo(real).bits >= 32 else jnp.dtype(jnp.float32)
    for t in times:
        own: Any = getattr(t, "dtype", None)
        if own is None or getattr(t, "weak_type", False):
            continue
        if jnp.issubdtype(own, jnp.floating):
            own = jax.dtypes.canonicalize_dtype(own)
            dtype = own if jnp.finfo(own).bits > jnp.finfo(dtype).bits else dtype
    return dtype


def as_time(t, dtype, name: str):
    if type(t) is float and math.isfinite(t):
        return np.asarray(t).astype(dtype)
    _real(t, f"tspan: {name}")
    if jnp.shape(t) != ():
        raise ValueError(f"tspan: {name} must be a real scalar, got shape {jnp.shape(t)}")
    t = as_array(t, dtype)
    known = concrete(t)
    if known is not None and not np.isfinite(known):
        raise ValueError(f"tspan: {name} must be finite, got {float(known)}")
    return t


# ---------------------------------------------------------------- options


def choose_algorithm(alg, mass: Mass | None) -> algorithms.Algorithm:
    """The method, the default where none is named."""
    if alg is None:
        return algorithms.Rodas5P() if mass is not None and mass.singular else algorithms.Tsit5()
    return check_algorithm(alg, "alg", mass)


def check_algorithm(alg, what: str, mass: Mass | None) -> algorithms.Algorithm:
    if isinstance(alg, type) and issubclass(alg, algorithms.Algorithm):
        raise TypeError(f"{what} must be an instance: write {alg.__name__}() instead of {alg.__name__}")
    if not isinstance(alg, algorithms.Algorithm):
        hint = "; it is the third argument of an ensemble's solve" if "Ensemble" in type(alg).__name__ else ""
        raise TypeError(f"{what} must be a method such as Tsit5(), got {alg!r}{hint}")
    stiff = isinstance(alg, (algorithms.Rosenbrock, algorithms.Esdirk, algorithms.FBDF))
    if mass is not None and mass.singular and not stiff:
        raise ValueError(f"{what}: {alg!r} cannot solve algebraic equations (M is singular): take Rodas5P()")
    return alg


def check_initialisation(given) -> str:
    if isinstance(given, BrownBasic):
        return "solve"
    if isinstance(given, CheckInit):
        return "check"
    raise TypeError(f"initializealg must be BrownBasic() or CheckInit(), got {given!r}")


def check_max_events(given) -> int:
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)) or not 1 <= given < 2**24:
        raise ValueError(f"max_events must be an integer from 1 to 2**24 - 1, got {given!r}")
    return int(given)


def make_mass(given, state) -> Mass | None:
    """The mass matrix, checked; None where it is the identity."""
    if given is None:
        return None
    if isinstance(given, Tracer):
        raise TypeError(
            "mass_matrix must be constant, got a traced value: put what varies into f, and make constants under a "
            "transformation by NumPy (np.diag, not jnp.diag)"
        )
    n = state.size
    try:
        m = given.toarray() if sp.issparse(given) else np.asarray(given)
    except ValueError:  # rows of different lengths
        m = np.asarray(given, object)
    if m.dtype.kind not in "biuf" or m.shape not in ((n,), (n, n)):
        raise ValueError(
            f"mass_matrix must be real of shape ({n}, {n}) or ({n},) for the {n} entries of u0, got {m.dtype}{m.shape}"
        )
    if not np.all(np.isfinite(m)):
        raise ValueError("mass_matrix must be finite")
    m = m.astype(state.real_dtype)
    mass = Mass(np.diag(m) if m.ndim == 1 else m)
    return None if np.array_equal(mass.matrix, np.eye(n)) else mass


@functools.lru_cache(maxsize=256)
def _pattern(field, mass: Mass | None) -> Sparsity | None:
    """The pattern of f_u with that of M, where it saves work."""
    try:
        return _useful(field.sparsity, mass)
    except TooDense:
        return None


def _useful(given, mass: Mass | None) -> Sparsity | None:
    s = Sparsity.from_pattern(given)
    if mass is not None:
        both = abs(s.matrix.astype(float)) + sp.csr_array(np.abs(mass.matrix) + np.abs(mass.matrix.T))
        s = Sparsity.from_pattern(both)
    return s if 2 * s.n_colours <= s.n else None


def make_linear(alg, field, mass: Mass | None, given) -> Linear:
    """How linear systems are solved where the method does not say."""
    n = field.state.size
    divided = mass is not None and mass.diagonal is None and isinstance(alg, algorithms.AutoAlgorithm)  # by M: dense
    if not alg.implicit or field.matrix is not None or given is False or divided:
        return alg.linear(Linear())
    if given is None:
        s = _pattern(field, mass) if n > SMALL and field.parts is None else None
    else:
        if np.shape(given) != (n, n):
            raise ValueError(f"jac_sparsity must have shape ({n}, {n}), got {np.shape(given)}")
        s = _useful(given, mass)
    narrow = s is not None and 4 * (s.lower + s.upper + 1) <= n
    return alg.linear(Linear("banded" if narrow else "dense", s))


def make_settings(alg, field, merged: dict, mass: Mass | None, jac_sparsity) -> Settings:
    """The static choices, checked against each other."""
    if alg.implicit and not field.has_forward_mode:
        raise TypeError(
            f"{alg!r} needs the Jacobian of f in forward mode, but f calls a jax.custom_vjp function, which has none: "
            "define it with jax.custom_jvp, or take an explicit method"
        )
    name = repr(alg)
    adaptive = alg.adaptive if merged["adaptive"] is None else bool(merged["adaptive"])
    if adaptive and not alg.adaptive:
        raise ValueError(f"{name} has no error estimate, so adaptive=True is not possible: give dt0, or take Tsit5()")
    if not adaptive and merged["dt0"] is None:
        raise ValueError(f"{name} with fixed steps needs dt0=, the step size")
    if not isinstance(merged["controller"], PIDController):
        raise TypeError(
            f"controller must be IController(), PIController() or PIDController(), got {merged['controller']!r}"
        )
    max_steps = merged["max_steps"]
    if isinstance(max_steps, bool) or not isinstance(max_steps, (int, np.integer)) or not 1 <= max_steps < 2**31 - 2:
        raise ValueError(f"max_steps must be an integer from 1 to 2**31 - 3, got {max_steps!r}")
    return Settings(
        method=Method(alg.tableau, mass, make_linear(alg, field, mass, jac_sparsity), field.n_eqns),
        controller=merged["controller"],
        adaptive=adaptive,
        first_step_given=merged["dt0"] is not None,
        max_steps=int(max_steps),
    )


def check_sensealg(sensealg, settings: Settings) -> SensitivityAlgorithm | None:
    if sensealg is None:
        return None
    if isinstance(sensealg, type) and issubclass(sensealg, SensitivityAlgorithm):
        raise TypeError(f"sensealg must be an instance: write {sensealg.__name__}() instead of {sensealg.__name__}")
    if not isinstance(sensealg, SensitivityAlgorithm):
        raise TypeError(f"sensealg must be a sensitivity algorithm such as DiscreteAdjoint(), got {sensealg!r}")
    if isinstance(sensealg, ContinuousAlgorithm) and sensealg.alg is not None:
        own = check_algorithm(sensealg.alg, "sensealg: alg", settings.method.mass)
        if settings.method.mass is not None and not own.implicit:
            raise ValueError(f"sensealg: {own!r} has no mass matrices: take Rodas5P()")
        if settings.adaptive and not sensealg.alg.adaptive:
            raise ValueError(f"sensealg: {type(sensealg.alg).__name__} has no error estimate; take Tsit5()")
    if isinstance(sensealg, BacksolveAdjoint) and settings.method.mass is not None and settings.method.implicit_only:
        raise ValueError("sensealg: BacksolveAdjoint has no mass matrices: take GaussAdjoint() or DiscreteAdjoint()")
    return sensealg


_NUMBERS = ("reltol", "abstol", "dt0", "dtmin", "dtmax")


def numbers(merged: dict, u, state, dtype) -> Options:
    """`make_options`, remembered for plain numbers that need no warning."""
    given = [merged[name] for name in _NUMBERS]
    plain = all(type(x) in (float, int, type(None)) for x in given)
    if plain and (given[0] is None or given[0] > 10 * jnp.finfo(state.real_dtype).eps):
        return _plain_options(state.real_dtype, dtype, *given)
    return make_options(merged, u, state.real_dtype, dtype)


@functools.lru_cache(maxsize=256, typed=True)
def _plain_options(real_dtype, dtype, *given) -> Options:
    return make_options(dict(zip(_NUMBERS, given, strict=True)), None, real_dtype, dtype)


def make_options(merged: dict, u, real_dtype, dtype) -> Options:
    """Tolerances in the state's real dtype, step sizes in the times' dtype, each checked where its value is known."""
    double = jnp.finfo(real_dtype).bits >= 64
    default = {"reltol": 1e-6 if double else 1e-4, "abstol": 1e-9 if double else 1e-6}
    tolerances = {}
    for name, value in default.items():
        given = merged[name]
        tolerances[name] = _tolerance(name, value if given is None else given, u, real_dtype)
    dt0 = 0.0 if merged["dt0"] is None else merged["dt0"]
    numbers = {"dt0": dt0, "dtmin": merged["dtmin"], "dtmax": merged["dtmax"]}
    steps = {}
    for name, value in numbers.items():
        array = as_array(_real(value, name), dtype)
        known = concrete(array)
        nonzero = merged[name] is not None and name != "dtmin"
        if array.shape != () or (known is not None and (np.isnan(known) or (nonzero and known == 0))):
            raise ValueError(f"{name} must be a {'nonzero ' * nonzero}real scalar, got {value!r}")
        if known is not None and known < 0 and name != "dt0":
            raise ValueError(f"{name} must not be negative, got {value!r}; steps are signed by tspan")
        steps[name] = array
    low, high = concrete(steps["dtmin"]), concrete(steps["dtmax"])
    if low is not None and high is not None and low > high:
        raise ValueError(f"dtmin must not exceed dtmax, got dtmin={low:g} and dtmax={high:g}")
    return Options(tolerances["reltol"], tolerances["abstol"], steps["dt0"], steps["dtmin"], steps["dtmax"])


def _tolerance(name: str, value, u, real_dtype):
    value = np.asarray(value) if _number_list(value) else value
    leaves, tree = jax.tree.flatten(value)
    u_leaves, u_tree = jax.tree.flatten(u)
    for x in leaves:
        _real(x, name)
    if jax.tree_util.treedef_is_leaf(tree) and jnp.shape(value) == ():
        out = as_array(value, real_dtype)
    elif tree == u_tree:
        try:
            parts = [as_array(x, real_dtype) for x in leaves]
            xp = jnp if any(isinstance(x, jax.Array) for x in parts) else np
            spread = [xp.broadcast_to(x, y.shape) for x, y in zip(parts, u_leaves, strict=True)]
        except ValueError:
            raise ValueError(f"{name} must have shapes that broadcast to those of u0, got {value!r}") from None
        out = xp.concatenate([x.reshape(-1) for x in spread])
    else:
        raise ValueError(f"{name} must be a scalar or have the structure of u0, {u_tree}; got {tree}")
    known = concrete(out)
    if known is not None:
        floor = 0.0 if name == "abstol" else -1.0
        if not np.all(np.isfinite(known)) or np.any(known < 0) or (name == "abstol" and np.all(known <= floor)):
            raise ValueError(f"{name} must be positive and finite, got {value!r}")
        eps = float(jnp.finfo(real_dtype).eps)
        if name == "reltol" and np.any(known < 10 * eps):
            warnings.warn(
                f"reltol={np.min(known):.3g} is below what {real_dtype} delivers ({10 * eps:.3g}): rounding "
                "errors dominate; raise reltol, or give u0 in double precision (jax_enable_x64)",
                stacklevel=3,
            )
    return out
