"""Systems of the symbolic layer: symbols, composition, connections, what is refused and how."""

import copy
import pickle
import time

import numpy as np
import pytest
import sympy
from sympy import Eq

from odesens.symbolic import (
    ContinuousEvent,
    D,
    DiscreteEvent,
    Parameter,
    PeriodicEvent,
    PresetTimeEvent,
    System,
    Unknown,
    connect,
    equations,
    parameters,
    t,
    unknowns,
)


def texts(pairs) -> list[str]:
    return [f"{lhs} = {rhs}" for lhs, rhs in pairs]


def refused(kind, *parts):
    """pytest.raises for a message that holds all the parts."""
    return pytest.raises(kind, match="(?s)" + "".join(f"(?=.*(?:{part}))" for part in parts))


# symbols


def test_symbols_come_as_from_sympy():
    x = unknowns("x")
    assert isinstance(x, Unknown) and isinstance(x, sympy.Symbol) and x.name == "x"
    assert [s.name for s in unknowns("x y")] == ["x", "y"]
    assert [s.name for s in parameters("k:3")] == ["k0", "k1", "k2"]
    assert isinstance(parameters("k"), Parameter)
    assert x == unknowns("x") and hash(x) == hash(unknowns("x"))
    assert x != parameters("x") and x != sympy.Symbol("x")
    assert x - unknowns("x") == 0


def test_metadata():
    x = unknowns(
        "x", default=1.0, guess=2, unit="m", description="way", bounds=(0, None), connect="flow", state_priority=3
    )
    assert (x.default, x.guess, x.unit, x.description, x.bounds) == (1.0, 2, "m", "way", (0.0, np.inf))
    assert (x.connect, x.state_priority) == ("flow", 3)
    y = unknowns("y")
    assert (y.default, y.guess, y.unit, y.description, y.bounds, y.connect, y.state_priority) == (
        *[None] * 3,
        "",
        None,
        None,
        0,
    )
    assert parameters("k").tunable is True and parameters("k", tunable=False).tunable is False
    assert parameters("k", default=np.float64(0.5)).default == 0.5
    k = parameters("k", default=2 * y)
    assert k.default == 2 * y


def test_metadata_that_is_wrong():
    with refused(TypeError, "positive", "bounds"):
        unknowns("x", positive=True)
    with refused(ValueError, "connect of x", "both"):
        unknowns("x", connect="both")
    with refused(ValueError, "bounds of x", "lower <= upper"):
        unknowns("x", bounds=(1, 0))
    with refused(TypeError, "default of x", "list"):
        unknowns("x", default=[1, 2])
    with refused(ValueError, "default of x", r"shape \(3,\)", r"shape \(2,\)"):
        unknowns("x", shape=3, default=[1, 2])
    with refused(AttributeError, "Unknown x", "speed"):
        unknowns("x").speed  # noqa: B018


@pytest.mark.parametrize("make", [lambda a: a + 1, lambda a: a**2, lambda a: 3 * a, sympy.sin])
def test_expressions_hold_the_symbol_that_was_given(make):
    """SymPy's cache gives back expressions of equal symbols; the default must not be that of an earlier instance."""
    for value in (1.0, 2.0, 3.0):
        (found,) = make(parameters("a", default=value)).free_symbols
        assert found.default == value
    for value in (1.0, 2.0):  # also through an expression that is a value
        (found,) = make(parameters("b", default=2 * parameters("a", default=value))).free_symbols
        assert found.default.free_symbols.pop().default == value


def test_arrays():
    x = unknowns("x", shape=(2, 2), default=[[1, 2], [3, 4]])
    assert x.shape == (2, 2) and x[1, 0].name == "x[1,0]" and x[1, 0].default == 3
    assert [s.name for s in unknowns("y", shape=2)] == ["y[0]", "y[1]"]
    assert {x: 1}[x] == 1
    assert D(x).shape == (2, 2) and D(x)[0, 1] == D(x[0, 1])
    a, b = unknowns("a b", shape=2)
    assert str(a @ b) == "a[0]*b[0] + a[1]*b[1]"


