"""A key for what tracing a function depends on: equal keys, equal programs; no key where that cannot be told.

Owns: `Fingerprint`, the walk over a function's code, captured values and globals. Must not know: equations.

The walk is made at every call, so nothing that it reads can go stale. It accepts what cannot change behind its back:
plain constants, concrete JAX arrays (by identity), pure functions of the libraries listed here, and Python functions,
whose own captured values and globals are walked in turn. All else is `Unknown`: NumPy arrays, traced values, lists,
user objects and modules, assignments to globals or to captured variables, anything read from dunder attributes.
"""

import builtins
import collections
import dis
import functools
import sys
import types
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

MOST_PARTS = 4000  # of a key
MOST_BYTES = 2**20  # of captured arrays, which a cache with this key keeps alive


class Frozen:
    """Base of callables that never change and trace to the same program each time: known by identity."""


class Unknown(Exception):
    """The function depends on something that may change unseen."""


# ---------------------------------------------------------------- pure functions of libraries

_FILES = {"load", "save", "savez", "fromfile", "memmap", "DataSource", "loadtxt", "savetxt", "genfromtxt", "fromregex"}
_STATE = {"empty", "empty_like", "datetime64", "geterr", "seterr", "geterrcall", "getbufsize", "get_printoptions"}
_COLLECTIVE = (
    "axis_index axis_size psum pmean pmax pmin all_gather all_gather_invariant all_to_all ppermute pshuffle "
    "psum_scatter pswapaxes pbroadcast pvary pcast preduced ragged_all_to_all with_sharding_constraint infeed outfeed"
)
_JAX = "vmap jit grad value_and_grad jvp vjp jacfwd jacrev hessian linearize checkpoint remat named_scope Array"
_BUILTINS = (
    "abs all any bool complex dict divmod enumerate filter float frozenset int isinstance issubclass iter len list map "
    "max min next pow range reversed round set slice sorted str sum tuple type zip"
)
_WHOLE = (
    "jax.numpy.linalg jax.numpy.fft jax.nn jax.random jax.tree jax.scipy jax.scipy.special jax.scipy.linalg "
    "jax.scipy.stats numpy.linalg numpy.fft math cmath operator itertools"
)
_ONLY = {  # module: the names that are pure
    "jax": _JAX.split(),
    "functools": ["partial", "reduce"],
    "builtins": [*_BUILTINS.split(), *(n for n in vars(builtins) if n.endswith(("Error", "Exception")))],
}
_EXCEPT = {  # module: the public names that are not
    "jax.numpy": _FILES | _STATE - {"empty", "empty_like"},
    "jax.lax": set(_COLLECTIVE.split()),
    "numpy": _FILES | _STATE,
    **{name: set() for name in _WHOLE.split()},
}
_MODULES = {*_ONLY, *_EXCEPT}
_OWN = {name.lstrip("_") for name in ("jaxlib", "scipy", *_MODULES) if "." not in name}
_PURE: dict[int, Any] = {}  # pure functions and classes by their id, kept alive here
_listed: set[str] = set()


def _is_pure(x) -> bool:
    """Whether x is a public function of a listed module, itself and not one that holds it."""
    if _PURE.get(id(x)) is x:
        return True
    new = [name for name in _MODULES if name not in _listed and name in sys.modules]
    for module in new:
        names = vars(sys.modules[module])
        chosen = _ONLY.get(module) or [n for n in names if n[0] != "_" and n not in _EXCEPT[module]]
        for obj in (names[n] for n in chosen if n in names):
            origin = (getattr(obj, "__module__", None) or module).split(".")[0].lstrip("_")
            if callable(obj) and not isinstance(obj, types.ModuleType) and origin in _OWN:
                _PURE[id(obj)] = obj
        _listed.add(module)
    return bool(new) and _PURE.get(id(x)) is x


# ---------------------------------------------------------------- code

_LOADS = ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_REFUSED = (
    "STORE_GLOBAL DELETE_GLOBAL IMPORT_NAME IMPORT_FROM LOAD_BUILD_CLASS LOAD_NAME LOAD_FROM_DICT_OR_GLOBALS "
    "LOAD_SUPER_ATTR LOAD_LOCALS STORE_ATTR DELETE_ATTR"
).split()


@functools.lru_cache(maxsize=1024)
def _reads(code: types.CodeType) -> dict | None:
    """What code and the functions made in it read from outside: {(is global, name): chains of attributes}, or None."""
    reads: dict[tuple[bool, str], set] = {}
    free = set(code.co_freevars)
    pending = [code]
    while pending:
        one = pending.pop()
        pending += [c for c in one.co_consts if isinstance(c, types.CodeType)]
        ops = [i for i in dis.get_instructions(one) if i.opname not in ("EXTENDED_ARG", "CACHE", "PUSH_NULL")]
        for i, op in enumerate(ops):
            name = op.argval
            if op.opname in _REFUSED or (op.opname in ("STORE_DEREF", "DELETE_DEREF") and name in free):
                return None
            if "ATTR" in op.opname or op.opname == "LOAD_METHOD":
                if not isinstance(name, str) or name.startswith("__"):
                    return None
            elif op.opname.startswith("LOAD_GLOBAL") or (op.opname.startswith(_LOADS) and name in free):
                chain = []
                while ops[i + 1].opname in _ATTRIBUTES:
                    chain.append(ops[i + 1].argval)
                    i += 1
                reads.setdefault((op.opname.startswith("LOAD_GLOBAL"), name), set()).add(tuple(chain))
    for name in free:
        reads.setdefault((False, name), set())
    return {key: sorted(chains) for key, chains in sorted(reads.items())}


