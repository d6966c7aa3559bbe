"""Public names are documented: every parameter, the sections that a signature calls for, examples that run.

The package is walked, so that new modules are covered. Public is what `__all__` of a package or module names, and what
is defined in the modules without one that are themselves public: named in an `__all__`, or in README.md.
"""

import ast
import dataclasses
import doctest
import importlib
import inspect
import pkgutil
import re
import textwrap
from pathlib import Path

import jax
import pytest

import odesens

README = (Path(__file__).parent.parent / "README.md").read_text()
ROOMS = {"methods", "integrate", "sensitivity"}  # folders without names of a user's
# what solves return and users do not make: they have attributes
RESULTS = set(
    "DenseOutput Diagnosis EnsembleError EnsembleSolution Events GradientCheck ODESolution OdeResult Parameters "
    "SavedSolution SensitivityReport SimplifiedSystem SolveError SteadyStateSolution Summary WorkPrecision".split()
)
PYTREE = {"tree_flatten", "tree_unflatten"}  # what JAX asks of a class
CALLS = {"__call__", "__getitem__"}  # methods without a name that users call


def modules():
    """Every module of the package whose imports are installed."""
    found = [odesens]
    for info in pkgutil.walk_packages(odesens.__path__, "odesens."):
        if info.name.endswith("__main__"):
            continue
        try:
            found.append(importlib.import_module(info.name))
        except ImportError as error:
            if (error.name or "").split(".")[0] == "odesens":
                raise
    return found


MODULES = modules()


def is_own(thing) -> bool:
    return getattr(thing, "__module__", "").startswith("odesens")


def is_public(module) -> bool:
    """Whether users import it, or from it."""
    name = module.__name__.removeprefix("odesens.")
    return any(getattr(other, name, None) is module and name in other.__all__ for other in PACKAGES) or bool(
        re.search(rf"(from|import) odesens\.{name}\b|`odesens\.{name}\b", README)
    )


PACKAGES = [m for m in MODULES if hasattr(m, "__all__") and m.__name__.split(".")[1:2] not in ([r] for r in ROOMS)]


def public() -> dict[str, object]:
    """The functions and classes that users call, by their full names, each once."""
    found: dict[int, tuple[str, object]] = {}
    for module in MODULES:
        names = module.__all__ if module in PACKAGES else None
        if names is None and is_public(module):
            here = vars(module).items()
            names = [n for n, x in here if not n.startswith("_") and getattr(x, "__module__", "") == module.__name__]
        for name in names or ():
            thing = getattr(module, name)
            if is_own(thing) and isinstance(thing, (type, type(public))):
                found.setdefault(id(thing), (f"{thing.__module__}.{thing.__qualname__}", thing))
    return dict(sorted(found.values()))


PUBLIC = public()


def sections(doc: str) -> set[str]:
    """The titles of a NumPy style docstring."""
    return set(re.findall(r"^[ \t]*([A-Z]\w+)\n[ \t]*---+$", doc, re.MULTILINE))


def arguments(thing) -> list[str]:
    """The names of what a call of it takes."""
    call = thing
    if inspect.isclass(thing):
        makers = [vars(c).get("__init__") or vars(c).get("__new__") for c in thing.__mro__]
        call = next((f for f in makers if f is not None), object)
        if not getattr(call, "__module__", "").startswith("odesens") and not dataclasses.is_dataclass(thing):
            return []  # that of a class of the standard library
    parameters = inspect.signature(call).parameters
    return [name for name in parameters if name not in ("self", "cls")]


def documentation(thing) -> str:
    """Its own docstring, of a class also that of `__init__`."""
    if not inspect.isclass(thing):
        return inspect.getdoc(thing) or ""
    own = vars(thing).get("__doc__") or ""
    made = vars(thing).get("__init__")
    return inspect.cleandoc(own) + "\n" + (inspect.getdoc(made) or "" if made and not is_generated(made) else "")


def is_generated(function) -> bool:
    """Whether a dataclass wrote it."""
    code = getattr(function, "__code__", None)
    return code is None or code.co_filename == "<string>"


def raises(thing) -> bool:
    """Whether a call of it has a `raise` of its own, outside of what is caught and of functions within."""
    functions = [vars(thing).get(n) for n in ("__init__", "__post_init__")] if inspect.isclass(thing) else [thing]
    for function in functions:
        if function is None or is_generated(inspect.unwrap(function)):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body[0]
        todo = list(ast.iter_child_nodes(tree))
        while todo:
            node = todo.pop()
            if isinstance(node, ast.Raise):
                return True
            if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
                todo.extend(ast.iter_child_nodes(node))
    return False


def returns(function) -> bool:
    return inspect.signature(function).return_annotation not in (None, "None")