def test_symbols_are_copied_and_pickled():
    x = unknowns("x", default=1.5, unit="m")
    expr = D(x, 2) + parameters("k", bounds=(0, 1)) * x
    for back in (pickle.loads(pickle.dumps(expr)), copy.deepcopy(expr), copy.copy(expr)):
        assert back == expr
        assert {s.name: s.metadata for s in back.free_symbols} == {
            "x": {"default": 1.5, "unit": "m"},
            "k": {"bounds": (0.0, 1.0)},
        }
    a = unknowns("a", shape=2)
    assert type(pickle.loads(pickle.dumps(a))) is type(a)


# derivatives


def test_time_derivatives():
    x, y = unknowns("x y")
    k = parameters("k")
    assert D(k) == 0 and D(3) == 0 and D(t) == 1 and D(t, 2) == 0 and D(x, 0) == x
    assert D(D(x)) == D(x, 2) and str(D(D(x))) == "D(D(x))" and repr(D(x)) == "D(x)"
    assert D(k * x * y) == k * D(x) * y + k * x * D(y)
    assert D(sympy.sin(x) * t) == sympy.cos(x) * D(x) * t + sympy.sin(x)
    assert D(D(x) * y) == D(x, 2) * y + D(x) * D(y)
    assert sympy.expand(D(x**2, 2)) == 2 * D(x) ** 2 + 2 * x * D(x, 2)
    assert D(x).subs(x, k * y) == k * D(y)
    assert D(x).subs(x, 3) == 0
    assert D(x).diff(x) == 0 and (D(x) ** 2).diff(D(x)) == 2 * D(x)
    assert sympy.latex(D(x, 2)) == r"\frac{d^{2} x}{d t^{2}}"


def test_time_derivatives_that_are_unknown():
    x = unknowns("x")
    with refused(TypeError, r"D\(s\*x\)", "s is neither t nor an unknown", "unknowns"):
        D(sympy.Symbol("s") * x)
    with refused(TypeError, r"F\(t\)", "an unknown of its own"):
        D(sympy.Function("F")(t))
    assert D(sympy.Function("F")(parameters("k"))) == 0
    with refused(ValueError, "order", "-1"):
        D(x, -1)


# equations


def test_forms_of_equations():
    x, y, z = unknowns("x y z")
    v = unknowns("v", shape=2)
    given = [
        Eq(0, x - y),
        Eq(x * y, D(x)),
        (D(y), -1),
        [Eq(z, 2 * x, evaluate=False), [equations(D(v), -v)]],
        np.array([Eq(v[0] ** 2, x), Eq(v[1], x, evaluate=False)]),
        (v, 0),
        Eq(sympy.Matrix([x, y]), sympy.Matrix([y, z]), evaluate=False),
        sympy.true,
    ]
    assert texts(System(given, t).equations) == [
        "0 = x - y",
        "x*y = D(x)",
        "D(y) = -1",
        "z = 2*x",
        "D(v[0]) = -v[0]",
        "D(v[1]) = -v[1]",
        "v[0]**2 = x",
        "v[1] = x",
        "v[0] = 0",
        "v[1] = 0",
        "x = y",
        "y = z",
    ]
    assert texts(System(Eq(D(x), -x), t).equations) == ["D(x) = -x"]
    assert texts(System((D(x), -x), t).equations) == ["D(x) = -x"]
    assert texts(System((Eq(e, 0, evaluate=False) for e in (x, y)), t).equations) == ["x = 0", "y = 0"]
    assert [e.args for e in equations(x, 1)] == [(x, sympy.Integer(1))]
    assert texts(System([equations(v[:, None], np.array([[3, x]]))], t).equations) == [
        "v[0] = 3",
        "v[0] = x",
        "v[1] = 3",
        "v[1] = x",
    ]


def test_what_is_no_equation():
    x = unknowns("x")
    with refused(ValueError, "System m, equation 1 is False", "sympy.Eq"):
        System([Eq(D(x), 1), D(x) == -x], t, name="m")
    with refused(ValueError, "1 = 2, never holds"):
        System([(1, 2)], t)
    with refused(TypeError, "equation 0 must be sympy.Eq", r"x \+ D\(x\)"):
        System([D(x) + x], t)
    with refused(TypeError, "must be sympy.Eq", "x > 1"):
        System([x > 1], t)
    with refused(TypeError, "a side,", "str"):
        equations(x, "y")
    with refused(ValueError, r"shapes \(2,\) and \(3,\)"):
        equations(unknowns("a", shape=2), unknowns("b", shape=3))


