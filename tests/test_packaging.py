"""What the package says of itself agrees: versions, extras, public names, imports, what is shipped."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import odesens

PACKAGE = Path(odesens.__file__).parent
ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CITATION = (ROOT / "CITATION.cff").read_text()
README = (ROOT / "README.md").read_text()
FILES = sorted(PACKAGE.rglob("*.py"))


def in_citation(key: str) -> str:
    """The value of a key at the top of CITATION.cff."""
    found = re.search(rf'^{key}: "?(.*?)"?$', CITATION, re.MULTILINE)
    assert found, f"CITATION.cff has no {key}"
    return found[1]


def test_versions_agree():
    version = PROJECT["project"]["version"]
    assert odesens.__version__ == version
    assert in_citation("version") == version
    dated = re.findall(r"^## \[(\d[^]]*)\] - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert dated, "CHANGELOG.md has no heading such as ## [0.1.0] - 2026-12-01"
    assert dated[0] == (version, in_citation("date-released"))


def test_the_citation_in_the_readme_agrees():
    fields = dict(re.findall(r"^  (\w+) += \{+(.*?)\}+,$", README, re.MULTILINE))
    assert fields["version"] == in_citation("version")
    assert fields["title"] == in_citation("title")
    assert fields["year"] == in_citation("date-released")[:4]
    author = PROJECT["project"]["authors"][0]["name"]
    assert fields["author"] == author and f'name: "{author}"' in CITATION


def test_the_citation_file_is_valid():
    """By the format's own schema where cffconvert is installed; else the keys that it requires."""
    assert in_citation("cff-version") == "1.2.0"
    for key in ("message", "title", "authors"):
        assert re.search(rf"^{key}:", CITATION, re.MULTILINE), key
    assert in_citation("license") == PROJECT["project"]["license"]
    assert f"License: {in_citation('license')}" in README
    cffconvert = pytest.importorskip("cffconvert")
    cffconvert.Citation(CITATION).validate()


def test_types_are_shipped():
    assert (PACKAGE / "py.typed").exists()
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["odesens"]


def test_the_source_distribution_holds_everything():
    included = set(PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    wanted = {"odesens", "tests", "notebooks", "benchmarks", "docs"}
    wanted |= {"README.md", "CHANGELOG.md", "LICENSE", "CITATION.cff"}
    assert wanted <= included
    assert all((ROOT / name).exists() for name in wanted - {"docs"})


def extras_named(text: str) -> set[str]:
    """The extras in `odesens[a,b]` or `.[a]`."""
    found = re.findall(r"(?:odesens|'\.|\"\.)\[([a-z,]+)\]", text)
    return {name for names in found for name in names.split(",")}


@pytest.mark.parametrize("path", [*FILES, ROOT / "README.md", ROOT / "pyproject.toml"], ids=lambda p: p.name)
def test_extras_that_are_named_exist(path):
    unknown = extras_named(path.read_text()) - set(PROJECT["project"]["optional-dependencies"])
    assert not unknown, f"{path.name} names the extras {sorted(unknown)}, which pyproject.toml has not"


def test_the_check_of_extras_sees_names():
    assert extras_named("pip install 'odesens[plot,test]' or pip install '.[dev]'") == {"plot", "test", "dev"}


def rank(name: str) -> tuple:
    """Constants, then classes, then functions, each in the order of the alphabet."""
    constant = name.isupper() and len(name) > 1
    return (0 if constant else 1 if name[0].isupper() else 2), name


def packages_with_names() -> list:
    found = []
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                found.append((path, ast.literal_eval(node.value)))
    return found


@pytest.mark.parametrize(("path", "names"), packages_with_names(), ids=lambda x: str(getattr(x, "parent", ""))[-12:])
def test_public_names_are_sorted(path, names):
    assert names == sorted(names, key=rank), path
    assert len(set(names)) == len(names)


def test_all_that_is_imported_at_the_top_is_public():
    """`odesens/__init__.py` imports the public names and nothing else."""
    imported = set()
    for node in ast.parse((PACKAGE / "__init__.py").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            imported |= {alias.asname or alias.name for alias in node.names}
    assert imported == set(odesens.__all__)
    assert all(hasattr(odesens, name) for name in odesens.__all__)


def requirement(text: str) -> str:
    return re.split(r"[\[<>=!~ ;]", text)[0].lower().replace("-", "_")


CORE = {requirement(x) for x in PROJECT["project"]["dependencies"]}
EXTRA_ROOMS = {"symbolic": {"sympy"}}  # folders that are imported on demand, with their extra


def top_level_imports(path: Path) -> set[str]:
    """The packages that importing a module imports: not those within functions."""
    names, todo = set(), list(ast.parse(path.read_text()).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").split(".")[0])
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ClassDef)):
            todo.extend(ast.iter_child_nodes(node))
    return names - sys.stdlib_module_names - {"odesens"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_are_declared(path):
    """What a module imports when it is imported is a core dependency, or that of its folder's extra."""
    room = path.relative_to(PACKAGE).parts[0]
    undeclared = top_level_imports(path) - CORE - EXTRA_ROOMS.get(room, set())
    assert not undeclared, f"{path.name} imports {sorted(undeclared)} when it is imported: do so inside functions"


def test_extras_of_folders_exist():
    extras = PROJECT["project"]["optional-dependencies"]
    for room, packages in EXTRA_ROOMS.items():
        assert packages <= {requirement(x) for x in extras[room]}


def test_without_sympy_the_extra_is_named():
    script = "import sys; sys.modules['sympy'] = None; import odesens; import odesens.symbolic"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith("pip install 'odesens[symbolic]'")


def test_installed_metadata():
    """Where the package is installed, and not only on the path, its metadata are these."""
    try:
        installed = metadata.distribution("odesens")
    except metadata.PackageNotFoundError:
        pytest.skip("odesens is on the path but not installed")
    assert installed.version == odesens.__version__
    assert installed.metadata["Requires-Python"] == PROJECT["project"]["requires-python"]
    assert set(installed.metadata.get_all("Provides-Extra") or ()) == set(PROJECT["project"]["optional-dependencies"])
