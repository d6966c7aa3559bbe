"""Every parameter and result of the public functions, classes and methods has an annotation, of names that exist."""

import inspect
import typing

import pytest

import odesens as ode

SPECIAL = ("__init__", "__call__", "__getitem__", "__iter__", "__len__")


def functions(name: str, thing):
    """The functions of the package that a user may call by a public name, base classes' methods among them."""
    if not inspect.isclass(thing):
        thing = inspect.unwrap(thing)
        if inspect.isfunction(thing):
            yield name, thing
        return
    for base in thing.__mro__:
        for key, member in vars(base).items() if base.__module__.startswith("odesens") else ():
            function = getattr(member, "fget", None) or getattr(member, "func", None) or inspect.unwrap(member)
            function = getattr(function, "__func__", function)
            shown = not key.startswith("_") or key in SPECIAL
            if shown and inspect.isfunction(function) and function.__module__.startswith("odesens"):
                yield f"{name}.{key}", function


def lacking(function) -> list[str]:
    """What has no annotation."""
    signature = inspect.signature(function)
    names = [x.name for x in signature.parameters.values() if x.annotation is x.empty and x.name not in ("self", "cls")]
    no_result = signature.return_annotation is signature.empty and function.__name__ != "__init__"
    return names + ["return"] * no_result


def check(module) -> int:
    own = [name for name, x in vars(module).items() if getattr(x, "__module__", "") == module.__name__]
    names = getattr(module, "__all__", None) or [name for name in own if not name.startswith("_")]
    found = [f for name in names for f in functions(name, getattr(module, name))]
    assert not {name: gaps for name, function in found if (gaps := lacking(function))}
    for _, function in found:
        typing.get_type_hints(function)
    return len(found)


def test_what_lacks_annotations_is_found():
    class Some:
        def method(self, x, y: int, *args, z=1, **options: int): ...

    assert lacking(Some.method) == ["x", "args", "z", "return"]
    assert [name for name, _ in functions("solve", ode.solve)] == ["solve"]
    assert {"ODESolution.retcode", "ODESolution.__call__"} <= {
        name for name, _ in functions("ODESolution", ode.ODESolution)
    }


def test_public_functions_are_annotated():
    assert check(ode) > 100


MODULES = [name for name in ode.__all__ if inspect.ismodule(getattr(ode, name))]


@pytest.mark.parametrize("name", MODULES)
def test_functions_of_public_modules_are_annotated(name):
    assert check(getattr(ode, name)) > 0


def test_public_functions_of_symbolic_models_are_annotated():
    pytest.importorskip("sympy")
    from odesens import symbolic

    assert check(symbolic) > 30