def test_what_is_no_symbol_of_a_system():
    x = unknowns("x")
    k = sympy.Symbol("k")
    with refused(TypeError, "System m: k is neither", r'unknowns\("k"\)', r'parameters\("k"\)'):
        System([(D(x), -k * x)], t, name="m")
    f = sympy.Function("f")(t)
    with refused(TypeError, r"Derivative\(f\(t\), t\)", r'unknowns\("x"\)', r"D\(x\)"):
        System([(f.diff(t), -x)], t)
    with refused(TypeError, "f", r"functions=\{f: callable\}", r'unknowns\("f"\)'):
        System([(D(x), f)], t).flatten()
    with refused(TypeError, "assumptions", "odesens.symbolic"):
        System([(D(x), sympy.Symbol("t", real=True))], t)
    with refused(TypeError, "independent variable", "tau"):
        System([(D(x), -x)], sympy.Symbol("tau"))
    with refused(TypeError, "tau is neither t"):
        System([(D(x), -sympy.Symbol("tau"))], t)
    with refused(ValueError, "name t is that of time"):
        System([(D(unknowns("t")), 1)], t)


def test_one_name_for_two_things():
    x = unknowns("x")
    with refused(TypeError, "x is both an unknown and a parameter"):
        System([(D(x), parameters("x"))], t)
    with refused(ValueError, "x has default 1.0 in one place and 2.0 in another"):
        System([(D(unknowns("x", default=1.0)), unknowns("x", default=2.0) * 3)], t)
    merged = System([(D(unknowns("x", default=1.0)), unknowns("x", unit="m") * 3 + x)], t).flatten().unknowns["x"]
    assert (merged.default, merged.unit) == (1.0, "m")


# flat systems


def test_flatten_of_one_system():
    x, y, z, w = unknowns("x y z w")
    k, c = parameters("k c", default=0.5)
    b = parameters("b", default=2 * c, guess=1.0)
    flat = System(
        [(D(y), -k * y + x), (D(x, 2), b)],
        t,
        defaults={D(x): 3, k: 1.5, w: y + 1},
        guesses={y: 0.1},
        observed=[Eq(z, x + 2 * y)],
        initial=[(x, 1)],
        name="m",
    ).flatten()
    assert texts(flat.equations) == ["D(y) = -k*y + x", "D(D(x)) = b"]
    assert texts(flat.initial) == ["x = 1"] and texts(flat.observed) == ["z = x + 2*y"]
    assert list(flat.unknowns) == ["y", "x", "z", "w"]
    assert list(flat.parameters) == ["k", "b", "c"]
    assert flat.defaults == {("x", 1): 3, "k": 1.5, "w": y + 1, "b": 2 * c, "c": 0.5}
    assert flat.guesses == {"y": 0.1, "b": 1.0}
    assert flat.key(x) == flat.key("m.x") == flat.key(Unknown("m.x")) == "x" and flat.key(D(x)) == ("x", 1)
    with refused(KeyError, "System m has no xx", "did you mean x"):
        flat.key("xx")


def test_observed_and_symbols():
    x, y, z = unknowns("x y z")
    v = unknowns("v", shape=2)
    k = parameters("k")
    flat = System([(D(x), -x)], t, observed={y: 2 * x, v: [x, y]}, symbols=(z, k)).flatten()
    assert texts(flat.observed) == ["y = 2*x", "v[0] = x", "v[1] = y"]
    assert list(flat.unknowns) == ["x", "y", "v[0]", "v[1]", "z"] and list(flat.parameters) == ["k"]
    with refused(ValueError, "y is observed twice"):
        System([(D(x), -x)], t, observed=[(y, x), (y, 2 * x)]).flatten()
    with refused(TypeError, r"observed must be \(unknown, expression\)", "x\\*\\*2"):
        System([(D(x), -x)], t, observed=[(x**2, y)])
    with refused(TypeError, "symbols must be unknowns and parameters", "Add"):
        System([(D(x), -x)], t, symbols=[x + y])


