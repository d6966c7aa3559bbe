"""The symbols of a model: time, unknowns, parameters and time derivatives, with what is said about them.

Owns: `t`, `D`, `TimeDerivative`, `Unknown`, `Parameter`, `unknowns`, `parameters`, arrays of symbols, metadata. Must
not know: systems, JAX.

Symbols are equal where class, name and metadata are. Metadata has to be part of that: SymPy hands back the expression
it made before from equal parts, so with names alone `-k` of a second instance would hold the symbol, and so the default
value, of the first. Whoever compares symbols of one system goes by names.
"""

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import sympy
from sympy.core.function import AppliedUndef

t = sympy.Symbol("t")
VALUES = ("default", "guess")  # metadata that may be expressions


class _Named(sympy.Symbol):
    """A symbol with metadata; `_GIVEN` has the values that stand where nothing is said."""

    __slots__ = ("_key", "metadata")
    _GIVEN: ClassVar[dict[str, Any]] = dict(default=None, guess=None, unit=None, description="", bounds=None)
    metadata: dict[str, Any]

    def __new__(cls, name: str, **metadata):
        unknown = sorted(set(metadata) - set(cls._GIVEN))
        if unknown:
            raise TypeError(
                f"{cls.__name__} {name!r} has no metadata {', '.join(unknown)}; there is {', '.join(cls._GIVEN)} "
                "(SymPy's assumptions are not kept; for a sign give bounds)"
            )
        checked = {key: _CHECKS.get(key, _anything)(name, key, value) for key, value in metadata.items()}
        self = sympy.Symbol.__xnew__(cls, name, commutative=True)  # not SymPy's cache, which knows no metadata
        self.metadata = {key: checked[key] for key in cls._GIVEN if key in checked and not _is(checked, key, cls)}
        self._key = "".join(f"{key}={_text(value)};" for key, value in self.metadata.items())
        return self

    def __getnewargs_ex__(self):
        return (self.name,), self.metadata

    def _hashable_content(self):
        return self.name, self._key

    def __getattr__(self, key: str):
        given = type(self)._GIVEN
        if key in given:
            return self.metadata.get(key, given[key])
        raise AttributeError(f"{type(self).__name__} {self.name} has no attribute {key!r}; it has {', '.join(given)}")

    def renamed(self, name: str) -> Any:
        """The symbol of another name with the same metadata."""
        return type(self)(name, **self.metadata)


class Unknown(_Named):
    """A function of time that a system determines.

    Parameters
    ----------
    name : str
    **metadata
        The attributes below.

    Attributes
    ----------
    name : str
    default : number or expression, optional
        The value at t0.
    guess : number or expression, optional
        Where the search for a consistent value at t0 starts.
    unit : any, optional
        Kept, and compared where unknowns are connected.
    description : str
    bounds : (lower, upper), optional
    connect : {"equal", "flow"}, optional
        What a connection says of it: all equal, or the sum is zero.
    state_priority : number
        The higher it is, the rather the unknown is chosen as a state.

    Examples
    --------
    >>> from odesens.symbolic import Unknown
    >>> x = Unknown("x", default=1.0, bounds=(0, None))
    >>> 2 * x, x.default, x.bounds
    (2*x, 1.0, (0.0, inf))
    """

    __slots__ = ()
    _GIVEN: ClassVar[dict[str, Any]] = dict(_Named._GIVEN, connect=None, state_priority=0)
    default: Any
    guess: Any
    unit: Any
    description: str
    bounds: tuple | None
    connect: str | None
    state_priority: float


class Parameter(_Named):
    """A value that does not depend on time (events may change it).

    Parameters
    ----------
    name : str
    **metadata
        The attributes below.

    Attributes
    ----------
    name, default, guess, unit, description, bounds
        As of an `Unknown`.
    tunable : bool
        Whether it is among the parameters to be fitted.

    Examples
    --------
    >>> from odesens.symbolic import Parameter
    >>> k = Parameter("k", default=2.0, unit="1/s")
    >>> k, k.default, k.unit, k.tunable
    (k, 2.0, '1/s', True)
    """

    __slots__ = ()
    _GIVEN: ClassVar[dict[str, Any]] = dict(_Named._GIVEN, tunable=True)
    default: Any
    guess: Any
    unit: Any
    description: str
    bounds: tuple | None
    tunable: bool


def _is(checked: dict, key: str, cls) -> bool:
    """Whether a value says nothing."""
    value, given = checked[key], cls._GIVEN[key]
    return value is given or (type(value) is type(given) and isinstance(value, (str, bool, int)) and value == given)