def missing(name: str, thing) -> list[str]:
    """What the documentation of a public function or class lacks."""
    doc = documentation(thing)
    if not doc.strip():
        return ["a docstring"]
    short, made = name.split(".")[-1], inspect.isclass(thing)
    has, wants = sections(doc), {"Examples"}
    given = [] if short in RESULTS or (made and issubclass(thing, tuple)) else arguments(thing)
    if made and issubclass(thing, int):  # an enumeration is not called
        given = []
    lacks = [f"the parameter {p}" for p in given if not re.search(rf"(?<![\w.]){p}\b", doc)]
    if given:
        wants.add("Parameters")
    if short in RESULTS:
        wants.add("Attributes")
    if not made and returns(thing):
        wants.add("Returns")
    if raises(thing) and short not in RESULTS:
        wants.add("Raises")
    lacks += [f"the section {s}" for s in sorted(wants - has)]
    return lacks


def methods(thing):
    """(name, function, whether it is a property) of the public methods of a class, inherited ones included."""
    members = {n: x for c in reversed(thing.__mro__) if is_own(c) for n, x in vars(c).items()}
    for name, member in members.items():
        if name in PYTREE or (name.startswith("_") and name not in CALLS):
            continue
        is_property = isinstance(member, property) or type(member).__name__ == "cached_property"
        function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if is_property or inspect.isfunction(function):
            yield name, function, is_property


def missing_of_method(cls, name: str, function, is_property: bool) -> list[str]:
    doc = inspect.getdoc(getattr(cls, name)) or ""
    if is_property:
        function = getattr(function, "fget", None) or getattr(function, "func", None)
        doc = inspect.getdoc(function) or doc
    if not doc.strip():
        return ["a docstring"]
    if is_property:
        return []
    lacks = [f"the parameter {p}" for p in arguments(function) if not re.search(rf"(?<![\w.]){p}\b", doc)]
    if len(arguments(function)) > 1 and "Parameters" not in sections(doc) and not name.startswith("with_"):
        lacks.append("the section Parameters")
    return lacks


def test_the_walk_sees_the_package():
    names = {name.split(".")[-1] for name in PUBLIC}
    assert {n for n in odesens.__all__ if not inspect.ismodule(getattr(odesens, n))} <= names
    assert {"LinearInterpolation", "Tsit5", "solve", "EnsembleSolution", "work_precision"} <= names
    assert len(MODULES) > 60


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_documented(name):
    lacks = missing(name, PUBLIC[name])
    assert not lacks, f"the docstring of {name} lacks {', '.join(lacks)}"


@pytest.mark.parametrize("name", [n for n, x in PUBLIC.items() if inspect.isclass(x)])
def test_public_methods_are_documented(name):
    cls = PUBLIC[name]
    found = [(m, missing_of_method(cls, m, f, p)) for m, f, p in methods(cls)]
    lacks = [f"that of {m} lacks {', '.join(x)}" for m, x in found if x]
    assert not lacks, f"docstrings of the methods of {name}: {'; '.join(lacks)}"


def test_sections_are_filled():
    """No empty section, no section twice, no underline of another length."""
    for name, thing in PUBLIC.items():
        doc = documentation(thing)
        titles = re.findall(r"^[ \t]*([A-Z]\w+)\n[ \t]*(-+)$", doc, re.MULTILINE)
        assert len({t for t, _ in titles}) == len(titles), f"{name} has a section twice"
        assert all(len(t) == len(line) for t, line in titles), f"{name} has an underline of another length"
        assert not re.search(r"---\n\s*(\n|$)", doc), f"{name} has an empty section"


@pytest.mark.parametrize("broken", [{"doc": ""}, {"doc": "Solve.\n\nParameters\n----------\nx : float\n"}])
def test_the_check_finds_what_is_missing(broken):
    def f(x, y) -> float:
        raise ValueError

    f.__doc__ = broken["doc"]
    lacks = missing("m.f", f)
    full = {"the parameter y", "the section Examples", "the section Returns", "the section Raises"}
    assert set(lacks) == ({"a docstring"} if not broken["doc"] else full)


# ---------------------------------------------------------------- examples


def examples() -> dict[str, doctest.DocTest]:
    """The examples of every module, by the name of what they are of."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = {}
    for module in MODULES:
        for test in finder.find(module, module.__name__):
            if test.examples:
                found[test.name] = test
    return found


EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name):
    assert jax.config.jax_enable_x64
    for package in re.findall(r"^(?:import|from) (\w+)", "".join(e.source for e in EXAMPLES[name].examples), re.M):
        pytest.importorskip(package)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    failed, _ = runner.run(EXAMPLES[name], out=said.append)
    assert not failed, "".join(said)


def test_every_public_name_has_examples_that_run():
    for name in PUBLIC:
        assert name in EXAMPLES, f"{name} has no example that doctest finds"
