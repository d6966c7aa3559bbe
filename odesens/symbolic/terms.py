"""Expressions as a graph of integers: equal expressions have equal numbers, and nothing is written twice.

Owns: `Terms`, its normal form, differentiation, substitution. Must not know: systems of equations, JAX. SymPy is met
at the door (`exchange`).

A node is an integer; `Terms.nodes[node]` is one of

    ("number", value)                       an int, Fraction, float or complex
    ("time",)
    ("unknown", name, order)                the order-th time derivative of an unknown
    ("parameter", name)
    ("add", constant, ((node, coef), ..))   constant + sum of coef * node, coefs numbers
    ("mul", ((node, exponent), ..))         product of node ** exponent, exponents numbers, without a numeric factor
    ("power", base, exponent)               the exponent not a number
    ("call", name, (node, ..))              elementary and other functions, relations, logic, "select"

Arguments have smaller numbers than what is made of them, so that the order of numbers is an order of evaluation.
"""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

Number = int | Fraction | float | complex


class Terms:
    """A growing graph of expressions; `nodes[i]` is the i-th, in the form that the module's docstring gives."""

    def __init__(self):
        self.nodes: list[Any] = []
        self._numbers: dict[tuple, int] = {}
        self._leaves: list[frozenset[int]] = []
        self._derivatives: dict[tuple[int, int], int] = {}

    # ------------------------------------------------------------ making nodes

    def _node(self, key: tuple) -> int:
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.nodes)
            self.nodes.append(key)
            children = arguments(key)
            leaf = key[0] in ("time", "unknown", "parameter")
            sets = {self._leaves[c] for c in children}
            own = frozenset((found,)) if leaf else frozenset().union(*sets) if len(sets) != 1 else next(iter(sets))
            self._leaves.append(own)
        return found

    def number(self, value: Number) -> int:
        return self._node(("number", _exact(value)))

    def time(self) -> int:
        return self._node(("time",))

    def unknown(self, name: str, order: int = 0) -> int:
        return self._node(("unknown", name, order))

    def parameter(self, name: str) -> int:
        return self._node(("parameter", name))

    def value(self, node: int) -> Number | None:
        """The number that a node is, or None."""
        kind = self.nodes[node]
        return kind[1] if kind[0] == "number" else None

    def add(self, pairs: Iterable[tuple[int, Number]], constant: Number = 0) -> int:
        """constant + sum of coef * node."""
        total: dict[int, Number] = {}
        for node, coef in pairs:
            kind = self.nodes[node]
            if kind[0] == "number":
                constant = constant + coef * kind[1]
            elif kind[0] == "add":
                constant = constant + coef * kind[1]
                for inner, c in kind[2]:
                    total[inner] = total.get(inner, 0) + coef * c
            else:
                total[node] = total.get(node, 0) + coef
        terms = tuple(sorted(((n, _exact(c)) for n, c in total.items() if c != 0), key=_first))
        if not terms:
            return self.number(constant)
        if constant == 0 and len(terms) == 1 and terms[0][1] == 1:
            return terms[0][0]
        return self._node(("add", _exact(constant), terms))

    def mul(self, pairs: Iterable[tuple[int, Number]], coef: Number = 1) -> int:
        """coef * product of node ** exponent."""
        total: dict[int, Number] = {}
        pending = list(pairs)[::-1]
        while pending:
            node, exponent = pending.pop()
            kind = self.nodes[node]
            whole = _exact(exponent)
            simple = isinstance(whole, int)
            if kind[0] == "number":
                coef = coef * _power(kind[1], whole)
            elif kind[0] == "add" and kind[1] == 0 and len(kind[2]) == 1 and (simple or _positive(kind[2][0][1])):
                coef = coef * _power(kind[2][0][1], whole)
                pending.append((kind[2][0][0], whole))
            elif kind[0] == "mul" and simple:
                pending += [(inner, e * whole) for inner, e in kind[1]]
            else:
                total[node] = total.get(node, 0) + whole
        if coef == 0:
            return self.number(0)
        factors = tuple(sorted(((n, _exact(e)) for n, e in total.items() if e != 0), key=_first))
        if not factors:
            return self.number(coef)
        product = factors[0][0] if len(factors) == 1 and factors[0][1] == 1 else self._node(("mul", factors))
        return product if coef == 1 else self.add([(product, coef)])

    def power(self, base: int, exponent: int) -> int:
        """base ** exponent."""
        known = self.value(exponent)
        if known is not None:
            return self.mul([(base, known)])
        if self.value(base) == 1:
            return base
        return self._node(("power", base, exponent))

    def call(self, name: str, *args: int) -> int:
        """The function `name` of its arguments, worked out where they are numbers and that is safe."""
        if name == "select" and self.nodes[args[0]][:2] in (("call", "true"), ("call", "false")):
            return args[1] if self.nodes[args[0]][1] == "true" else args[2]
        values = [self.value(a) for a in args]
        if args and name in _FOLDED and all(isinstance(v, (int, Fraction, float)) for v in values):
            try:
                return self._folded(_FOLDED[name](*values))
            except (ValueError, OverflowError):  # out of the real domain: NaN when it is evaluated
                pass
        return self._node(("call", name, args))

    def _folded(self, value) -> int:
        return self.call("true" if value else "false") if isinstance(value, bool) else self.number(value)

    def neg(self, node: int) -> int:
        return self.add([(node, -1)])

    def sub(self, a: int, b: int) -> int:
        return self.add([(a, 1), (b, -1)])

    def product(self, *nodes: int) -> int:
        return self.mul([(n, 1) for n in nodes])

    def shared(self, node: int) -> int:
        """The same value as a node that sums do not take apart, so that what many use is worked out once."""
        return self.call("share", node) if self.nodes[node][0] == "add" and len(self.nodes[node][2]) > 1 else node

    # ------------------------------------------------------------ reading nodes

    def leaves(self, node: int) -> frozenset[int]:
        """The unknowns, parameters and the time that a node depends on."""
        return self._leaves[node]

    def below(self, roots: Iterable[int]) -> list[int]:
        """All nodes that the roots are made of, themselves included, in an order of evaluation."""
        seen: set[int] = set()
        pending = list(roots)
        while pending:
            node = pending.pop()
            if node not in seen:
                seen.add(node)
                pending += arguments(self.nodes[node])
        return sorted(seen)

    def rebuilt(self, node: int, new: Mapping[int, int]) -> int:
        """The node with its arguments exchanged for `new` ones."""
        kind = self.nodes[node]
        of = lambda n: new.get(n, n)
        match kind[0]:
            case "add":
                return self.add([(of(n), c) for n, c in kind[2]], kind[1])
            case "mul":
                return self.mul([(of(n), e) for n, e in kind[1]])
            case "power":
                return self.power(of(kind[1]), of(kind[2]))
            case "call":
                return self.call(kind[1], *map(of, kind[2]))
        return node

    def substitute(self, nodes: Sequence[int], values: Mapping[int, int]) -> list[int]:
        """The nodes with leaves exchanged for other nodes, all at once."""
        keys = frozenset(values)
        new = dict(values)
        for node in self.below(nodes):
            if node not in new and not keys.isdisjoint(self._leaves[node]):
                new[node] = self.rebuilt(node, new)
        return [new.get(n, n) for n in nodes]

    # ------------------------------------------------------------ calculus

    def diff(self, node: int, leaf: int) -> int:
        """The partial derivative of a node with respect to a leaf."""
        memory = self._derivatives
        if leaf not in self._leaves[node]:
            return self.number(0)
        if (node, leaf) not in memory:
            pending, needed = [node], set()
            while pending:
                n = pending.pop()
                if n not in needed and (n, leaf) not in memory and leaf in self._leaves[n]:
                    needed.add(n)
                    pending += arguments(self.nodes[n])
            zero = self.number(0)
            of = lambda n: memory.get((n, leaf), zero)
            for n in sorted(needed):
                memory[n, leaf] = self.number(1) if n == leaf else self._derivative(n, of)
        return memory[node, leaf]

    def _derivative(self, node: int, of) -> int:
        """The derivative of a node, given those of its arguments."""
        kind = self.nodes[node]
        if kind[0] == "add":
            return self.add([(of(n), c) for n, c in kind[2]])
        if kind[0] == "mul":
            factors = kind[1]
            terms = []
            for i, (n, e) in enumerate(factors):
                if self.value(of(n)) != 0:
                    rest = [*factors[:i], (n, e - 1), *factors[i + 1 :], (of(n), 1)]
                    terms.append((self.mul(rest), e))
            return self.add(terms)
        if kind[0] == "power":
            base, exponent = kind[1:]
            by_base = self.product(exponent, self.power(base, self.add([(exponent, 1)], -1)), of(base))
            if self.value(of(exponent)) == 0:
                return by_base
            return self.add([(by_base, 1), (self.product(self.call("log", base), node, of(exponent)), 1)])
        _, name, args = kind
        if name == "select":
            return self.call("select", args[0], of(args[1]), of(args[2]))
        if name in _LINEAR_CALLS:
            return self.call(name, *map(of, args))
        terms = [(self.product(partial(self, node, i), of(a)), 1) for i, a in enumerate(args) if self.value(of(a)) != 0]
        return self.add(terms)

    def linear(self, node: int, leaf: int) -> tuple[int, int] | None:
        """(a, b) with node = a * leaf + b, neither of them with the leaf in it; None where there are none such."""
        a = self.diff(node, leaf)
        if leaf in self._leaves[a]:
            return None
        return a, self.substitute([node], {leaf: self.number(0)})[0]

    def evaluate(self, node: int, values: Mapping[int, Number]) -> Number | None:
        """The number that a node is at given values of its leaves; None where one of them is missing."""
        if not self._leaves[node] <= values.keys():
            return None
        new = {leaf: self.number(values[leaf]) for leaf in self._leaves[node]}
        return self.value(self.substitute([node], new)[0])

    def time_derivative(self, node: int) -> int:
        """The total derivative in time; parameters are constant."""
        terms = []
        for leaf in sorted(self._leaves[node]):
            kind = self.nodes[leaf]
            if kind[0] == "time":
                terms.append((self.diff(node, leaf), 1))
            elif kind[0] == "unknown":
                terms.append((self.product(self.diff(node, leaf), self.unknown(kind[1], kind[2] + 1)), 1))
        return self.add(terms)