# composition


def motor(name, k=2.0):
    speed, torque = unknowns("speed torque")
    gain, twice = parameters("k", default=k), parameters("twice", default=2 * parameters("k", default=k))
    return System(
        [(D(speed), torque - gain * speed), (torque, twice * sympy.sin(t))],
        t,
        defaults={speed: gain + 1},
        guesses={torque: 0.5},
        observed=[(unknowns("power"), torque * speed)],
        initial=[(D(speed), gain)],
        events=[ContinuousEvent(speed - 1, {gain: gain / 2})],
        name=name,
    )


def test_names_from_outside():
    left, right = motor("left"), motor("right", k=3.0)
    assert left.speed == Unknown("left.speed") and left.k.default == 2.0 and left["speed"] == left.speed
    plant = System([(left.k * left.speed, right.speed)], t, systems=[left, right], name="plant")
    assert plant.left.speed == plant["left.speed"] == Unknown("plant.left.speed")
    assert "left" in dir(plant) and "speed" in dir(left)
    with refused(AttributeError, "System left has no sped", "did you mean speed"):
        left.sped  # noqa: B018
    with refused(AttributeError, "System plant.left has no load"):
        plant.left.load  # noqa: B018
    with refused(AttributeError, "does not change", "defaults"):
        left.k = 3.0
    free = System([(D(unknowns("x")), 1)], t)
    assert free.x == unknowns("x")


def test_two_instances_in_one_system():
    left, right = motor("left"), motor("right", k=3.0)
    load = unknowns("load")
    flat = System(
        [(D(load), left.speed - right.speed)],
        t,
        systems=[left, right],
        defaults={right.k: 7.0, load: left.k},
        guesses={left.torque: load},
        name="plant",
    ).flatten()
    assert texts(flat.equations) == [
        "D(load) = left.speed - right.speed",
        "D(left.speed) = -left.k*left.speed + left.torque",
        "left.torque = left.twice*sin(t)",
        "D(right.speed) = -right.k*right.speed + right.torque",
        "right.torque = right.twice*sin(t)",
    ]
    assert list(flat.unknowns)[:5] == ["load", "right.speed", "left.speed", "left.torque", "right.torque"]
    assert list(flat.unknowns)[5:] == ["left.power", "right.power"]
    assert list(flat.parameters) == ["left.k", "left.twice", "right.k", "right.twice"]
    assert {key: str(value) for key, value in flat.defaults.items()} == {
        "load": "left.k",
        "left.speed": "left.k + 1",
        "left.k": "2.0",
        "left.twice": "2*left.k",
        "right.speed": "right.k + 1",
        "right.k": "7.0",
        "right.twice": "2*right.k",
    }
    assert {key: str(value) for key, value in flat.guesses.items()} == {"left.torque": "load", "right.torque": "0.5"}
    assert texts(flat.observed) == ["left.power = left.speed*left.torque", "right.power = right.speed*right.torque"]
    assert texts(flat.initial) == ["D(left.speed) = left.k", "D(right.speed) = right.k"]
    assert [(str(e.condition), str(e.affect)) for e in flat.events] == [
        ("(left.speed - 1,)", "{left.k: left.k/2}"),
        ("(right.speed - 1,)", "{right.k: right.k/2}"),
    ]


