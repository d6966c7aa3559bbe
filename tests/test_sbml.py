"""Models in SBML: the kinds of the semantic test suite, written anew, against closed forms or SciPy at 1e-12."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import minimize
from scipy.special import lambertw

import odesens as ode
from odesens.symbolic import InitialValueError, from_sbml

from .problems import close
from .sbml_models import (
    MATHML,
    algebraic,
    assignment,
    compartment,
    document,
    event,
    function,
    initial,
    math,
    parameter,
    rate,
    reaction,
    species,
    stat5,
)

libsbml = pytest.importorskip("libsbml")

TS = np.array([0.0, 0.4, 1.1, 2.0])
TIGHT = dict(reltol=1e-11, abstol=1e-13)


def weights(shape):
    return np.cos(np.arange(np.prod(shape))).reshape(shape) + 0.3


def check(text, outputs, values, exact, tol=1e-8, slope_tol=1e-7, alg=None, **options):
    """The outputs at times, and the gradient of a weighted sum of them in named values, against a closed form.

    Without a `slope_tol` no gradient is taken.

    exact(t, *values) -> one array or number for each output.
    """
    prob = ode.ODEProblem(from_sbml(text), {}, (0.0, TS[-1]), saveat=TS, **(TIGHT | options))
    names = list(values)
    of = {name: name in prob.system.flat.parameters for name in names}

    def run(v):
        given = dict(zip(names, v, strict=True))
        u0 = {name: x for name, x in given.items() if not of[name]}
        sol = ode.solve(prob, alg, u0=u0, p={name: x for name, x in given.items() if of[name]})
        out = jnp.stack([sol[name] for name in outputs])
        return jnp.sum(weights(out.shape) * out), out

    def true(v):
        out = jnp.stack([jnp.broadcast_to(x, TS.shape) for x in exact(jnp.asarray(TS), *v)])
        return jnp.sum(weights(out.shape) * out), out

    v = jnp.array(list(values.values()))
    if slope_tol is None:
        close(run(v)[1], true(v)[1], tol)
        return prob
    (_, got), slope = jax.value_and_grad(run, has_aux=True)(v)
    (_, want), true_slope = jax.value_and_grad(true, has_aux=True)(v)
    close(got, want, tol)
    close(slope, true_slope, slope_tol)
    return prob


def check_by_scipy(text, outputs, values, field, start):
    """The same against a field and a start written by hand, derivatives by the complex step."""
    prob = ode.ODEProblem(from_sbml(text), {}, (0.0, TS[-1]), saveat=TS, **TIGHT)
    names = list(values)

    def run(v):
        sol = ode.solve(prob, p=dict(zip(names, v, strict=True)))
        out = jnp.stack([sol[name] for name in outputs])
        return jnp.sum(weights(out.shape) * out), out

    def true(v):
        f = lambda t, u: np.array(field(t, u, *v))
        made = solve_ivp(f, (0, TS[-1]), np.array(start(*v), complex), "DOP853", TS, rtol=1e-12, atol=1e-14)
        return made.y

    v = np.array(list(values.values()))
    (_, got), slope = jax.value_and_grad(run, has_aux=True)(jnp.asarray(v))
    want = true(v.astype(complex)).real
    close(got, want, 1e-8)
    step = lambda i: true(v + 1e-30j * np.eye(len(v))[i]).imag / 1e-30
    close(slope, [np.sum(weights(want.shape) * step(i)) for i in range(len(v))], 1e-7)


# ---------------------------------------------------------------- reactions

DECAY = document(
    compartment(), species("A", 2.0), species("B", 0.5), parameter("k", 0.7), reaction("J", "A -> B", "k * A * C")
)


def test_mass_action():
    exact = lambda t, k, a: (a * jnp.exp(-k * t), 0.5 + a * (1 - jnp.exp(-k * t)), k * a * jnp.exp(-k * t))
    prob = check(DECAY, ["A", "B", "J"], {"k": 0.7, "A": 2.0}, exact)
    assert prob.system.names == ("A", "B")
    assert prob.tunables.names == ("k",)


def test_reversible_with_units_and_names():
    text = document(
        '<unitDefinition id="per_s"><listOfUnits><unit kind="second" exponent="-1" scale="0" multiplier="60"/>'
        "</listOfUnits></unitDefinition>",
        compartment("lambda", 1.0),
        species("A", 2.0, place="lambda"),
        species("B", 0.0, place="lambda"),
        parameter("k1", 0.7, units="per_s", name="forward"),
        parameter("k2", 0.3, units="per_s"),
        reaction("J", "A -> B", "(k1 * A - k2 * B) * lambda"),
        more='substanceUnits="mole" volumeUnits="litre" timeUnits="second" extentUnits="mole"',
    )
    exact = lambda t, k1, k2: (2 * (k2 + k1 * jnp.exp(-(k1 + k2) * t)) / (k1 + k2),)
    check(text, ["A"], {"k1": 0.7, "k2": 0.3}, exact, slope_tol=None)
    model = from_sbml(text, name="cell")
    assert (model.k1.unit, model.k1.description) == ("(60 second)^-1", "forward")
    assert sorted(model.A.unit.split()) == ["litre^-1", "mole"]
    assert model["lambda"].name == "cell.lambda"


def test_function_definitions():
    text = document(
        function("half", "x y", "x / (x + y)"),
        function("michaelis", "S V K", "V * half(S, K)"),
        compartment(),
        species("S", 2.0),
        parameter("V", 1.3),
        parameter("K", 0.4),
        reaction("J", "S ->", "C * michaelis(S, V, K)"),
    )
    s = lambda V, K, t: K * lambertw(2 / K * np.exp((2 - V * t) / K)).real  # Schnell and Mendoza
    check_by_scipy(text, ["S"], {"V": 1.3, "K": 0.4}, lambda t, u, V, K: [-V * u[0] / (K + u[0])], lambda V, K: [2.0])
    sol = ode.solve(ode.ODEProblem(from_sbml(text), {}, (0.0, 2.0), saveat=TS, **TIGHT))
    close(sol["S"], s(1.3, 0.4, TS), 1e-8)


def test_initial_assignments_follow_parameters():
    text = document(
        compartment(size=2.0),
        species("A", amount=9.0),
        parameter("k"),
        parameter("q", 0.3),
        parameter("total", 3.0),
        initial("k", "2 * q + 0.1"),
        initial("A", "total - k"),
        reaction("J", "A ->", "k * A * C"),
    )
    exact = lambda t, q, total: ((total - 2 * q - 0.1) * jnp.exp(-(2 * q + 0.1) * t),)
    check(text, ["A"], {"q": 0.3, "total": 3.0}, exact)
    prob = ode.ODEProblem(from_sbml(text), {}, (0.0, 2.0), {"k": 0.5}, saveat=TS, **TIGHT)
    close(ode.solve(prob)["A"], 2.5 * np.exp(-0.5 * TS), 1e-8)  # what is given goes before what is assigned


def test_stoichiometry_and_modifiers():
    text = document(
        compartment(),
        species("A", 2.0),
        species("B", 0.0),
        species("E", 0.7, constant=True, boundary=True),
        parameter("k", 0.9),
        reaction("J", "2 A -> 1.5 B", "C * k * E * A^2", modifiers=["E"]),
    )
    a = lambda t, k, e: 2 / (1 + 4 * k * e * t)
    exact = lambda t, k, e: (a(t, k, e), 0.75 * (2 - a(t, k, e)))
    check(text, ["A", "B"], {"k": 0.9, "E": 0.7}, exact, slope_tol=None)


def test_local_parameters_shadow_global_ones():
    text = document(
        compartment(),
        species("A", 2.0),
        species("B", 1.0),
        parameter("k", 0.5),
        parameter("J_k", 9.0),
        reaction("J", "A ->", "C * k * A", local={"k": 0.3}),
        reaction("L", "B ->", "C * k * B"),
    )
    exact = lambda t, own, k: (2 * jnp.exp(-own * t), jnp.exp(-k * t))
    prob = check(text, ["A", "B"], {"J_k_": 0.3, "k": 0.5}, exact)
    assert set(prob.tunables.names) == {"k", "J_k", "J_k_"}


def test_piecewise_kinetics_switch_at_a_known_time():
    law = "C * A * piecewise(k1, time < 2 * T, k2)"
    constants = parameter("k1", 0.3), parameter("k2", 1.4), parameter("T", 0.35)
    text = document(compartment(), species("A", 2.0), *constants, reaction("J", "A ->", law))
    exact = lambda t, k1, k2, T: (2 * jnp.exp(-k1 * jnp.minimum(t, 2 * T) - k2 * jnp.maximum(t - 2 * T, 0)),)
    check(text, ["A"], {"k1": 0.3, "k2": 1.4, "T": 0.35}, exact)


def test_piecewise_kinetics_switch_at_a_state():
    law = "C * piecewise(k * A, A < 1, k)"
    text = document(compartment(), species("A", 1.5), parameter("k", 0.8), reaction("J", "A ->", law))
    exact = lambda t, k: (jnp.where(k * t < 0.5, 1.5 - k * t, jnp.exp(-(k * t - 0.5))),)
    # f has a kink there: a step of size h over it is right to h^2, which the tolerances hold, its derivative to h
    check(text, ["A"], {"k": 0.8}, exact, slope_tol=1e-4)


def test_boundary_species():
    text = document(
        compartment(),
        species("S", 2.0, boundary=True),
        species("W", 0.0, boundary=True),
        species("P", 0.0),
        parameter("k", 0.6),
        assignment("W", "3 * time"),
        reaction("J", "S -> P", "C * k * S"),
        reaction("L", "W -> P", "C * W"),
    )
    exact = lambda t, k, s: (s + 0 * t, k * s * t + 1.5 * t**2)
    check(text, ["S", "P"], {"k": 0.6, "S": 2.0}, exact, slope_tol=None)


def test_conversion_factors():
    text = document(
        compartment(),
        species("A", 2.0),
        species("B", 0.0, factor="f"),
        parameter("k", 0.6),
        parameter("g", 0.5),
        parameter("f", 3.0),
        reaction("J", "A -> B", "C * k * A"),
        more='conversionFactor="g"',
    )
    exact = lambda t, k, g, f: (2 * jnp.exp(-k * g * t), f / g * 2 * (1 - jnp.exp(-k * g * t)))
    check(text, ["A", "B"], {"k": 0.6, "g": 0.5, "f": 3.0}, exact)


def test_stoichiometries_with_names():
    text = document(
        compartment(),
        species("A", 2.0),
        species("B", 0.0),
        species("D", 0.0),
        parameter("k", 0.6),
        parameter("w", 0.9),
        assignment("n", "w * time"),
        initial("m", "2 * w"),
        reaction("J", "A -> ? B + 5 D", "C * k", ids={"B": ("n", False), "D": ("m", True)}),
    )
    exact = lambda t, k, w: (2 - k * t, k * w * t**2 / 2, 2 * w * k * t)
    check(text, ["A", "B", "D"], {"k": 0.6, "w": 0.9}, exact, slope_tol=None)


LEVEL_2 = f"""<?xml version="1.0" encoding="UTF-8"?>
<sbml xmlns="http://www.sbml.org/sbml/level2/version4" level="2" version="4"><model id="old">
<listOfCompartments><compartment id="C" size="2"/></listOfCompartments>
<listOfSpecies><species id="A" compartment="C" initialAmount="4"/><species id="B" compartment="C" initialAmount="0"/>
</listOfSpecies>
<listOfParameters><parameter id="k" value="0.6"/></listOfParameters>
<listOfReactions><reaction id="J">
<listOfReactants><speciesReference species="A"/></listOfReactants>
<listOfProducts><speciesReference species="B"><stoichiometryMath><math xmlns="{MATHML}"><apply><times/><cn> 2 </cn>
<csymbol encoding="text" definitionURL="http://www.sbml.org/sbml/symbols/time">t</csymbol></apply></math>
</stoichiometryMath></speciesReference></listOfProducts>
<kineticLaw><math xmlns="{MATHML}"><apply><times/><ci>C</ci><ci>q</ci></apply></math>
<listOfParameters><parameter id="q" value="0.6"/></listOfParameters></kineticLaw>
</reaction></listOfReactions>
<listOfEvents><event id="E"><trigger><math xmlns="{MATHML}"><apply><lt/><ci>A</ci><cn>1.5</cn></apply></math></trigger>
<listOfEventAssignments><eventAssignment variable="A"><math xmlns="{MATHML}"><cn type="e-notation">4<sep/>-1</cn></math>
</eventAssignment></listOfEventAssignments></event></listOfEvents>
</model></sbml>"""


def test_level_2():
    exact = lambda t, q: (jnp.where(q * t < 0.5, 2 - q * t, 0.4 - q * t + 0.5), q * t**2)
    check(LEVEL_2, ["A", "B"], {"J_q": 0.6}, exact, slope_tol=None)


# ---------------------------------------------------------------- rules


def test_assignment_rules():
    text = document(
        compartment(),
        species("A", 2.0),
        species("Y", boundary=True),
        parameter("k", 0.6),
        parameter("z", constant=False),
        assignment("Y", "3 * z + 1"),
        assignment("z", "k * A"),
        reaction("J", "A ->", "C * z"),
    )
    exact = lambda t, k: (2 * jnp.exp(-k * t), k * 2 * jnp.exp(-k * t), 6 * k * jnp.exp(-k * t) + 1)
    check(text, ["A", "z", "Y"], {"k": 0.6}, exact, slope_tol=None)


def test_rate_rules_and_a_parameter_named_t():
    text = document(
        compartment(),
        species("A", 2.0, boundary=True),
        parameter("x", 1.0, constant=False),
        parameter("t", 0.6),
        rate("x", "-t * x"),
        rate("A", "x"),
    )
    exact = lambda t, k, x: (x * jnp.exp(-k * t), 2 + x / k * (1 - jnp.exp(-k * t)))
    check(text, ["x", "A"], {"t_": 0.6, "x": 1.0}, exact)


def test_algebraic_rules():
    text = document(
        compartment(),
        species("A", 2.0),
        species("B", boundary=True),
        parameter("root", 1.0, constant=False),
        parameter("total", 3.0),
        parameter("k", 0.6),
        algebraic("A + B - total"),
        algebraic("root^2 - A", "square"),
        reaction("J", "A ->", "C * k * root"),
    )
    root = lambda t, k: jnp.sqrt(2) - k * t / 2
    exact = lambda t, k, total: (root(t, k) ** 2, total - root(t, k) ** 2, root(t, k))
    check(text, ["A", "B", "root"], {"k": 0.6, "total": 3.0}, exact, alg=ode.Rodas5P(), reltol=1e-9, abstol=1e-11)


def test_algebraic_rules_that_leave_a_choice_or_none():
    both = parameter("x", constant=False), parameter("y", 2.0, constant=False)
    with pytest.warns(UserWarning, match=r"sum may determine any of x, y; taken is x"):
        model = from_sbml(document(*both, algebraic("x + 2 * y - 10", "sum")))
    assert (ode.solve(ode.ODEProblem(model, {}, (0.0, 1.0)), saveat=[1.0])["x"]) == 6.0
    fixed = document(parameter("x", 1.0), parameter("y", constant=False), rate("y", "x"), algebraic("x - y", "sum"))
    with pytest.raises(ValueError, match=r"algebraic rule sum, .* determines nothing: all of x, y is constant"):
        from_sbml(fixed)


# ---------------------------------------------------------------- compartments and amounts


def test_compartments_of_two_sizes():
    text = document(
        compartment("C", 2.5),
        compartment("V", 0.5),
        species("A", amount=5.0),
        species("B", 1.0, place="V"),
        parameter("k", 0.6),
        reaction("J", "A -> B", "k * A * C"),
    )
    a = lambda t, k, c: 5 / c * jnp.exp(-k * t)
    exact = lambda t, k, c, v: (a(t, k, c), 1 + (5 - c * a(t, k, c)) / v)
    check(text, ["A", "B"], {"k": 0.6, "C": 2.5, "V": 0.5}, exact)


def test_only_substance_units():
    text = document(
        compartment(size=2.0),
        species("A", 1.5, only=True),
        species("B", amount=0.0),
        parameter("k", 0.6),
        reaction("J", "A -> B", "k * A"),
    )
    a = lambda t, k, c: 1.5 * c * jnp.exp(-k * t)
    check(text, ["A", "B"], {"k": 0.6, "C": 2.0}, lambda t, k, c: (a(t, k, c), (1.5 * c - a(t, k, c)) / c))


GROWING = (
    compartment(size=2.0, constant=False),
    species("A", 1.5),
    species("E", 0.8, constant=True, boundary=True),
    species("R", 1.0, boundary=True),
    parameter("k", 0.6),
    parameter("g", 0.4),
    rate("R", "0 * g"),
    reaction("J", "A ->", "k * A * C"),
)


def test_a_compartment_that_grows():
    text = document(*GROWING, rate("C", "g * C"))
    exact = lambda t, k, g: (1.5 * jnp.exp(-(k + g) * t), 0.8 * jnp.exp(-g * t), 1 + 0 * t)
    prob = check(text, ["A", "E", "R"], {"k": 0.6, "g": 0.4}, exact)
    sol = ode.solve(prob, u0={"A": 3.0, "C": 1.0})  # a concentration is given, the amount is the state
    close(sol["A"], 3 * np.exp(-TS), 1e-8)
    close(sol["A_amount"], 3 * np.exp(-0.6 * TS), 1e-8)


def test_a_compartment_by_assignment_and_by_event():
    text = document(*GROWING, assignment("C", "2 + g * time"))
    exact = lambda t, k, g: (3 * jnp.exp(-k * t) / (2 + g * t), 1.6 / (2 + g * t))
    check(text, ["A", "E"], {"k": 0.6, "g": 0.4}, exact)
    text = document(*GROWING, event("split", "time >= 1", {"C": "C / 2", "k": "0 * k"}))
    text = text.replace('id="k" value="0.6" constant="true"', 'id="k" value="0.6" constant="false"')
    half = lambda t: 1 + (t >= 1)
    exact = lambda t, k: (1.5 * half(t) * jnp.exp(-k * jnp.minimum(t, 1)), 0.8 * half(t), half(t))
    check(text, ["A", "E", "R"], {"k": 0.6}, exact)


def test_an_event_that_sets_a_concentration_and_a_size():
    text = document(*GROWING, event("E1", "time >= 1", {"C": "2 * C", "A": "A + 1"}))
    before = lambda t, k: 1.5 * jnp.exp(-k * jnp.minimum(t, 1))
    exact = lambda t, k: (jnp.where(t < 1, before(t, k), (before(t, k) + 1) * jnp.exp(-k * (t - 1))),)
    check(text, ["A"], {"k": 0.6}, exact, slope_tol=None)


# ---------------------------------------------------------------- events


def test_events_at_known_times():
    constants = parameter("k", 0.6), parameter("T", 0.7), parameter("dose", 1.2), parameter("n", 0.0, constant=False)
    both = (
        event("give", "time >= T", {"A": "A + dose", "n": "n + 1"}),
        event("late", "time > 50", {"A": "0"}),
        event("early", "time >= 0", {"A": "7"}),  # true at the start and before: it does not become true
    )
    text = document(compartment(), species("A", 2.0), *constants, *both, reaction("J", "A ->", "C * k * A"))
    later = lambda t, k, T, dose: dose * jnp.where(t >= T, jnp.exp(-k * (t - T)), 0)
    exact = lambda t, k, T, dose: (2 * jnp.exp(-k * t) + later(t, k, T, dose), 1.0 * (t >= T))
    check(text, ["A", "n"], {"k": 0.6, "T": 0.7, "dose": 1.2}, exact)


def test_events_of_states():
    refill = event("refill", "A <= low && time > 0", {"A": "full"})
    constants = parameter("k", 1.0), parameter("low", 1.0), parameter("full", 2.0)
    text = document(compartment(), species("A", 2.0), *constants, refill, reaction("J", "A ->", "C * k * A"))

    def exact(t, k, low, full):
        first = jnp.log(2 / low) / k
        period = jnp.log(full / low) / k
        since = jnp.where(t < first, t, t - first - period * jnp.floor((t - first) / period))
        return (jnp.where(t < first, 2.0, full) * jnp.exp(-k * since),)

    check(text, ["A"], {"k": 1.0, "low": 1.0, "full": 2.0}, exact)


def test_events_before_and_after_the_start():
    text = document(
        parameter("x", 1.0, constant=False),
        parameter("y", 0.0, constant=False),
        parameter("z", 0.0, constant=False),
        rate("x", "1"),
        event("first", "x > 0.5", {"y": "x + 2"}, was=False),  # true at the start and false before
        event("second", "y > 1", {"z": "z + y"}),  # made true by the first, and by the third
        event("third", "x > 1.5", {"y": "0"}),
        event("fourth", "time >= 0.9", {"y": "5"}),
        event("never", "z < 0", {"z": "100"}, was=False),
    )
    sol = ode.solve(ode.ODEProblem(from_sbml(text), {}, (0.0, 2.0), saveat=[0.0, 0.4, 0.7, 1.0, 2.0], **TIGHT))
    close(sol["y"], [3.0, 3.0, 0.0, 5.0, 5.0], 1e-12)
    close(sol["z"], [3.0, 3.0, 3.0, 8.0, 8.0], 1e-12)


def test_triggers_that_leave_their_threshold_at_the_start():
    text = document(
        parameter("x", constant=False),
        parameter("y", 1.0, constant=False),
        parameter("one", 1.0),
        *(parameter(name, 0.0, constant=False) for name in ("up", "down", "at")),
        initial("x", "2 * one"),
        rate("x", "1"),
        rate("y", "one"),
        event("rises", "x > 2 * y", {"up": "up + 1"}),  # x - 2 y falls
        event("falls", "x < 2 * y", {"down": "down + 1"}),
        event("is", "x >= 2", {"at": "at + 1"}),  # true at the start
    )
    sol = ode.solve(ode.ODEProblem(from_sbml(text), {}, (0.0, 1.0), saveat=[0.0, 1.0]))
    close([sol[name] for name in ("up", "down", "at")], [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]], 1e-15)


@pytest.mark.parametrize("at_trigger, want", [(True, [2.0, 1.0, 7.0]), (False, [2.0, 2.0, 7.0])])
def test_events_of_one_trigger(at_trigger, want):
    text = document(
        *(parameter(name, value, constant=False) for name, value in (("x", 1.0), ("y", 2.0), ("w", 0.0))),
        event("b", "time >= 1", {"y": "x", "w": "7"}, at_trigger=at_trigger, priority="1"),
        event("a", "time >= 1", {"x": "y", "w": "6"}, at_trigger=at_trigger, priority="2"),  # the first
    )
    sol = ode.solve(ode.ODEProblem(from_sbml(text), {}, (0.0, 2.0), saveat=[2.0]))
    close([sol[name][0] for name in "xyw"], want, 1e-15)


def test_triggers_of_all_kinds():
    counted = {
        "a": ("time > 0.5 && x < 0.7", 1),  # true once, at 0.5
        "b": ("x > 0.9 || x < 0.3", 1),  # true at the start, and again at 0.9
        "c": ("!(x < 0.2)", 1),
        "d": ("x == 0.5", 1),
        "e": ("xor(x > 0.1, x > 0.6)", 1),
        "f": ("piecewise(x > 0.2, x < 0.4, x > 0.6)", 2),  # at 0.2, off at 0.4, on at 0.6
        "g": ("a > 0.5 && x > 0.8", 1),  # waits for another event
        "h": ("true", 0),
        "i": ("time < 0.5", 0),
        "j": ("a == 1", 1),  # by the first
        "k": ("a != 1", 0),
    }
    made = [parameter(name, 0.0, constant=False) for name in counted]
    made += [event(f"on_{name}", trigger, {name: f"{name} + 1"}) for name, (trigger, _) in counted.items()]
    text = document(parameter("x", 0.0, constant=False), rate("x", "1"), *made)
    sol = ode.solve(ode.ODEProblem(from_sbml(text), {}, (0.0, 1.0), saveat=[1.0], dtmax=0.05))
    assert {name: float(sol[name][0]) for name in counted} == {name: count for name, (_, count) in counted.items()}


# ---------------------------------------------------------------- MathML


def test_vocabulary():
    e, x = np.e, 0.3
    formulas = {
        "abs(-x) + floor(2.5) + ceil(-2.5)": 0.3 + 2 - 2,
        "exp(x) * ln(2) + log10(50) + log(2, 8) + root(3, 8) + sqrt(x)": e**x * np.log(2)
        + np.log10(50)
        + 3
        + 2
        + x**0.5,
        "factorial(4) + pow(x, 3) + x^2": 24 + x**3 + x**2,
        "sin(x) + cos(x) * tan(x) - sec(x) + csc(x) / cot(x)": np.sin(x) * 2 - 1 / np.cos(x) + np.tan(x) / np.sin(x),
        "arcsin(x) + arccos(x) + arctan(x)": np.arcsin(x) + np.arccos(x) + np.arctan(x),
        "arcsec(2) + arccsc(2) + arccot(2)": np.arccos(0.5) + np.arcsin(0.5) + np.arctan(0.5),
        "sinh(x) + cosh(x) + tanh(x) + sech(x) + csch(x) + coth(x)": np.sinh(x)
        + np.cosh(x)
        + np.tanh(x)
        + 1 / np.cosh(x)
        + 1 / np.sinh(x)
        + 1 / np.tanh(x),
        "arcsinh(x) + arccosh(2) + arctanh(x)": np.arcsinh(x) + np.arccosh(2) + np.arctanh(x),
        "arcsech(x) + arccsch(x) + arccoth(2)": np.arccosh(1 / x) + np.arcsinh(1 / x) + np.arctanh(0.5),
        "pi + exponentiale + avogadro / 1e23 + (1e-3)": np.pi + e + 6.02214179 + 1e-3,
        "max(x, 0.1, 0.2) + min(x, 0.1) + 3": 3.4,
        "quotient(-7, 2) * 10 + rem(-7, 2) + x % 0.2": -31 + 0.1,
        "piecewise(1, x > 1, 2, x > 0.2, 3)": 2.0,
        "piecewise(1, x > 1, 5)": 5.0,
        "piecewise(1, x > 0 && x < 1 && !(x == 2), 0)": 1.0,
        "piecewise(1, implies(x > 1, false), 0)": 1.0,
        "piecewise(1, lt(0.1, x, 0.2), 0) + (x < 1)": 1.0,
        "time * 2 + rateOf(u)": 2 * 0.5 + 4.0,
        "-x - -x + 1 / 4": 0.25,
    }
    made = [parameter(f"y{i}", constant=False) for i in range(len(formulas))]
    made += [assignment(f"y{i}", formula) for i, formula in enumerate(formulas)]
    text = document(parameter("x", x), parameter("u", 0.0, constant=False), rate("u", "4"), *made, version=2)
    sol = ode.solve(ode.ODEProblem(from_sbml(text), {}, (0.0, 0.5), saveat=[0.5]))
    for i, (formula, want) in enumerate(formulas.items()):
        assert np.isclose(sol[f"y{i}"][0], want, rtol=1e-13, atol=1e-14), formula


def test_long_sums_are_read_without_recursion():
    many = "x" + " + x" * 3000
    text = document(parameter("x", 0.5), parameter("y", constant=False), assignment("y", many))
    assert from_sbml(text).equations[0][1] == 3001 * from_sbml(text, name="").x


# ---------------------------------------------------------------- a signalling model, data on a log scale

RATES = {
    "k_A": 0.03,
    "k_B": 0.015,
    "decay": 0.012,
    "join_homo": 0.002,
    "join_hetero": 0.006,
    "enter_homo": 0.15,
    "enter_hetero": 0.06,
    "leave_homo": 0.02,
    "leave_hetero": 0.07,
}
OBSERVABLES = ["phosphoA", "phosphoB", "nuclear"]
MINUTES = np.array([2.5, 5, 10, 15, 20, 30, 40, 50, 60, 80, 100, 120, 160, 200, 240])
LOG_RATES = np.log10(list(RATES.values()))


def stat5_by_hand(logs):
    """The observables (3, times), by SciPy; logs may be complex."""
    kA, kB, decay, d, dx, i, ix, o, ox = 10 ** np.asarray(logs, complex)
    ratio = 1.4 / 0.45

    def field(t, u):
        A, B, pA, pB, AA, AB, BB, nAA, nAB, nBB = u
        epo = np.exp(-decay * t)
        a, b, v, w, x = kA * epo * A, kB * epo * B, d * pA**2, dx * pA * pB, d * pB**2
        out = o * nAA / ratio, ox * nAB / ratio, o * nBB / ratio
        return np.array(
            [
                -a + 2 * out[0] + out[1],
                -b + 2 * out[2] + out[1],
                a - 2 * v - w,
                b - 2 * x - w,
                v - i * AA,
                w - ix * AB,
                x - i * BB,
                (i * AA - out[0]) * ratio,
                (ix * AB - out[1]) * ratio,
                (i * BB - out[2]) * ratio,
            ]
        )

    start = np.array([140, 70, *[0] * 8], complex)
    u = solve_ivp(field, (0, 240), start, "DOP853", MINUTES, rtol=1e-12, atol=1e-12).y
    return np.stack([u[2] + 2 * u[4] + u[5], u[3] + 2 * u[6] + u[5], u[7] + u[8] + u[9]])


def nllh(log_y, measured, log_sigma, xp):
    """Of measurements whose logarithm to base 10 is normal, in natural units."""
    left = (log_y - xp.log10(measured)) / 10**log_sigma
    return xp.sum(left**2 / 2 + log_sigma * np.log(10) + np.log(2 * np.pi) / 2 + xp.log(measured * np.log(10)))


def test_signalling_model_with_data_on_a_log_scale():
    prob = ode.ODEProblem(from_sbml(stat5(RATES)), {}, (0.0, 240.0), saveat=MINUTES, reltol=1e-9, abstol=1e-9)
    exact = stat5_by_hand(LOG_RATES).real
    noisy = exact * 10 ** np.random.default_rng(1).normal(0, 0.05, exact.shape)

    @jax.jit
    @jax.value_and_grad
    def negative_log_likelihood(logs, measured):
        sol = ode.solve(prob, ode.Vern7(), p=dict(zip(RATES, 10 ** logs[:9], strict=True)))
        return nllh(jnp.log10(jnp.stack([sol[name] for name in OBSERVABLES])), measured, logs[9], jnp)

    at = np.append(LOG_RATES + 0.2 * np.cos(np.arange(9)), -1.2)
    got, slope = negative_log_likelihood(at, noisy)
    want = lambda v: nllh(np.log10(stat5_by_hand(v[:9])), noisy, v[9], np)
    close(got, want(at).real, 1e-9)
    close(slope, [want(at + 1e-30j * np.eye(10)[i]).imag / 1e-30 for i in range(10)], 1e-7)

    # the fit, from there, to data without noise: the rates are found again
    loss = lambda v: tuple(map(np.asarray, negative_log_likelihood(np.append(v, -1.2), exact)))
    sliced = lambda v: (loss(v)[0], loss(v)[1][:9])
    fit = minimize(sliced, at[:9], jac=True, method="BFGS", options={"gtol": 1e-6, "maxiter": 500})
    assert np.max(np.abs(fit.x - LOG_RATES)) < 1e-4, fit


# ---------------------------------------------------------------- documents


def test_paths_strings_and_bytes(tmp_path):
    path = tmp_path / "decay.xml"
    path.write_text(DECAY)
    for source in (path, str(path), DECAY, DECAY.encode(), "\n " + DECAY.replace(' encoding="UTF-8"', "")):
        assert repr(from_sbml(source)) == "System model: 3 equations, 3 unknowns, 2 parameters"
    with pytest.raises(FileNotFoundError, match=r"no file nowhere\.xml"):
        from_sbml("nowhere.xml")
    with pytest.raises(TypeError, match="a path or a string of XML, got int"):
        from_sbml(3)


SIMPLE = compartment(), species("A", 2.0), parameter("k", 0.7)


@pytest.mark.parametrize(
    "text, error, said",
    [
        (
            DECAY.replace("</model>", ""),
            ValueError,
            "the SBML string is not valid SBML; libsbml says\n  line 8: Element tag",
        ),
        (DECAY.replace("<ci> k </ci>", "<ci> q </ci>"), ValueError, "(?s)libsbml says.*'q'"),
        ("<a/>", ValueError, "not valid SBML"),
        (document(*SIMPLE, reaction("J", "A ->", None)), ValueError, "reaction J has no kinetic law"),
        (document(*SIMPLE, reaction("J", "A ->", "k", more='fast="true"')), NotImplementedError, "reaction J is fast"),
        (
            document(species("A", 1.0, boundary=True), compartment(), event("E", "time > 1", {"A": "2"}, delay="3")),
            NotImplementedError,
            "event E has a delay",
        ),
        (
            document(species("A", 1.0), compartment(), event("E", "time > 1", {"A": "2"}, priority="A")),
            NotImplementedError,
            "the priority of event E is A: only numbers",
        ),
        (
            document(*SIMPLE, reaction("J", "A ->", "k * delay(A, 1)")),
            ValueError,
            "kinetic law of reaction J has a delay",
        ),
        (
            document(
                *SIMPLE,
                root='xmlns:comp="http://www.sbml.org/sbml/level3/version1/comp/version1" comp:required="true"',
            ),
            NotImplementedError,
            "requires the SBML package comp, which is not supported: flatten it",
        ),
        (
            '<sbml xmlns="http://www.sbml.org/sbml/level1" level="1" version="2"><model name="m"><listOfCompartments>'
            '<compartment name="C"/></listOfCompartments></model></sbml>',
            NotImplementedError,
            "SBML Level 1",
        ),
    ],
    ids="broken undeclared xml law fast delay priority lag package level".split(),
)
def test_what_is_wrong_is_named(text, error, said):
    with pytest.raises(error, match=said):
        from_sbml(text)


def test_values_that_are_missing_are_named():
    text = document(compartment(size=None), species("A", amount=2.0), parameter("k"), reaction("J", "A ->", "k * A"))
    with pytest.raises(InitialValueError, match="no value for the parameters C, k"):
        ode.ODEProblem(from_sbml(text), {}, (0.0, 1.0))


def test_sizes_and_values_that_nothing_needs():
    text = document(
        compartment(size=None),
        compartment("point", None, dimensions=0),
        species("A", amount=2.0, only=True),
        species("B", amount=1.0, place="point"),
        parameter("y", constant=False),
        parameter("k", 0.5),
        algebraic("y^3 + y - 2 * A"),  # a guess of y is made
        reaction("J", "A -> B", "k"),
    )
    sol = ode.solve(ode.ODEProblem(from_sbml(text), {}, (0.0, 2.0), saveat=[2.0]))
    close(sol[["A", "B", "y"]], [[1.0, 2.0, 1.0]], 1e-6)


def test_packages_that_are_not_required_and_constraints():
    watch = f"<constraint metaid='positive'>{math('A > 0')}</constraint>"
    given = 'xmlns:layout="http://www.sbml.org/sbml/level3/version1/layout/version1" layout:required="false"'
    with pytest.warns(UserWarning, match="constraints are not watched: positive"):
        model = from_sbml(document(*SIMPLE, watch, root=given))
    assert repr(model) == "System model: 3 parameters"


def test_libsbml_is_not_imported_before_it_is_needed():
    code = "import sys, odesens.symbolic; assert 'libsbml' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_without_libsbml(monkeypatch):
    monkeypatch.setitem(sys.modules, "libsbml", None)
    with pytest.raises(ImportError, match=r"pip install 'odesens\[sbml\]'"):
        from_sbml(DECAY)