_JIT = type(jax.jit(lambda: None))
_PLAIN = (type(None), type(...), bool, int, str, bytes)
_TUPLE = collections.namedtuple("_TUPLE", ())


def _is_plain_tuple(cls) -> bool:
    """Whether a class is a named tuple without methods of its own."""
    if not (isinstance(cls, type) and cls.__mro__[1:] == (tuple, object) and hasattr(cls, "_fields")):
        return False
    allowed = {*vars(_TUPLE), *cls._fields, "__annotations__", "__orig_bases__", "__annotate_func__", "__annotate__"}  # pyright: ignore[reportAttributeAccessIssue]
    same = (vars(cls)[n].__code__ is vars(_TUPLE)[n].__code__ for n in ("_replace", "_asdict", "__repr__"))
    return set(vars(cls)) <= allowed and all(same)


# layers whose calls depend on nothing but their own fields
_LAYERS = {"Linear", "MLP", "Identity", "Lambda", "Sequential", "LayerNorm", "RMSNorm", "GRUCell", "LSTMCell"}


class Fingerprint:
    """A key, built up part by part; each part's tag says how many follow, so that different things have different keys.

    Attributes
    ----------
    parts : what the key holds so far; objects are there by their address
    alive : those objects, for whoever keeps the key to keep too
    """

    def __init__(self):
        self.parts: list = []
        self.alive: list = []
        self._seen: dict[int, int] = {}
        self._bytes = 0

    @property
    def key(self) -> tuple:
        return tuple(self.parts)

    def _identity(self, tag: str, x):
        self.parts += (tag, id(x))
        self.alive.append(x)

    def value(self, x) -> None:
        """Add any value."""
        kind = type(x)
        if kind in _PLAIN:
            self.parts += (kind, x)
        elif kind is float:
            self.parts += (float, x.hex())  # a zero has a sign
        elif kind is complex:
            self.parts += (complex, x.real.hex(), x.imag.hex())
        elif kind is tuple:
            self._items(tuple, x)
        elif kind is types.FunctionType:
            self._function(x)
        elif isinstance(x, jax.Array):
            self._array(x)
        elif _is_pure(x):
            self._identity("pure", x)
        elif isinstance(x, Frozen):
            self._identity("frozen", x)
        elif isinstance(x, np.dtype):
            self._identity("dtype", x)
        elif kind is types.MethodType:
            self.parts.append("method")
            self.value(x.__self__)
            self.value(x.__func__)
        elif kind is functools.partial and not vars(x):
            self.parts.append("partial")
            self.value(x.func)
            self._items(tuple, x.args)
            self._named(x.keywords)
        elif kind is _JIT:
            self._identity("jit", x)
            self.value(x.__wrapped__)
        elif _is_plain_tuple(kind):
            self._identity("named", kind)
            self._items(tuple, x)
        elif _is_plain_tuple(x):
            self._identity("class", x)
        elif isinstance(x, np.generic) and x.dtype.kind in "biufc":
            self.parts += (kind, x.tobytes())
        else:
            raise Unknown(kind)

    def _items(self, kind, xs):
        self.parts += (kind, len(xs))
        for x in xs:
            self.value(x)

    def _named(self, values: dict):
        self._items(tuple, tuple(values))
        self._items(tuple, tuple(values.values()))

    def _array(self, x):
        self._bytes += 0 if isinstance(x, Tracer) else x.nbytes
        if isinstance(x, Tracer) or self._bytes > MOST_BYTES:
            raise Unknown(type(x))
        self._identity("array", x)

    def _function(self, f):
        if _is_pure(f):
            return self._identity("pure", f)
        if id(f) in self._seen:
            self.parts += ("again", self._seen[id(f)])
            return None
        self._seen[id(f)] = len(self._seen)
        code = f.__code__
        reads = _reads(code)
        if reads is None or (f.__dict__ and set(f.__dict__) != {"__wrapped__"}) or len(self.parts) > MOST_PARTS:
            raise Unknown(f)
        self._identity("def", code)
        self.value(f.__defaults__)
        self._named(f.__kwdefaults__ or {})
        cells = dict(zip(code.co_freevars, f.__closure__ or (), strict=True))
        for (is_global, name), chains in reads.items():
            try:
                x = _lookup(f, name) if is_global else cells[name].cell_contents
            except (KeyError, ValueError):  # not defined yet
                raise Unknown(name) from None
            if isinstance(x, types.ModuleType):
                for chain in chains or [()]:
                    self.value(_resolve(x, chain))
            else:
                self.value(x)
        return None

    def tree(self, treedef) -> None:
        """Add a pytree's structure, where its nodes are plain containers or layers of equinox."""
        self.parts.append(treedef)
        pending = [treedef]
        while pending:
            node = pending.pop()
            data = node.node_data()
            if data is None:
                continue
            kind, aux = data
            if kind is dict:
                self._items(dict, aux)
            elif kind in (tuple, list, type(None)):
                self.parts.append(kind)
            elif kind.__module__.startswith("equinox.nn.") and kind.__name__ in _LAYERS:
                self._identity("layer", kind)
                for x in aux:
                    self._identity("mark", x) if type(x).__module__.startswith("equinox.") else self.value(x)
            elif _is_plain_tuple(kind):
                self._identity("named", kind)
            else:
                raise Unknown(kind)
            pending += node.children()


def _lookup(f, name: str):
    values = f.__globals__
    return values[name] if name in values else f.__builtins__[name]


def _resolve(module, chain: tuple):
    """What a chain of attributes of a listed module leads to, up to the first that is no module."""
    x = module
    for name in chain:
        if x.__name__ not in _MODULES or sys.modules.get(x.__name__) is not x:
            break
        x = getattr(x, name, module)
        if not isinstance(x, types.ModuleType):
            return x
    raise Unknown(module)