def arguments(kind: tuple) -> Sequence[int]:
    """The nodes that a node is made of."""
    match kind[0]:
        case "add":
            return [n for n, _ in kind[2]]
        case "mul":
            return [n for n, _ in kind[1]]
        case "power":
            return kind[1:]
        case "call":
            return kind[2]
    return ()


_first = operator.itemgetter(0)

# ---------------------------------------------------------------- numbers


def _exact(value: Any) -> Number:
    """Whole numbers as int."""
    if isinstance(value, Fraction) and value.denominator == 1:
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def _positive(x: Number) -> bool:
    return not isinstance(x, complex) and x > 0


def _power(base: Number, exponent: Number) -> Number:
    """base ** exponent, exact where both are rational and the result is."""
    if isinstance(base, (int, Fraction)) and isinstance(exponent, int):
        if base == 0 and exponent < 0:
            return math.inf
        return _exact(Fraction(base) ** exponent)
    if base == 0:
        return 0 if not isinstance(exponent, complex) and exponent > 0 else math.inf
    if exponent == 1:
        return base
    if isinstance(exponent, int) and not isinstance(base, complex) and base < 0:
        return _power(-base, exponent) * (-1 if exponent % 2 else 1)
    if isinstance(base, complex) or isinstance(exponent, complex) or base < 0:
        return complex(base) ** (complex(exponent) if isinstance(exponent, complex) else float(exponent))
    return float(base) ** float(exponent)


