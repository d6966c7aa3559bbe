"""The IVP test set's problems by the stiff methods (and Vern9): end values against those known, in tests/ivp.py.

At reltol 1e-8 and absolute tolerances that suit each problem's scale; the bound on the error is relative, for each
component by itself. No component that is compared is below the absolute tolerance at t1. All are compared but in E5
(ln y1 and y2; y4 is 1e-65), PLEIADES (positions), MEDAKZO and BEAM (those with known figures).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode

from . import ivp
from .problems import close

# Each problem by a method or two, each method of order four and more on two problems or more (FBDF: test_bdf.py too).
# the problem, the method, the bound on each component's relative error. 1e-6 is 100 tolerances; more where the problem
# amplifies errors made early (near collisions in PLEIADES, the modulated signal in RINGMOD, the free end of BEAM)
ENDS = [
    (ivp.HIRES, "Kvaerno5", 1e-6),
    (ivp.ROBER, "Rodas5P", 1e-6),
    (ivp.ROBER, "KenCarp5", 1e-6),
    (ivp.OREGO, "Rodas5P", 1e-6),
    (ivp.VDPOL, "Kvaerno5", 1e-6),
    (ivp.E5, "Rodas5P", 1e-6),
    (ivp.POLLU, "Rodas4", 1e-6),
    (ivp.POLLU, "FBDF", 1e-6),
    (ivp.PLEIADES, "Vern9", 1e-5),
    (ivp.RINGMOD, "Rodas5P", 1e-6),
    (ivp.RINGMOD, "Kvaerno5", 1e-4),
    (ivp.BEAM, "Rodas5P", 1e-5),
    (ivp.BEAM, "Vern9", 1e-5),
    (ivp.MEDAKZO, "Rodas5P", 1e-6),
    (ivp.MEDAKZO, "KenCarp4", 1e-6),
    (ivp.CHEMAKZO, "KenCarp5", 1e-6),
    (ivp.TRANSAMP, "Rodas5P", 1e-6),
    (ivp.TRANSAMP, "Kvaerno5", 1e-6),
    (ivp.CUBIC, "Rodas4", 1e-7),
    (ivp.ROBER_DAE, "KenCarp4", 1e-6),
    (ivp.ROBER_DAE, "FBDF", 1e-6),
    (ivp.ROOT, "Rodas5P", 1e-7),
    (ivp.BRUSSELATOR, "KenCarp5", 1e-6),
]


@pytest.mark.parametrize(("problem", "name", "bound"), ENDS, ids=lambda x: getattr(x, "name", x))
def test_end_values(problem, name, bound):
    options = {"reltol": 1e-8, "abstol": problem.atol, "max_steps": 1_000_000}
    if problem.mass_matrix is not None:
        options["initializealg"] = ode.BrownBasic()
    u = problem.end(getattr(ode, name)(), **options)
    got, want = np.asarray(problem.pick(u)), np.asarray(problem.values)
    assert np.all(np.abs(want) > problem.pick(np.broadcast_to(problem.atol, u.shape))), "a component below atol"
    error = np.abs(got - want) / np.abs(want)
    assert np.max(error) <= bound, f"relative errors {error}"


# low orders, at a tolerance which they reach in some thousand steps
@pytest.mark.parametrize(
    ("name", "bound"),
    [("Rosenbrock23", 1e-4), ("TRBDF2", 1e-4), ("Kvaerno3", 1e-4), ("KenCarp4", 1e-5)],
)
def test_robertson_by_every_other_method(name, bound):
    u = ivp.ROBER_40.end(getattr(ode, name)(), reltol=1e-6, abstol=100 * ivp.ROBERTSON_ATOL)
    close(u / np.array(ivp.ROBER_40.values), np.ones(3), bound)


# ---------------------------------------------------------------- what holds between components


def test_invariants():
    """Masses of Robertson and HIRES: a step adds multiples of values of f, and of solutions with its Jacobian."""
    problem = ivp.ROBER_40
    sol = ode.solve(problem.ode(), ode.Rodas5P(), saveat=[0.4, 4.0, 40.0], reltol=1e-8, abstol=problem.atol)
    close(jnp.sum(sol.u, axis=1), np.ones(3), 1e-11)
    sol = ode.solve(ivp.HIRES.ode(), ode.Rodas5P(), saveat=[321.8122], reltol=1e-8, abstol=ivp.HIRES.atol)
    close(jnp.sum(sol.u[:, 6:], axis=1), [0.0057], 1e-11)


def test_algebraic_rows_hold_at_saved_times():
    """Interpolated states meet 0 = g(u) to the accuracy of the dense output; the first one was put right."""
    times = np.linspace(0.0, 0.1, 7)
    sol = ode.solve(
        ivp.CUBIC.ode(),
        ode.Rodas5P(),
        u0=np.array([1.0, 0.9, 0.8]),
        saveat=times,
        reltol=1e-8,
        abstol=1e-10,
        initializealg=ode.BrownBasic(),
    )
    rows = jax.vmap(lambda t, u: ivp.cubic(t, u, ivp.CUBIC.p)[1:])(times, sol.u)
    assert np.max(np.abs(rows)) < 1e-6
    assert np.max(np.abs(rows[0])) < 1e-9
    close(sol.u[0], ivp.CUBIC.u0, 1e-9)
    close(sol.u[-1], ivp.CUBIC.values, 1e-7)


def test_an_inconsistent_start_is_refused_by_check_init():
    options = {"saveat": [0.1], "initializealg": ode.CheckInit()}
    good = ode.solve(ivp.CUBIC.ode(), ode.Rodas5P(), reltol=1e-8, abstol=1e-10, **options)
    close(good.u[-1], ivp.CUBIC.values, 1e-7)
    with pytest.raises(ode.SolveError):
        ode.solve(ivp.CUBIC.ode(), ode.Rodas5P(), u0=np.array([1.0, 0.9, 0.8]), **options)
    bad = ode.solve(ivp.CUBIC.ode(), ode.Rodas5P(), u0=np.array([1.0, 0.9, 0.8]), throw=False, **options)
    assert bad.retcode == ode.ReturnCode.InitialisationFailure
    assert not bad.success


def test_a_start_that_cannot_be_put_right_is_refused():
    """0 = z^2 + 1 + x has no real z."""
    problem = ode.ODEProblem(
        lambda t, u, p: jnp.stack([-u[1], u[1] ** 2 + 1 + u[0]]),
        np.array([4.0, 1.0]),
        (0.0, 1.5),
        mass_matrix=np.diag([1.0, 0.0]),
    )
    with pytest.raises(ode.SolveError):
        ode.solve(problem, ode.Rodas5P(), saveat=[1.5], initializealg=ode.BrownBasic())
