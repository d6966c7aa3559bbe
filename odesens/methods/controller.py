"""Step size controllers as data, and the starting step.

Owns: the factor by which a step size changes, the first step size. Must not know: methods, loops.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from ..checks import is_number


@dataclass(frozen=True)
class PIDController:
    """A proportional-integral-derivative controller of the step size.

    With err_n the scaled error of the step just tried (1 is the tolerance), k the order of the error estimate plus one,

        dt_new = dt clip(safety err_n^(-beta1/k) err_(n-1)^(-beta2/k) err_(n-2)^(-beta3/k), factor_min, factor_max),
        beta1 = kP + kI + kD,  beta2 = -(kP + 2 kD),  beta3 = kD

    and, after a rejected step, the I controller alone, which never enlarges the step. Given to a solve as
    `controller=`.

    Parameters
    ----------
    kP, kI, kD : float
        The gains of the proportional, integral and derivative parts.
    safety : float
        In (0, 1].
    factor_min, factor_max : float
        Bounds of dt_new / dt: 0 < factor_min < 1 < factor_max.

    Raises
    ------
    ValueError
        For values outside these ranges.

    Notes
    -----
    Source: G. Soderlind, Digital filters in adaptive time-stepping, ACM TOMS 29 (2003), section 2.

    Examples
    --------
    >>> import odesens as ode
    >>> ode.PIDController(kP=0.2, kI=0.3, kD=0.1).safety
    0.9
    """

    kP: float = 0.4
    kI: float = 0.3
    kD: float = 0.0
    safety: float = 0.9
    factor_min: float = 0.2
    factor_max: float = 10.0

    def __post_init__(self):
        for name in ("kP", "kI", "kD", "safety", "factor_min", "factor_max"):
            if not is_number(getattr(self, name)):
                raise ValueError(f"a controller needs a finite number as {name}, got {getattr(self, name)!r}")
        if not 0 < self.safety <= 1 or not 0 < self.factor_min < 1 < self.factor_max:
            raise ValueError(
                "a controller needs 0 < safety <= 1 and 0 < factor_min < 1 < factor_max, got "
                f"safety={self.safety}, factor_min={self.factor_min}, factor_max={self.factor_max}"
            )

    def factor(self, k: int, log_err: Any, log_err1: Any, log_err2: Any, accepted: Any) -> Any:
        """The factor for the next step from the logarithms of the last three errors: one exponential, no power.

        Parameters
        ----------
        k : int
            The order of the error estimate plus one.
        log_err, log_err1, log_err2 : real scalars
            Of the step just tried, and of the two accepted ones before it.
        accepted : bool scalar

        Returns
        -------
        real scalar
        """
        b1, b2, b3 = (self.kP + self.kI + self.kD) / k, -(self.kP + 2 * self.kD) / k, self.kD / k
        smooth = -b1 * log_err
        if b2:
            smooth = smooth - b2 * log_err1
        if b3:
            smooth = smooth - b3 * log_err2
        exponent = jnp.where(accepted, smooth, jnp.minimum(-log_err / k, 0.0))
        return jnp.clip(self.safety * jnp.exp(exponent), self.factor_min, self.factor_max)


def log_error(err):
    """The logarithm that controllers work with: of at least 1e-10, and infinite for an error that is not finite."""
    return jnp.log(jnp.where(jnp.isfinite(err), jnp.maximum(err, 1e-10), jnp.inf).astype(err.dtype))


def IController(**options: float) -> PIDController:
    """The classical controller dt_new = dt safety (1/err)^(1/k): fast, without memory.

    Parameters
    ----------
    **options
        `safety`, `factor_min`, `factor_max` of `PIDController`.

    Returns
    -------
    PIDController

    Examples
    --------
    >>> import odesens as ode
    >>> ode.IController(safety=0.8)
    PIDController(kP=0.0, kI=1.0, kD=0.0, safety=0.8, factor_min=0.2, factor_max=10.0)
    """
    return PIDController(kP=0.0, kI=1.0, kD=0.0, **options)


def PIController(kP: float = 0.4, kI: float = 0.3, **options: float) -> PIDController:
    """The default: smoother step sizes, fewer rejections.

    Parameters
    ----------
    kP, kI : float
        The gains of the proportional and the integral part.
    **options
        `safety`, `factor_min`, `factor_max` of `PIDController`.

    Returns
    -------
    PIDController

    Notes
    -----
    Source: Hairer and Wanner, Solving Ordinary Differential Equations II, section IV.2.

    Examples
    --------
    >>> import odesens as ode
    >>> ode.PIController() == ode.PIDController()
    True
    """
    return PIDController(kP=kP, kI=kI, kD=0.0, **options)


def initial_step(f, t0, u0, f0, t1, order: int, abstol, reltol, controlled: int | None = None):
    """The first step size, signed, at most |t1 - t0|, by the leading `controlled` components (all where None).

    Source: Hairer, Norsett, Wanner, Solving Ordinary Differential Equations I, section II.4, "Starting Step Size".
    """
    real = jnp.finfo(u0.dtype).dtype
    span = t1 - t0
    if u0.size == 0:
        return span
    scale = abstol + reltol * jnp.abs(u0[:controlled])

    def norm(x):
        return jnp.sqrt(jnp.mean(jnp.square(jnp.abs(x[:controlled]) / scale)))

    d0, d1 = norm(u0), norm(f0)
    small = (d0 < 1e-5) | (d1 < 1e-5)
    h0 = jnp.where(small, 1e-6, 0.01 * d0 / jnp.where(small, 1.0, d1)).astype(t0.dtype)
    h0 = jnp.minimum(h0, jnp.abs(span))
    step = jnp.where(span >= 0, h0, -h0)
    t_probe = jnp.where(span >= 0, jnp.minimum(t0 + step, t1), jnp.maximum(t0 + step, t1))
    f1 = f(t_probe, u0 + step.astype(real) * f0)
    d2 = norm(f1 - f0) / jnp.where(h0 == 0, 1.0, h0).astype(real)
    largest = jnp.maximum(d1, d2)
    h1 = jnp.where(
        largest <= 1e-15,
        jnp.maximum(1e-6, h0.astype(real) * 1e-3),
        (0.01 / jnp.maximum(largest, 1e-15)) ** (1.0 / (order + 1)),
    ).astype(t0.dtype)
    h1 = jnp.where(jnp.isfinite(h1), h1, h0 * 1e-2)
    h = jnp.minimum(jnp.minimum(100 * h0, h1), jnp.abs(span))
    return jnp.where(span >= 0, h, -h)