# ---------------------------------------------------------------- functions

_FOLDED: dict[str, Any] = {
    **{name: getattr(math, name) for name in "sin cos tan asin acos atan sinh cosh tanh exp log floor ceil".split()},
    "abs": abs,
    "sign": lambda x: (x > 0) - (x < 0),
    "max": max,
    "min": min,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}
_LINEAR_CALLS = ("share", "re", "im", "conjugate")  # derivatives with respect to real quantities
_CONSTANT_CALLS = ("sign", "floor", "ceil", "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not", "true", "false")


def partial(g: Terms, node: int, i: int) -> int:
    """The partial derivative of a call in its i-th argument."""
    _, name, args = g.nodes[node]
    if name in _CONSTANT_CALLS:
        return g.number(0)
    if name.startswith("user:"):
        return g.call(f"{name}@{i}", *args)
    if name in _OF_ONE:
        return _OF_ONE[name](g, args[0], node)
    if name in _OF_TWO:
        return _OF_TWO[name](g, *args)[i]
    raise TypeError(f"the derivative of {name} is not known here: rewrite the equation without it")


def _poly(g: Terms, x: int, *coefs: Number) -> int:
    """coefs[0] + coefs[1] x + coefs[2] x^2 + .."""
    return g.add([(g.mul([(x, i)]), c) for i, c in enumerate(coefs) if i], coefs[0])