def test_two_levels():
    inner = System([(D(unknowns("x", default=1.0)), -parameters("k", default=1.0))], t, name="inner")
    middle = System(
        [(D(unknowns("y")), inner.x)], t, systems=[inner], defaults={inner.k: 2.0, D(inner.x): inner.k}, name="middle"
    )
    z = unknowns("z", shape=2)
    outer = System(
        [(D(z), middle.inner.x * middle.y)], t, systems=[middle], defaults={middle.inner.k: 3.0}, name="outer"
    )
    flat = outer.flatten()
    assert texts(flat.equations) == [
        "D(z[0]) = middle.inner.x*middle.y",
        "D(z[1]) = middle.inner.x*middle.y",
        "D(middle.y) = middle.inner.x",
        "D(middle.inner.x) = -middle.inner.k",
    ]
    assert flat.defaults["middle.inner.k"] == 3.0 and flat.defaults["middle.inner.x"] == 1.0
    assert flat.defaults["middle.inner.x", 1] == Parameter("middle.inner.k", default=1.0)
    assert middle.flatten().defaults["inner.k"] == 2.0 and inner.flatten().defaults["k"] == 1.0
    assert outer.middle.inner.x.name == "outer.middle.inner.x" and flat.key(outer.middle.inner.x) == "middle.inner.x"
    assert [s.name for s in outer.z] == ["outer.z[0]", "outer.z[1]"]


def test_subsystems_that_do_not_fit():
    left = motor("left")
    x = unknowns("x")
    with refused(ValueError, "left.speed is of no subsystem", r"systems=\[...\]"):
        System([(D(x), left.speed)], t)
    with refused(ValueError, "two subsystems have the name left"):
        System([], t, systems=[left, left])
    with refused(ValueError, "left has the name of a subsystem"):
        System([(D(unknowns("left")), 1)], t, systems=[left])
    with refused(ValueError, "needs a name"):
        System([], t, systems=[System([(D(x), 1)], t)])
    with refused(ValueError, "identifier", "a b"):
        System([(D(x), 1)], t, name="a b")
    with refused(TypeError, "subsystem must be a System", "x"):
        System([], t, systems=[x])
    with refused(ValueError, "System left has no sped", "did you mean speed"):
        System([(D(x), Unknown("left.sped"))], t, systems=[left])
    with refused(TypeError, "left.speed is both an unknown and a parameter"):
        System([(D(x), Parameter("left.speed"))], t, systems=[left]).flatten()


def test_functions():
    F, G = sympy.Function("F"), sympy.Function("G")
    first, second = lambda x: x, lambda x: 2 * x
    x = unknowns("x")
    make = lambda name, functions: System([(D(x), F(x) + G(t))], t, functions=functions, name=name)
    outer = System(
        [(D(unknowns("y")), F(t))],
        t,
        systems=[make("a", {}), make("b", {F: first}), make("c", {"F": second})],
        functions={F: first, "G": second},
    )
    flat = outer.flatten()
    assert texts(flat.equations) == [
        "D(y) = F(t)",
        "D(a.x) = F(a.x) + G(t)",
        "D(b.x) = F(b.x) + G(t)",
        "D(c.x) = G(t) + c.F(c.x)",
    ]
    assert flat.functions == {"F": first, "G": second, "c.F": second}
    with refused(TypeError, "System a", r"F\(x\), G\(t\)"):
        make("a", {}).flatten()
    with refused(TypeError, "function F must be a callable", "3"):
        make("a", {F: 3})


# connections


def pin(name):
    return System([], t, symbols=[unknowns("v", connect="equal", unit="V"), unknowns("i", connect="flow")], name=name)


def one_port(name, law, **values):
    """A component of two pins; law(v, i) is its equations, of the voltage across and the current into p."""
    p, n = pin("p"), pin("n")
    v, i = unknowns("v i")
    return System([(v, p.v - n.v), (i, p.i), (p.i + n.i, 0), law(v, i)], t, systems=[p, n], name=name)


def resistor(name):
    r = parameters("R", default=1.0)
    return one_port(name, lambda v, i: (v, r * i))


def capacitor(name):
    c = parameters("C", default=1.0)
    return one_port(name, lambda v, i: (c * D(v), i))


def source(name):
    return one_port(name, lambda v, i: (v, parameters("V", default=1.0)))


def ground(name):
    p = pin("p")
    return System([(p.v, 0)], t, systems=[p], name=name)


