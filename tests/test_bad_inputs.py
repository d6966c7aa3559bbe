"""Bad inputs and the message that each gets: before anything is solved, with what was given and what was expected.

`JAX_ENABLE_X64=1 python -m tests.test_bad_inputs` writes the table to docs/bad_inputs.md.
"""

import re
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import odesens as ode

PAGE = Path(__file__).parent.parent / "docs" / "bad_inputs.md"
DECAY = ode.ODEProblem(lambda t, u, p: -p * u, 1.0, (0.0, 1.0), 2.0)
PAIR = ode.ODEProblem(lambda t, u, p: -u, [1.0, 2.0], (0.0, 1.0))


class Bad(NamedTuple):
    what: str
    call: str
    kind: type
    says: str


def solve(**options):
    return ode.solve(DECAY, ode.Tsit5(), **options)


BAD = [
    Bad("f that is no function", "ode.ODEProblem(3.0, 1.0, (0.0, 1.0))", TypeError, "needs a function f(t, u, p) first, got float"),
    Bad("tspan that is no pair", "ode.ODEProblem(abs, 1.0, 1.0)", ValueError, "tspan must be a pair (t0, t1), got 1.0"),
    Bad("an unknown option", "ode.ODEProblem(abs, 1.0, (0.0, 1.0), rtol=1e-3)", TypeError, "unknown options ['rtol']; known are"),
    Bad("an unknown option of solve", "solve(tol=1e-3)", TypeError, "unknown options ['tol']; known are"),
    Bad("jac that is no function", "ode.ODEProblem(abs, 1.0, (0.0, 1.0), jac=np.eye(1))", TypeError, "jac must be a function"),
    Bad("something else to solve", "ode.solve(abs)", TypeError, "solve needs an ODEProblem"),
    Bad("f of other arguments", "ode.solve(ode.ODEProblem(lambda u, t: -u, 1.0, (0.0, 1.0)))", TypeError, "f(t, u, p)"),
    Bad("f of another shape", "ode.solve(ode.ODEProblem(lambda t, u, p: u[:1], [1.0, 2.0], (0.0, 1.0)))", ValueError, "f must return du/dt"),
    Bad("f of another structure", "ode.solve(ode.ODEProblem(lambda t, u, p: u['x'], {'x': 1.0}, (0.0, 1.0)))", TypeError, "structure of u"),
    Bad("a complex rate of a real state", "ode.solve(ode.ODEProblem(lambda t, u, p: 1j * u, 1.0, (0.0, 1.0)))", TypeError, "complex"),
    Bad("f that returns nothing", "ode.solve(ode.ODEProblem(lambda t, u, p: None, 1.0, (0.0, 1.0)))", TypeError, "f must return du/dt"),
    Bad("a state of texts", "ode.solve(ode.ODEProblem(lambda t, u, p: u, 'x', (0.0, 1.0)))", TypeError, "u0"),
    Bad("a method's class", "ode.solve(DECAY, ode.Tsit5)", TypeError, "Tsit5()"),
    Bad("a method's name", "ode.solve(DECAY, 'Tsit5')", TypeError, "Tsit5"),
    Bad("a negative tolerance", "solve(reltol=-1e-3)", ValueError, "reltol"),
    Bad("an infinite tolerance", "solve(reltol=float('inf'))", ValueError, "reltol"),
    Bad("a tolerance that is no number", "solve(abstol=float('nan'))", ValueError, "abstol"),
    Bad("tolerances of another shape", "ode.solve(PAIR, abstol=[1e-3] * 3)", ValueError, "abstol"),
    Bad("a saved time outside the span", "solve(saveat=[0.5, 1.5])", ValueError, "saveat"),
    Bad("saved times out of order", "solve(saveat=[0.7, 0.5])", ValueError, "saveat"),
    Bad("a step that is not positive", "solve(saveat=-0.1)", ValueError, "saveat"),
    Bad("a saved time that is no number", "solve(saveat=[0.5, float('nan')])", ValueError, "saveat"),
    Bad("saved times in a matrix", "solve(saveat=np.zeros((2, 2)))", ValueError, "saveat"),
    Bad("complex saved times", "solve(saveat=[1j])", TypeError, "saveat"),
    Bad("a text as saved times", "solve(saveat='all')", TypeError, "saveat"),
    Bad("a span that is no number", "solve(tspan=(0.0, float('nan')))", ValueError, "tspan"),
    Bad("a span without end", "solve(tspan=(0.0, float('inf')))", ValueError, "tspan"),
    Bad("max_steps of zero", "solve(max_steps=0)", ValueError, "max_steps"),
    Bad("max_steps that is no integer", "solve(max_steps=1.5)", (TypeError, ValueError), "max_steps"),
    Bad("a first step of zero", "solve(dt0=0.0)", ValueError, "dt0"),
    Bad("fixed steps without a size", "ode.solve(DECAY, ode.RK4(), adaptive=False)", ValueError, "dt0"),
    Bad("a method of fixed steps without a size", "ode.solve(DECAY, ode.Euler())", ValueError, "needs dt0="),
    Bad("dtmin above dtmax", "solve(dtmin=1.0, dtmax=0.1)", ValueError, "dtm"),
    Bad("a truth value that is none", "solve(dense='yes')", TypeError, "dense must be True or False, got 'yes'"),
    Bad("a sensitivity algorithm's class", "solve(sensealg=ode.GaussAdjoint)", TypeError, "GaussAdjoint"),
    Bad("a sensitivity algorithm's name", "solve(sensealg='adjoint')", TypeError, "sensealg"),
    Bad("a tolerance of the adjoint", "ode.GaussAdjoint(reltol=-1.0)", ValueError, "reltol > 0"),
    Bad("steps of the adjoint", "ode.GaussAdjoint(max_steps=0)", ValueError, "max_steps >= 1"),
    Bad("a mass matrix of another size", "ode.solve(ode.remake(PAIR, mass_matrix=np.eye(3)), ode.Rodas5P())", ValueError, "mass_matrix"),
    Bad("a complex mass matrix", "ode.solve(ode.remake(PAIR, mass_matrix=1j * np.eye(2)), ode.Rodas5P())", ValueError, "mass_matrix"),
    Bad("algebraic equations, explicitly", "ode.solve(ode.remake(PAIR, mass_matrix=[1.0, 0.0]), ode.Tsit5())", ValueError, "M is singular"),
    Bad("a pattern of another size", "ode.solve(ode.remake(PAIR, jac_sparsity=np.eye(3)), ode.Rodas5P())", ValueError, "jac_sparsity must have shape (2, 2)"),
    Bad("backsolve of algebraic equations", "ode.solve(ode.remake(PAIR, mass_matrix=[1.0, 2.0]), ode.Rodas5P(), sensealg=ode.BacksolveAdjoint())", ValueError, "BacksolveAdjoint"),
    Bad("remake of an unknown part", "ode.remake(DECAY, u1=2.0)", TypeError, "unknown options ['u1']"),
    Bad("remake of something else", "ode.remake(abs)", TypeError, "remake needs an ODEProblem first"),
    Bad("a callback that is none", "solve(callback=abs)", TypeError, "callback"),
    Bad("an event without condition", "ode.ContinuousCallback(1.0, None, terminate=True)", TypeError, "condition"),
    Bad("a direction that is none", "ode.ContinuousCallback(lambda t, u, p: u, None, direction=2, terminate=True)", ValueError, "direction"),
    Bad("a period of zero", "ode.PeriodicCallback(0.0, lambda t, u, p: u)", ValueError, "dt"),
    Bad("max_events of zero", "solve(max_events=0)", ValueError, "max_events"),
    Bad("a time outside the span", "solve(saveat=[1.0])(2.0)", ValueError, "times within tspan = (0, 1), got 2 to 2"),
    Bad("a complex time", "solve(saveat=[1.0])(1j)", TypeError, "needs real times"),
    Bad("a derivative of order -1", "solve(saveat=[1.0])(0.5, deriv=-1)", ValueError, "deriv must be an integer >= 0, got -1"),
    Bad("a saved state that is not there", "solve(saveat=[1.0])[3]", IndexError, "this solution has 1 saved states"),
    Bad("a name where there are none", "solve(saveat=[1.0])['x']", TypeError, "saved states are indexed by number"),
    Bad("an ensemble of something else", "ode.EnsembleProblem(abs)", TypeError, "needs an ODEProblem first"),
    Bad("trajectories that are not told", "ode.solve(ode.EnsembleProblem(DECAY), ode.Tsit5())", (TypeError, ValueError), "trajectories"),
    Bad("lanes of zero", "ode.EnsembleVectorized(lanes=0)", ValueError, "lanes must be at least 1, got 0"),
    Bad("axes of other lengths", "ode.solve(ode.EnsembleProblem(PAIR, u0=jnp.ones((3, 2))), ode.Tsit5(), trajectories=4)", ValueError, "4"),
    Bad("a reduction without start", "ode.EnsembleProblem(DECAY, reduction=lambda u, b, i: u)", ValueError, "u_init"),
    Bad("a steady state without guess", "ode.SteadyStateProblem(lambda t, u, p: u)", TypeError, "first guess u0"),
    Bad("options of a steady state", "ode.solve(ode.SteadyStateProblem(lambda t, u, p: u, 1.0), saveat=[1.0])", TypeError, "saveat"),
    Bad("knots out of order", "ode.interpolation.LinearInterpolation(np.array([1.0, 0.0]), np.zeros(2))", ValueError, "must not decrease"),
    Bad("values for other knots", "ode.interpolation.LinearInterpolation(np.array([0.0, 1.0]), np.zeros(3))", ValueError, "3"),
    Bad("a file that is none", "ode.load('README.md')", ValueError, "is not a solution that odesens saved"),
]  # fmt: skip


