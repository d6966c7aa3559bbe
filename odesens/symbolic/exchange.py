"""SymPy expressions to nodes of a `Terms`, and back.

Owns: the vocabulary. Must not know: systems, JAX.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import sympy as sp
from sympy.core.function import AppliedUndef

from .symbols import Parameter, TimeDerivative, Unknown
from .terms import Terms, arguments

_NAMES: dict[Any, str] = {  # SymPy's functions of the same arguments
    sp.sin: "sin",
    sp.cos: "cos",
    sp.tan: "tan",
    sp.asin: "asin",
    sp.acos: "acos",
    sp.atan: "atan",
    sp.sinh: "sinh",
    sp.cosh: "cosh",
    sp.tanh: "tanh",
    sp.asinh: "asinh",
    sp.acosh: "acosh",
    sp.atanh: "atanh",
    sp.exp: "exp",
    sp.log: "log",
    sp.Abs: "abs",
    sp.sign: "sign",
    sp.floor: "floor",
    sp.ceiling: "ceil",
    sp.Mod: "mod",
    sp.atan2: "atan2",
    sp.erf: "erf",
    sp.gamma: "gamma",
    sp.loggamma: "loggamma",
    sp.digamma: "digamma",
    sp.re: "re",
    sp.im: "im",
    sp.conjugate: "conjugate",
    sp.StrictLessThan: "lt",
    sp.LessThan: "le",
    sp.StrictGreaterThan: "gt",
    sp.GreaterThan: "ge",
    sp.Equality: "eq",
    sp.Unequality: "ne",
    sp.Not: "not",
}
_CHAINED: dict[Any, str] = {sp.Max: "max", sp.Min: "min", sp.And: "and", sp.Or: "or"}
_INVERSES: dict[Any, Callable] = {sp.sec: sp.cos, sp.csc: sp.sin, sp.cot: sp.tan, sp.sech: sp.cosh, sp.csch: sp.sinh}
_FUNCTIONS = {name: function for function, name in {**_NAMES, **_CHAINED}.items()}


class UnknownFunction(TypeError):
    """A function that has no counterpart here."""


def from_sympy(terms: Terms, expr, time: sp.Symbol, memory: dict | None = None) -> int:
    """The node of an expression, or number.

    Raises
    ------
    UnknownFunction, TypeError
        For a function or an object that has no counterpart, naming it.
    """
    memory = {} if memory is None else memory
    expr = sp.sympify(expr)
    pending = [expr]
    while pending:
        e = pending[-1]
        if e in memory:
            pending.pop()
            continue
        missing = [a for a in _children(e) if a not in memory]
        if missing:
            pending += missing
            continue
        pending.pop()
        memory[e] = _converted(terms, e, [memory[a] for a in _children(e)], time)
    return memory[expr]


def _children(e) -> tuple:
    if isinstance(e, (sp.Symbol, TimeDerivative, sp.Number, sp.NumberSymbol)):
        return ()
    if isinstance(e, sp.Piecewise):
        return tuple(x for pair in e.args for x in pair.args)
    return e.args


def _converted(terms: Terms, e, args: list[int], time: sp.Symbol) -> int:
    """The node of an expression whose arguments are known."""
    if isinstance(e, Unknown):
        return terms.unknown(e.name)
    if isinstance(e, Parameter):
        return terms.parameter(e.name)
    if isinstance(e, TimeDerivative):
        return terms.unknown(e.unknown.name, e.order)
    if e == time:
        return terms.time()
    if isinstance(e, (sp.Number, sp.NumberSymbol)) or e is sp.I or e is sp.zoo:
        return terms.number(_number(e))
    if isinstance(e, sp.Add):
        return terms.add([(a, 1) for a in args])
    if isinstance(e, sp.Mul):
        return terms.product(*args)
    if isinstance(e, sp.Pow):
        return terms.power(*args)
    if e in (sp.true, sp.false):
        return terms.call("true" if e is sp.true else "false")
    if isinstance(e, (sp.Piecewise, sp.ITE)):
        return _selected(terms, e, args)
    if isinstance(e, sp.UnevaluatedExpr):
        return args[0]
    if isinstance(e, sp.Heaviside):
        step = terms.call("select", terms.call("gt", args[0], terms.number(0)), terms.number(1), args[1])
        return terms.call("select", terms.call("lt", args[0], terms.number(0)), terms.number(0), step)
    if isinstance(e, AppliedUndef):
        return terms.call(f"user:{e.func.__name__}", *args)
    kind = type(e)
    if kind in _CHAINED:
        node = args[0]
        for a in args[1:]:
            node = terms.call(_CHAINED[kind], node, a)
        return node
    if kind in _INVERSES:
        return terms.mul([(terms.call(_NAMES[_INVERSES[kind]], args[0]), -1)])
    if kind in _NAMES:
        return terms.call(_NAMES[kind], *args)
    if isinstance(e, sp.Symbol):
        raise TypeError(f"the symbol {e} is neither an unknown nor a parameter: make it by unknowns or parameters")
    hint = "write derivatives in time as D(x)" if isinstance(e, sp.Derivative) else "rewrite it by elementary functions"
    raise UnknownFunction(f"{kind.__name__} in {e} has no counterpart in JAX here: {hint}")


def _selected(terms: Terms, e, args: list[int]) -> int:
    """Piecewise((a, c), (b, d), ..) and ITE(c, a, b) as nested selections; NaN where no condition holds."""
    if isinstance(e, sp.ITE):
        return terms.call("select", *args)
    node = terms.number(float("nan"))
    for value, condition in zip(args[-2::-2], args[-1::-2], strict=True):
        node = terms.call("select", condition, value, node)
    return node


def _number(e):
    if isinstance(e, sp.Integer):
        return int(e)
    if isinstance(e, sp.Rational):
        return Fraction(int(e.p), int(e.q))
    if e is sp.I:
        return 1j
    if e is sp.zoo:
        raise TypeError("an equation divides by zero (SymPy's zoo)")
    return float(e)


def to_sympy(terms: Terms, node: int, symbols: Mapping[str, sp.Symbol], time: sp.Symbol) -> Any:
    """The expression of a node; `symbols` by name."""
    made: dict[int, Any] = {}
    for n in terms.below([node]):
        made[n] = _expression(terms.nodes[n], [made[a] for a in arguments(terms.nodes[n])], symbols, time)
    return made[node]


def _expression(kind: tuple, args: list, symbols: Mapping[str, sp.Symbol], time: sp.Symbol):
    match kind[0]:
        case "number":
            return _as_number(kind[1])
        case "time":
            return time
        case "unknown":
            symbol = symbols.get(kind[1])
            if kind[2] and not isinstance(symbol, Unknown):  # of a parameter that events change
                symbol = Unknown(kind[1])
            symbol = Unknown(kind[1]) if symbol is None else symbol
            return TimeDerivative(symbol, kind[2]) if kind[2] else symbol
        case "parameter":
            return symbols.get(kind[1]) or Parameter(kind[1])
        case "add":
            return sp.Add(_as_number(kind[1]), *(_as_number(c) * x for (_, c), x in zip(kind[2], args, strict=True)))
        case "mul":
            return sp.Mul(*(x ** _as_number(e) for (_, e), x in zip(kind[1], args, strict=True)))
        case "power":
            return args[0] ** args[1]
    name = kind[1]
    if name == "select":
        return sp.Piecewise((args[1], args[0]), (args[2], True))
    if name == "share":
        return args[0]
    if name in ("true", "false"):
        return sp.true if name == "true" else sp.false
    function = _FUNCTIONS.get(name) or sp.Function(name.removeprefix("user:"))
    return function(*args)


def _as_number(x) -> Any:
    if isinstance(x, Fraction):
        return sp.Rational(x.numerator, x.denominator)
    if isinstance(x, complex):
        return sp.Float(x.real) + sp.I * sp.Float(x.imag)
    return sp.sympify(x)
