"""MathML of SBML as SymPy expressions in the document's own names.

Owns: the vocabulary of MathML, expansion of function definitions. Must not know: what a name means, systems. libsbml's
trees come in as they are; the library itself is handed over, so that nothing here imports it.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import sympy as sp
from sympy.logic.boolalg import Boolean

from .symbols import t


class Ident(sp.Symbol):
    """A name of the document, as yet without a meaning; not equal to a symbol of that name."""

    __slots__ = ()


class RateOf(sp.Function):
    """The csymbol rateOf: the time derivative of a name."""

    nargs = 1


class MathReader:
    """Reads the trees of one document.

    Parameters
    ----------
    libsbml : module
    functions : mapping
        From the id of a function definition to its lambda, a tree.
    """

    def __init__(self, libsbml, functions: Mapping[str, Any]):
        self.functions = functions
        self.kinds = {getattr(libsbml, f"AST_{name}"): name for name in _NAMES if hasattr(libsbml, f"AST_{name}")}

    def expression(self, tree, where: str, names: Mapping[str, Any] | None = None) -> sp.Expr:
        """The tree as a number.

        Parameters
        ----------
        tree : ASTNode
        where : str
            The element that has it, for messages.
        names : mapping, optional
            What some names stand for; others become `Ident`s.

        Raises
        ------
        ValueError
            For what has no counterpart, such as a delay; it names the element.
        """
        return number(self._of(tree, names or {}, where, ()))

    def condition(self, tree, where: str, names: Mapping[str, Any] | None = None) -> Boolean:
        """The tree as a truth value."""
        return truth(self._of(tree, names or {}, where, ()))

    def _of(self, tree, names: Mapping[str, Any], where: str, calls: tuple[str, ...]) -> Any:
        kind = self.kinds.get(tree.getType())
        if kind in ("PLUS", "TIMES"):
            return _OPERATIONS[kind](*(self._of(x, names, where, calls) for x in self._operands(tree)))
        if kind in _LEAVES:
            return _LEAVES[kind](tree)
        if kind == "NAME":
            return names.get(tree.getName(), Ident(tree.getName()))
        if kind == "FUNCTION":
            return self._called(tree, names, where, calls)
        if kind not in _OPERATIONS:
            shown = tree.getName() or tree.getOperatorName() or f"the operator of type {tree.getType()}"
            if kind == "FUNCTION_DELAY":
                raise ValueError(f"{where} has a delay: delay differential equations are not supported")
            raise ValueError(f"{where} has {shown} in its MathML, which is not supported")
        children = [self._of(tree.getChild(i), names, where, calls) for i in range(tree.getNumChildren())]
        try:
            return _OPERATIONS[kind](*children)
        except TypeError as error:
            raise ValueError(f"{where}: {kind.lower()} of {len(children)} arguments is not known: {error}") from None

    def _operands(self, tree) -> list:
        """The operands of a sum or product, in order, those of nested ones included, without recursion."""
        found, pending, kind = [], [tree], tree.getType()
        while pending:
            node = pending.pop()
            if node.getType() == kind:
                pending += [node.getChild(i) for i in reversed(range(node.getNumChildren()))]
            else:
                found.append(node)
        return found

    def _called(self, tree, names, where: str, calls: tuple[str, ...]):
        """A call of a function definition: its body, with the arguments in place of the bound names."""
        name, count = tree.getName(), tree.getNumChildren()
        if name not in self.functions:
            raise ValueError(f"{where} calls {name}, of which the document has no function definition")
        if name in calls:
            raise ValueError(f"{where}: the function definition {name} calls itself")
        function = self.functions[name]
        bound = [function.getChild(i).getName() for i in range(function.getNumChildren() - 1)]
        if len(bound) != count:
            raise ValueError(f"{where} calls {name} with {count} arguments; its definition has {len(bound)}")
        given = [self._of(tree.getChild(i), names, where, calls) for i in range(count)]
        body = function.getChild(function.getNumChildren() - 1)
        return self._of(body, dict(zip(bound, given, strict=True)), where, (*calls, name))


# ---------------------------------------------------------------- numbers and truth values


def number(x) -> Any:
    """A value as a number: 1 for true, 0 for false."""
    if x in (sp.true, sp.false):
        return sp.Integer(x == sp.true)
    return sp.Piecewise((1, x), (0, True), evaluate=False) if isinstance(x, Boolean) and not _is_symbol(x) else x


def truth(x) -> Any:
    """A value as a truth value: whether a number differs from 0."""
    return x if isinstance(x, Boolean) and not _is_symbol(x) else sp.Ne(x, 0)


def _is_symbol(x) -> bool:
    return isinstance(x, sp.Symbol)


def real(value: float) -> sp.Expr:
    """A floating number; whole ones as integers, which keeps powers simple."""
    if abs(value) < 2**53 and value == int(value):
        return sp.Integer(int(value))
    return sp.sympify(value)


def _numeric(function: Callable) -> Callable:
    return lambda *args: function(*map(number, args))


def _logical(function: Callable) -> Callable:
    return lambda *args: function(*map(truth, args))


def _related(relation: Callable) -> Callable:
    """a < b < c as a < b and b < c."""

    def chain(*args):
        args = [number(x) for x in args]
        return sp.And(*(relation(a, b) for a, b in pairwise(args)))

    return chain


def _xor(*args):
    odd = sp.false
    for x in args:
        odd = sp.Or(sp.And(odd, sp.Not(x)), sp.And(sp.Not(odd), x))
    return odd


def _piecewise(*args):
    pairs = list(zip(args[::2], args[1::2], strict=False))
    values = [*(value for value, _ in pairs), *args[len(args) - len(args) % 2 :]]
    conditions = [truth(c) for _, c in pairs] + [sp.true] * (len(args) % 2)
    if not values:
        return sp.nan
    if all(isinstance(x, Boolean) and not _is_symbol(x) for x in values):
        out: Any = sp.false
        for value, c in zip(reversed(values), reversed(conditions), strict=True):
            out = sp.Or(sp.And(c, value), sp.And(sp.Not(c), out))
        return out
    values = [number(x) for x in values]
    if conditions[0] == sp.true:
        return values[0]
    return sp.Piecewise(*zip(values, conditions, strict=True), evaluate=False)


def _minus(a, *b):
    return a - b[0] if b else -a


def _root(*args):
    *degree, x = args
    return sp.sqrt(x) if not degree else x ** (1 / degree[0])


def _log(*args):
    *base, x = args
    return sp.log(x) / sp.log(base[0] if base else 10)


def _quotient(a, b):
    """The quotient towards zero."""
    x = a / b
    return sp.Piecewise((sp.floor(x), sp.Ge(x, 0)), (sp.ceiling(x), True), evaluate=False)


def _rate_of(x):
    if not isinstance(x, Ident):
        raise TypeError(f"rateOf takes a name, got {x}")
    return RateOf(x)


_FUNCTIONS: dict[str, Callable] = {
    "ABS": sp.Abs,
    "CEILING": sp.ceiling,
    "FLOOR": sp.floor,
    "EXP": sp.exp,
    "LN": sp.log,
    "LOG": _log,
    "ROOT": _root,
    "POWER": lambda a, b: a**b,
    "FACTORIAL": lambda x: sp.gamma(x + 1),
    "MAX": lambda *x: sp.Max(*x),
    "MIN": lambda *x: sp.Min(*x),
    "QUOTIENT": _quotient,
    "REM": lambda a, b: a - b * _quotient(a, b),
    "RATE_OF": _rate_of,
    **{name.upper(): getattr(sp, name) for name in "sin cos tan sec csc cot sinh cosh tanh sech csch".split()},
    "COTH": lambda x: sp.cosh(x) / sp.sinh(x),
    **{f"ARC{name[1:].upper()}": getattr(sp, name) for name in "asin acos atan asinh acosh atanh".split()},
    "ARCSEC": lambda x: sp.acos(1 / x),
    "ARCCSC": lambda x: sp.asin(1 / x),
    "ARCCOT": lambda x: sp.atan(1 / x),
    "ARCSECH": lambda x: sp.acosh(1 / x),
    "ARCCSCH": lambda x: sp.asinh(1 / x),
    "ARCCOTH": lambda x: sp.atanh(1 / x),
}
_OPERATIONS: dict[str, Callable] = {
    "PLUS": _numeric(lambda *x: sp.Add(*x)),
    "TIMES": _numeric(lambda *x: sp.Mul(*x)),
    "MINUS": _numeric(_minus),
    "DIVIDE": _numeric(lambda a, b: a / b),
    "POWER": _numeric(lambda a, b: a**b),
    **{f"FUNCTION_{name}": _numeric(function) for name, function in _FUNCTIONS.items()},
    "FUNCTION_PIECEWISE": _piecewise,
    "LOGICAL_AND": _logical(lambda *x: sp.And(*x)),
    "LOGICAL_OR": _logical(lambda *x: sp.Or(*x)),
    "LOGICAL_NOT": _logical(lambda x: sp.Not(x)),
    "LOGICAL_XOR": _logical(_xor),
    "LOGICAL_IMPLIES": _logical(lambda a, b: sp.Or(sp.Not(a), b)),
    "RELATIONAL_EQ": _related(lambda a, b: sp.Eq(a, b)),
    "RELATIONAL_NEQ": _related(lambda a, b: sp.Ne(a, b)),
    "RELATIONAL_GT": _related(lambda a, b: sp.Gt(a, b)),
    "RELATIONAL_GEQ": _related(lambda a, b: sp.Ge(a, b)),
    "RELATIONAL_LT": _related(lambda a, b: sp.Lt(a, b)),
    "RELATIONAL_LEQ": _related(lambda a, b: sp.Le(a, b)),
}
_LEAVES: dict[str, Callable] = {
    "INTEGER": lambda tree: sp.Integer(tree.getInteger()),
    "REAL": lambda tree: real(tree.getReal()),
    "REAL_E": lambda tree: real(tree.getReal()),
    "RATIONAL": lambda tree: sp.Rational(tree.getNumerator(), tree.getDenominator()),
    "CONSTANT_E": lambda tree: sp.E,
    "CONSTANT_PI": lambda tree: sp.pi,
    "CONSTANT_TRUE": lambda tree: sp.true,
    "CONSTANT_FALSE": lambda tree: sp.false,
    "NAME_TIME": lambda tree: t,
    "NAME_AVOGADRO": lambda tree: sp.Float(6.02214179e23),  # the value that SBML Level 3 gives
}
_NAMES = (*_OPERATIONS, *_LEAVES, "NAME", "FUNCTION", "FUNCTION_DELAY")