def _text(value) -> str:
    """What tells values apart; for an expression also what is said of its symbols."""
    if not isinstance(value, sympy.Basic):
        return repr(value)
    symbols = sorted(f"{s.name}:{s._key}" for s in value.free_symbols if isinstance(s, _Named))
    return f"{sympy.srepr(value)}{symbols}"


def scalar(value, what: str):
    """A number or a SymPy expression, with NumPy's scalars as Python's.

    Raises
    ------
    TypeError
        For anything else.
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, float, complex, sympy.Expr)):
        return value
    if getattr(value, "shape", None) == () and getattr(value, "dtype", None) is not None:
        return scalar(np.asarray(value).item(), what)
    raise TypeError(f"{what} must be a number or a SymPy expression, got {type(value).__name__}: {value!r}")


def _anything(name: str, key: str, value):
    return value


def _checked_value(name: str, key: str, value):
    return value if value is None else scalar(value, f"{key} of {name}")


def _checked_bounds(name: str, key: str, value):
    if value is None:
        return None
    pair = tuple(value) if isinstance(value, (tuple, list, np.ndarray)) else ()
    if len(pair) != 2:
        raise TypeError(f"bounds of {name} must be a pair (lower, upper), got {value!r}")
    ends = [-math.inf, math.inf]
    lower, upper = (float(end if x is None else x) for x, end in zip(pair, ends, strict=True))
    if not lower <= upper:
        raise ValueError(f"bounds of {name} must be (lower, upper) with lower <= upper, got {value!r}")
    return lower, upper


def _checked_connect(name: str, key: str, value):
    if value not in (None, "equal", "flow"):
        raise ValueError(f'connect of {name} must be "equal" or "flow", got {value!r}')
    return value


_CHECKS = dict(
    default=_checked_value,
    guess=_checked_value,
    bounds=_checked_bounds,
    connect=_checked_connect,
    tunable=lambda name, key, value: bool(value),
    state_priority=_checked_value,
)


class SymbolArray(np.ndarray):
    """An array of symbols or expressions; a key of a mapping by identity, so a mapping may be given by arrays."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def indexed(name: str, shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], str]]:
    """The entries of an array and their names, as `x[0]` and `x[0,1]`."""
    for index in np.ndindex(*shape):
        yield index, f"{name}[{','.join(map(str, index))}]"


def _array(cls, name: str, shape: tuple[int, ...], metadata: dict) -> SymbolArray:
    out = np.empty(shape, object).view(SymbolArray)
    spread = {}
    for key in VALUES:
        if metadata.get(key) is not None:
            value = np.asarray(metadata[key], object)
            try:
                spread[key] = np.broadcast_to(value, shape)
            except ValueError:
                raise ValueError(f"{key} of {name} must broadcast to shape {shape}, got shape {value.shape}") from None
    for index, entry in indexed(name, shape):
        out[index] = cls(entry, **(metadata | {key: values[index] for key, values in spread.items()}))
    return out


def _make(cls, names, shape, metadata: dict):
    size = (shape,) if isinstance(shape, int) else shape
    make: Any = lambda name: cls(name, **metadata) if size is None else _array(cls, name, tuple(size), metadata)
    return sympy.symbols(names, cls=make)


def unknowns(names: str, *, shape: int | tuple[int, ...] | None = None, **metadata: Any) -> Any:
    """Functions of time that a system determines.

    Parameters
    ----------
    names : str
        As of `sympy.symbols`: "x", "x y", "x:3".
    shape : int or tuple of int, optional
        Each name is then an array of unknowns `x[0]`, `x[0,1]`.
    **metadata
        See `Unknown`. The same for all names; `default` and `guess` may be arrays that broadcast to `shape`.

    Returns
    -------
    Unknown, SymbolArray, or a tuple of them
        One for one name, else a tuple, as from `sympy.symbols`.

    Raises
    ------
    TypeError, ValueError
        For metadata that there is not, or values that do not broadcast to `shape`.

    Examples
    --------
    >>> from odesens.symbolic import unknowns
    >>> unknowns("x y")
    (x, y)
    >>> print(unknowns("z", shape=3))
    [z[0] z[1] z[2]]
    """
    return _make(Unknown, names, shape, metadata)