_OF_ONE = {  # (graph, argument, the call itself) -> derivative
    "sin": lambda g, x, f: g.call("cos", x),
    "cos": lambda g, x, f: g.neg(g.call("sin", x)),
    "tan": lambda g, x, f: _poly(g, f, 1, 0, 1),
    "asin": lambda g, x, f: g.mul([(_poly(g, x, 1, 0, -1), Fraction(-1, 2))]),
    "acos": lambda g, x, f: g.mul([(_poly(g, x, 1, 0, -1), Fraction(-1, 2))], -1),
    "atan": lambda g, x, f: g.mul([(_poly(g, x, 1, 0, 1), -1)]),
    "sinh": lambda g, x, f: g.call("cosh", x),
    "cosh": lambda g, x, f: g.call("sinh", x),
    "tanh": lambda g, x, f: _poly(g, f, 1, 0, -1),
    "asinh": lambda g, x, f: g.mul([(_poly(g, x, 1, 0, 1), Fraction(-1, 2))]),
    "acosh": lambda g, x, f: g.mul([(_poly(g, x, -1, 1), Fraction(-1, 2)), (_poly(g, x, 1, 1), Fraction(-1, 2))]),
    "atanh": lambda g, x, f: g.mul([(_poly(g, x, 1, 0, -1), -1)]),
    "exp": lambda g, x, f: f,
    "log": lambda g, x, f: g.mul([(x, -1)]),
    "abs": lambda g, x, f: g.call("sign", x),
    "erf": lambda g, x, f: g.mul([(g.call("exp", g.mul([(x, 2)], -1)), 1)], 2 / math.sqrt(math.pi)),
    "gamma": lambda g, x, f: g.product(f, g.call("digamma", x)),
    "loggamma": lambda g, x, f: g.call("digamma", x),
    "digamma": lambda g, x, f: g.call("trigamma", x),
}
_OF_TWO = {  # (graph, first, second argument) -> both derivatives
    "atan2": lambda g, y, x: (
        g.mul([(x, 1), (g.add([(g.mul([(x, 2)]), 1), (g.mul([(y, 2)]), 1)]), -1)]),
        g.mul([(y, 1), (g.add([(g.mul([(x, 2)]), 1), (g.mul([(y, 2)]), 1)]), -1)], -1),
    ),
    "mod": lambda g, a, b: (g.number(1), g.neg(g.call("floor", g.mul([(a, 1), (b, -1)])))),
    "max": lambda g, a, b: (_one_where(g, g.call("ge", a, b)), _one_where(g, g.call("lt", a, b))),
    "min": lambda g, a, b: (_one_where(g, g.call("le", a, b)), _one_where(g, g.call("gt", a, b))),
}


def _one_where(g: Terms, condition: int) -> int:
    return g.call("select", condition, g.number(1), g.number(0))