def test_a_network():
    s, r, c, g = source("s"), resistor("r"), capacitor("c"), ground("g")
    wires = [connect(s.p, r.p), connect(r.n, c.p), connect(c.n, s.n), connect(g.p, s.n)]
    flat = System(wires, t, systems=[s, r, c, g], name="rc").flatten()
    own, connections = texts(flat.equations[:13]), texts(flat.equations[13:])
    assert own[4:8] == ["r.v = -r.n.v + r.p.v", "r.i = r.p.i", "r.n.i + r.p.i = 0", "r.v = r.R*r.i"]
    assert sorted(connections) == sorted(
        [
            "s.p.v = r.p.v",
            "r.n.v = c.p.v",
            "c.n.v = s.n.v",
            "c.n.v = g.p.v",
            "r.p.i + s.p.i = 0",
            "c.p.i + r.n.i = 0",
            "c.n.i + g.p.i + s.n.i = 0",
        ]
    )
    assert len(flat.equations) == len(flat.unknowns) == 20
    # the node equation itself: all but one derivative solved for, exactly
    C, R, V = (flat.parameters[name] for name in ("c.C", "r.R", "s.V"))
    rate = sympy.Symbol("rate")
    zero = [(a - b).xreplace({D(c.v): rate}) for a, b in flat.equations]
    state = next(u for u in flat.unknowns.values() if u.name == "c.v")
    others = [u for u in flat.unknowns.values() if u.name != "c.v"]
    (found,) = sympy.linsolve(zero, [rate, *others])
    assert sympy.simplify(found[0] - (V - state) / (R * C)) == 0
    assert found[1 + [u.name for u in others].index("g.p.i")] == 0


def test_own_connectors_count_the_other_way():
    """A component made of two in series has two pins of its own; from outside it is a resistor of the sum."""
    p, n, a, b = pin("p"), pin("n"), resistor("a"), resistor("b")
    series = System([connect(p, a.p), connect(a.n, b.p), connect(b.n, n)], t, systems=[p, n, a, b], name="series")
    assert p.is_connector and not a.is_connector and not series.is_connector and not ground("g").is_connector
    s, g = source("s"), ground("g")
    root = System([connect(s.p, series.p), connect(s.n, series.n, g.p)], t, systems=[s, series, g])
    flat = root.flatten()
    connections = texts(flat.equations[3 * 4 + 1 :])
    assert sorted(x for x in connections if ".i" in x) == sorted(
        [
            "series.a.p.i - series.p.i = 0",
            "series.a.n.i + series.b.p.i = 0",
            "series.b.n.i - series.n.i = 0",
            "s.p.i + series.p.i = 0",
            "g.p.i + s.n.i + series.n.i = 0",
        ]
    )
    assert len(flat.equations) == len(flat.unknowns)
    unknown = {u.name: u for u in flat.unknowns.values()}
    solution = sympy.solve([a - b for a, b in flat.equations], list(unknown.values()), dict=True)[0]
    ra, rb, v = (flat.parameters[name] for name in ("series.a.R", "series.b.R", "s.V"))
    assert sympy.simplify(solution[unknown["s.i"]] + v / (ra + rb)) == 0
    assert sympy.simplify(solution[unknown["series.p.i"]] - v / (ra + rb)) == 0
    alone = texts(series.flatten().equations)
    assert {"a.p.i - p.i = 0", "b.n.i - n.i = 0", "p.i = 0", "n.i = 0"} < set(alone)


def test_what_is_not_connected_has_no_flow():
    r = resistor("r")
    assert texts(System([], t, systems=[r]).flatten().equations[4:]) == ["r.p.i = 0", "r.n.i = 0"]


def test_connections_that_are_said_twice():
    a, b, c = resistor("a"), resistor("b"), resistor("c")
    wires = [connect(a.p, b.p), connect(b.p, c.p), connect(c.p, a.p, b.p)]
    found = texts(System(wires, t, systems=[a, b, c]).flatten().equations[12:])
    assert found[:2] == ["a.p.v = b.p.v", "a.p.v = c.p.v"]
    assert found[2:] == ["a.p.i + b.p.i + c.p.i = 0", "a.n.i = 0", "b.n.i = 0", "c.n.i = 0"]