def parameters(names: str, *, shape: int | tuple[int, ...] | None = None, **metadata: Any) -> Any:
    """Values that do not depend on time.

    Parameters
    ----------
    names, shape
        As of `unknowns`.
    **metadata
        See `Parameter`.

    Returns
    -------
    Parameter, SymbolArray, or a tuple of them

    Raises
    ------
    TypeError, ValueError
        As of `unknowns`.

    Examples
    --------
    >>> from odesens.symbolic import parameters
    >>> k, m = parameters("k m", default=1.0)
    >>> k / m, m.default
    (k/m, 1.0)
    """
    return _make(Parameter, names, shape, metadata)


class TimeDerivative(sympy.Expr):
    """The time derivative of an unknown, of order 1 or more.

    Built by `D`. `args` are the unknown and the order. With anything but an unknown (as when a value is substituted) it
    is D of that. To SymPy's `diff` it is a variable of its own.
    """

    __slots__ = ()
    is_commutative = True
    _diff_wrt = True  # type: ignore[assignment]

    def __new__(cls, unknown, order=1):
        if isinstance(unknown, Unknown):
            return sympy.Expr.__new__(cls, unknown, sympy.Integer(order))
        return D(unknown, int(order))

    @property
    def unknown(self) -> Unknown:
        return self.args[0]  # type: ignore[return-value]

    @property
    def order(self) -> int:
        return int(self.args[1])  # type: ignore[arg-type]

    def _eval_derivative(self, s):
        return sympy.S.One if s == self else sympy.S.Zero

    def _sympystr(self, printer):
        return "D(" * self.order + printer._print(self.unknown) + ")" * self.order

    _sympyrepr = _sympystr

    def _latex(self, printer):
        power = "" if self.order == 1 else f"^{{{self.order}}}"
        return rf"\frac{{d{power} {printer._print(self.unknown)}}}{{d t{power}}}"


def D(expr: Any, n: int = 1) -> Any:
    """The n-th time derivative.

    Parameters
    ----------
    expr : number, expression or array of them
        Of an unknown it is a `TimeDerivative`; of an expression the chain rule is applied; of a parameter or a number
        it is 0; of `t` it is 1.
    n : int
        At least 0.

    Returns
    -------
    expression, or array of them

    Raises
    ------
    TypeError
        Where a symbol is neither `t`, an unknown nor a parameter, so that nothing is known of its derivative.
    ValueError
        For an n that is not an integer of at least 0.

    Examples
    --------
    >>> from odesens.symbolic import D, parameters, t, unknowns
    >>> x, k = unknowns("x"), parameters("k")
    >>> D(k * x**2), D(x, 2), D(t)
    (2*k*x*D(x), D(D(x)), 1)
    """
    if isinstance(n, bool) or int(n) != n or n < 0:
        raise ValueError(f"the order of a derivative must be an integer of at least 0, got {n!r}")
    if isinstance(expr, (np.ndarray, list, tuple)):
        array = np.asarray(expr, object)
        out = np.empty(array.shape, object).view(SymbolArray)
        for index in np.ndindex(*array.shape):
            out[index] = D(array[index], n)
        return out
    if n and isinstance(expr, Unknown):
        return TimeDerivative(expr, n)
    if n and isinstance(expr, TimeDerivative):
        return TimeDerivative(expr.unknown, expr.order + n)
    out = sympy.sympify(expr)
    for _ in range(int(n)):
        out = _derivative(out)
    return out


def leaves(expr) -> set:
    """The symbols and time derivatives of an expression; the unknown within a time derivative is not one of them."""
    out, seen, todo = set(), set(), [expr]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, (sympy.Symbol, TimeDerivative)):
            out.add(node)
        else:
            todo.extend(node.args)
    return out


def _derivative(expr):
    if isinstance(expr, sympy.Add):
        return sympy.Add(*[_derivative(x) for x in expr.args])
    if isinstance(expr, (Unknown, TimeDerivative)):
        return D(expr)
    found = leaves(expr)
    for call in expr.atoms(AppliedUndef):
        if not all(isinstance(leaf, Parameter) for leaf in leaves(call)):
            raise TypeError(f"D({expr}): nothing is known of the derivative of {call}; make it an unknown of its own")
    out = []
    for leaf in sorted(found, key=sympy.default_sort_key):
        if leaf == t:
            out.append(sympy.diff(expr, t))
        elif isinstance(leaf, (Unknown, TimeDerivative)):
            out.append(sympy.diff(expr, leaf) * D(leaf))
        elif not isinstance(leaf, Parameter):
            raise TypeError(f"D({expr}): {leaf} is neither t nor an unknown; make it by unknowns or parameters")
    return sympy.Add(*out)