def message(bad: Bad) -> str:
    with pytest.raises(bad.kind) as caught:
        eval(bad.call, {"ode": ode, "np": np, "jnp": jnp, "jax": jax, "solve": solve, "DECAY": DECAY, "PAIR": PAIR})
    return str(caught.value)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.what)
def test_bad_input_is_refused_in_words(bad, monkeypatch):
    monkeypatch.chdir(PAGE.parent.parent)
    assert bad.says in message(bad)


def test_there_are_fifty():
    assert len(BAD) >= 50 and len({bad.what for bad in BAD}) == len(BAD)


def page() -> str:
    lines = ["# Bad inputs and what they are told", "", "`DECAY` has a scalar state, `PAIR` two.", ""]
    lines += ["| what | call | error | message |", "| --- | --- | --- | --- |"]
    for bad in BAD:
        kind = " or ".join(k.__name__ for k in (bad.kind if isinstance(bad.kind, tuple) else (bad.kind,)))
        text = (
            re.sub(r"\s+", " ", re.sub(r" at 0x[0-9a-f]+", "", message(bad))).replace("|", "\\|").replace("<", "&lt;")
        )
        lines.append(f"| {bad.what} | `{bad.call}` | {kind} | {text} |")
    return "\n".join(lines) + "\n"


def test_the_page_is_what_is_said(monkeypatch):
    monkeypatch.chdir(PAGE.parent.parent)
    assert PAGE.read_text() == page(), "write it again: JAX_ENABLE_X64=1 python -m tests.test_bad_inputs"


if __name__ == "__main__":
    PAGE.write_text(page())