def test_unknowns_are_connected():
    x, y, z = unknowns("x y z")
    a, b = unknowns("a b", shape=2)
    flat = System([connect(x, y), connect(y, z), connect(z, x), connect(a, b)], t).flatten()
    assert texts(flat.equations) == ["x = y", "x = z", "a[0] = b[0]", "a[1] = b[1]"]
    assert list(flat.unknowns) == ["x", "y", "z", "a[0]", "a[1]", "b[0]", "b[1]"]
    left, right = motor("left"), motor("right")
    flat = System([connect(left.speed, right.speed)], t, systems=[left, right]).flatten()
    assert texts(flat.equations[-1:]) == ["left.speed = right.speed"]


def test_connectors_of_arrays_and_of_connectors():
    flange = lambda name: System(
        [], t, symbols=[unknowns("x", shape=2, connect="equal"), unknowns("f", shape=2, connect="flow")], name=name
    )
    body = lambda name: System([(D(unknowns("q")), 1)], t, systems=[flange("a")], name=name)
    left, other = body("left"), body("other")
    flat = System([connect(left.a, other.a)], t, systems=[left, other]).flatten()
    assert texts(flat.equations[2:]) == [
        "left.a.x[0] = other.a.x[0]",
        "left.a.x[1] = other.a.x[1]",
        "left.a.f[0] + other.a.f[0] = 0",
        "left.a.f[1] + other.a.f[1] = 0",
    ]
    plug = lambda name: System([], t, systems=[pin("p"), pin("n")], name=name)
    device = lambda name: System([(D(unknowns("q")), 1)], t, systems=[plug("plug")], name=name)
    one, two = device("one"), device("two")
    assert plug("x").is_connector
    flat = System([connect(one.plug, two.plug)], t, systems=[one, two]).flatten()
    assert texts(flat.equations[2:]) == [
        "one.plug.p.v = two.plug.p.v",
        "one.plug.n.v = two.plug.n.v",
        "one.plug.p.i + two.plug.p.i = 0",
        "one.plug.n.i + two.plug.n.i = 0",
    ]


def test_connections_that_do_not_fit():
    r = resistor("r")
    x = unknowns("x")
    with refused(ValueError, "two members or more, got 1"):
        connect(x)
    with refused(TypeError, "not both", "x", "System r.p"):
        connect(x, r.p)
    with refused(TypeError, "got x \\+ 1|got Add: x \\+ 1"):
        connect(x + 1, x + 1)
    with refused(ValueError, "r.i|r.v", "connect its connectors"):
        connect(r, r)
    with refused(ValueError, "flow r.p.i alone"):
        connect(r.p.i, x)
    with refused(ValueError, "the unit V", "the unit A"):
        connect(r.p.v, unknowns("y", unit="A"))
    with refused(ValueError, "same unknowns", "r.p.v, r.p.i", "q.v"):
        connect(r.p, System([], t, symbols=[unknowns("v", connect="equal")], name="q"))
    with refused(ValueError, "r.p.i has connect='flow'", "q.i has connect='equal'"):
        connect(r.p, System([], t, symbols=unknowns("v i", connect="equal"), name="q"))
    with refused(ValueError, r"connect\(r.p, r.n\)", "r.p.v is of no subsystem"):
        System([connect(r.p, r.n)], t)
    with refused(ValueError, "without a name"):
        connect(System([], t, symbols=unknowns("v i", connect="equal")), r.p)
    with refused(TypeError, "cannot be an initial equation"):
        System([], t, initial=[connect(r.p, r.n)], systems=[r])


# events


def test_events():
    x, y = unknowns("x y")
    k = parameters("k")
    v = unknowns("v", shape=2)
    c = ContinuousEvent([Eq(x, 1), y], {x: 0, D(y): -D(y)}, direction=(1, -1))
    assert c.condition == (x - 1, y) and c.affect == {x: 0, D(y): -D(y)} and c.direction == (1, -1)
    assert ContinuousEvent(x, terminate=True).affect == {}
    assert ContinuousEvent(x, {v: [x, 2]}).affect == {v[0]: x, v[1]: 2}
    d = DiscreteEvent((x > 1) & (y < k), {k: 2 * k})
    assert d.condition == sympy.And(x > 1, y < k) and not d.terminate
    assert PresetTimeEvent([1.0, k], {x: x + 1}).times == (1.0, k)
    assert PeriodicEvent(2 * k, {x: 0}).dt == 2 * k
    inner = System([(D(x), -x)], t, events=[d, PresetTimeEvent(k, {x: y}), PeriodicEvent(k, {x: 0})], name="a")
    flat = System([], t, systems=[inner]).flatten()
    assert [type(e) for e in flat.events] == [DiscreteEvent, PresetTimeEvent, PeriodicEvent]
    assert [s.name for s in sorted(flat.events[0].condition.free_symbols, key=str)] == ["a.k", "a.x", "a.y"]
    assert str(flat.events[1].times) == "(a.k,)" and str(flat.events[1].affect) == "{a.x: a.y}"
    assert str(flat.events[2].dt) == "a.k"
    assert list(flat.unknowns) == ["a.x", "a.y"] and list(flat.parameters) == ["a.k"]


