"""The symbols that expressions of one system hold, and their names from outside.

Owns: finding and merging symbols, refusing what is no symbol of a system, prefixes. Must not know: systems, equations,
JAX.
"""

from dataclasses import dataclass, field
from typing import Any

import sympy
from sympy.core.function import AppliedUndef

from .symbols import VALUES, Parameter, TimeDerivative, Unknown, t


@dataclass
class Names:
    """What was found in the expressions of one system.

    table : symbols by name, in order of appearance; what is said of one name in several places is merged
    variants : all symbols, among them those that differ in metadata only
    calls : the first application of each undefined function, by its name
    """

    table: dict[str, Any] = field(default_factory=dict)
    variants: dict[Any, None] = field(default_factory=dict)
    calls: dict[str, AppliedUndef] = field(default_factory=dict)

    def scan(self, expressions, where: str, seen: set) -> None:
        """Find the symbols of expressions; `seen` holds the nodes that need not be looked at again.

        Raises
        ------
        TypeError
            For a plain symbol, a SymPy derivative, or a name that is both an unknown and a parameter.
        ValueError
            For contradicting metadata of one name.
        """
        for expr in expressions:
            todo = [expr] if isinstance(expr, sympy.Basic) else []
            while todo:
                node = todo.pop()
                if node in seen:
                    continue
                seen.add(node)
                if isinstance(node, (Unknown, Parameter)):
                    self.add(node, where)
                elif isinstance(node, sympy.Symbol):
                    if node != t:
                        raise TypeError(f"{where}: {_plain(node)}; it is in {expr}")
                elif isinstance(node, (sympy.Derivative, sympy.Subs)):
                    raise TypeError(
                        f"{where}: {node} is a SymPy derivative of a function; make the function an unknown, "
                        'x = unknowns("x"), and write D(x)'
                    )
                else:
                    if isinstance(node, AppliedUndef):
                        self.calls.setdefault(str(node.func), node)
                    todo.extend(reversed(node.args))

    def scan_values(self, where: str, seen: set) -> None:
        """Find the symbols of the values that symbols have, and of theirs."""
        done = 0
        while done < len(self.variants):
            new = list(self.variants)[done:]
            done += len(new)
            self.scan([symbol.metadata.get(key) for symbol in new for key in VALUES], where, seen)

    def add(self, symbol, where: str) -> None:
        if symbol.name == t.name:
            raise ValueError(f"{where}: the name t is that of time; name the {_kind(symbol)} differently")
        if not all(symbol.name.split(".")):
            raise ValueError(f"{where}: {symbol.name!r} is not a name")
        self.variants[symbol] = None
        merge(self.table, symbol.name, symbol, where)


def _plain(symbol) -> str:
    if symbol.name == t.name:
        return "this t is not odesens.symbolic.t, but a symbol with assumptions; use that of odesens.symbolic"
    return (
        f'{symbol} is neither t nor an unknown nor a parameter; make it by unknowns("{symbol}") '
        f'or parameters("{symbol}")'
    )


def _kind(symbol) -> str:
    return "unknown" if isinstance(symbol, Unknown) else "parameter"


def merge(table: dict[str, Any], name: str, symbol, where: str) -> None:
    """Enter a symbol under a name, together with what is said of it already."""
    known = table.setdefault(name, symbol)
    if known is symbol or known == symbol:
        return
    if type(known) is not type(symbol):
        raise TypeError(f"{where}: {name} is both an unknown and a parameter; name one of them differently")
    for key, value in symbol.metadata.items():
        if key in known.metadata and not _same(value, known.metadata[key]):
            raise ValueError(
                f"{where}: {name} has {key} {known.metadata[key]} in one place and {value} in another; make it once, "
                "or name one of them differently"
            )
    table[name] = type(symbol)(name, **(known.metadata | symbol.metadata))


def _same(a, b) -> bool:
    return repr(a) == repr(b) or bool(a == b)


def moved(symbol, name: str):
    """The symbol under its name from outside.

    Values that are expressions are left out: they are in the names from inside (`Flat.defaults` has them).
    """
    if name == symbol.name:
        return symbol
    inner = lambda key, value: key in VALUES and isinstance(value, sympy.Basic) and value.free_symbols
    return type(symbol)(name, **{k: v for k, v in symbol.metadata.items() if not inner(k, v)})


class Namespace:
    """Rewrites expressions of one system to names from outside; without a prefix they stay as they are."""

    def __init__(self, prefix: str, names: Names, functions: dict[str, str]):
        self.prefix = prefix
        self.symbols = {symbol: moved(symbol, prefix + symbol.name) for symbol in names.variants} if prefix else {}
        self.functions = [
            (call.func, sympy.Function(functions[name]))
            for name, call in names.calls.items()
            if functions[name] != name
        ]

    def __call__(self, expr) -> Any:
        if not isinstance(expr, sympy.Basic):
            return expr
        if self.symbols:
            expr = expr.xreplace(self.symbols)
        for old, new in self.functions:
            expr = expr.replace(old, new)
        return expr

    def key(self, symbol) -> Any:
        """The name of an unknown or parameter, (name, order) of a time derivative."""
        if isinstance(symbol, TimeDerivative):
            return self.prefix + symbol.unknown.name, symbol.order
        return self.prefix + symbol.name
