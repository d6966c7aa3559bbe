"""The import law: a module imports only from rooms below its own; JAX's extension points are used in one file."""

import ast
from pathlib import Path

import pytest

import odesens

ROOT = Path(odesens.__file__).parent

# from the ground up; a module may import from its own room and from those below
ROOMS = [
    ["checks", "components", "extension", "fingerprint", "pattern", "progress", "sparsity", "status", "taylor", "xla"],
    ["display", "drawing", "tables", "view"],
    ["files"],
    ["viewed"],
    ["saved"],
    ["methods"],
    ["algorithms", "field", "sensealg"],
    ["events", "trace"],
    ["integrate"],
    ["sensitivity"],
    ["call"],
    ["diagnosis", "segments"],
    ["evaluate"],
    ["batches"],
    ["primitive"],
    ["callbacks", "health", "interpolation", "problem", "reruns", "saveat"],
    ["inputs", "solution"],
    ["solve"],
    ["compat", "ensemble", "gradient_check", "jacobian_check", "plotting", "sensitivity_report", "steady_state"],
    ["symbolic"],
    ["__init__"],
    ["__main__"],
]
OPEN = ("methods", "integrate", "sensitivity", "ensemble", "symbolic")  # rooms whose modules may import from each other
LEVEL = {name: i for i, room in enumerate(ROOMS) for name in room}
FILES = sorted(ROOT.rglob("*.py"))


def imports(path: Path):
    """(module as written, names, level of the relative import) of every import in a file, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, [], 0
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", [a.name for a in node.names], node.level


def room_of(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def targets(path: Path):
    """The rooms that a file imports from."""
    depth = len(path.relative_to(ROOT).parts)
    for module, names, level in imports(path):
        if level == 0 and module.split(".")[0] == "odesens":
            parts = module.split(".")[1:] or names or ["__init__"]
            yield parts[0]
        elif level == depth:
            yield from [module.split(".")[0]] if module else names


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    mine = room_of(path)
    for target in targets(path):
        assert target in LEVEL, f"{target} has no room; add it to ROOMS"
        below = LEVEL[target] < LEVEL[mine] or (target == mine and mine in OPEN)
        assert below, f"{path.name} imports {target}, which is not below it"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_extension_points_stay_in_one_file(path):
    text = path.read_text()
    assert "jax._src" not in text.replace("no `jax._src`", "")
    for module, names, _ in imports(path):
        assert module.split(".")[0] != "diffrax"
        touches = module.startswith(("jax.extend", "jax.interpreters")) or (
            module == "jax" and {"extend", "interpreters"} & set(names)
        )
        assert not touches or path.name == "extension.py"


def test_every_module_says_what_it_owns():
    for path in FILES:
        doc = ast.get_docstring(ast.parse(path.read_text()))
        assert doc, path