def test_events_that_are_wrong():
    x, y = unknowns("x y")
    with refused(TypeError, "ContinuousEvent assigns to x \\+ y", "solve for one of these"):
        ContinuousEvent(x, {x + y: 1})
    with refused(TypeError, "crosses zero", "x > 1", "direction"):
        ContinuousEvent(x > 1, {x: 0})
    with refused(TypeError, "must be a relation", "x"):
        DiscreteEvent(x, {x: 0})
    with refused(ValueError, "does nothing", "terminate"):
        PeriodicEvent(1.0)
    with refused(TypeError, "dt of PeriodicEvent", "x"):
        PeriodicEvent(x, {x: 0})
    with refused(ValueError, "direction", "2"):
        ContinuousEvent(x, {x: 0}, direction=2)
    with refused(ValueError, "2 conditions but 1 directions"):
        ContinuousEvent([x, y], {x: 0}, direction=[1])
    with refused(ValueError, "assigns to x twice"):
        ContinuousEvent(x, {x: 0, unknowns("x", default=1): 1})
    with refused(TypeError, "must be a ContinuousEvent", "x > 1"):
        System([(D(x), 1)], t, events=[x > 1])


# objects


def test_values_that_are_wrong():
    x = unknowns("x")
    with refused(TypeError, "defaults assigns to x\\*\\*2|defaults assigns to"):
        System([(D(x), 1)], t, defaults={x**2: 1})
    with refused(TypeError, "value of x", "str"):
        System([(D(x), 1)], t, defaults={x: "1"})
    with refused(ValueError, r"shape \(2,\)", r"shape \(3,\)"):
        v = unknowns("v", shape=2)
        System([(D(v), 1)], t, guesses={v: [1, 2, 3]})


def test_systems_are_copied_pickled_and_shown():
    plant = System([connect(motor("a").speed, motor("b").speed)], t, systems=[motor("a"), motor("b")], name="plant")
    for other in (pickle.loads(pickle.dumps(plant)), copy.copy(plant), copy.deepcopy(plant)):
        assert texts(other.flatten().equations) == texts(plant.flatten().equations)
        assert other.a.speed == plant.a.speed and other.flatten().defaults == plant.flatten().defaults
    assert repr(plant) == "System plant: 1 connection, subsystems a, b"
    assert str(motor("a")) == "System a: 2 equations, 3 unknowns, 2 parameters, 1 event"
    assert r"\frac{d speed}{d t}" in motor("a")._repr_latex_() and "connect(a.speed, b.speed)" in plant._repr_latex_()
    x = unknowns("x", shape=100)
    assert len(System([equations(D(x), -x)], t)._repr_latex_()) < 2000


def test_size():
    """Time for a chain grows no faster than its length."""
    n = 2000
    k = parameters("k", default=0.5)

    def seconds(n: int) -> float:
        x = unknowns("x", shape=n, default=1.0)
        right = [k * (x[i - 1] - 2 * x[i]) + x[i] ** 2 for i in range(n)]
        start = time.perf_counter()
        flat = System([equations(D(x), right)], t).flatten()
        assert len(flat.equations) == len(flat.unknowns) == len(flat.defaults) - 1 == n
        return time.perf_counter() - start

    small, large = min(seconds(n // 4) for _ in range(2)), min(seconds(n) for _ in range(2))
    assert large < 10 * small
