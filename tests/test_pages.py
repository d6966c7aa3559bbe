"""README and docs: every block of ours runs, in order, in one namespace for each page; every relative link exists.

A block that cannot run here is marked in the page itself, by the line `<!-- not run: why -->` above its fence. Peers'
code has `python peer` or another language on its fence; SciPy's is run too.
"""

import re
import warnings
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("from_*.md"))]
FENCE = re.compile(r"(?:<!-- not run: (?P<why>[^\n]+) -->\n)?```(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.M | re.S)
INFOS = {"python", "python peer", "julia", "bash", "bibtex", ""}


def blocks(path: Path, info: str):
    """(line, code) of the blocks with this on their fence, those that are marked left out."""
    text = path.read_text()
    for found in FENCE.finditer(text):
        assert found["info"] in INFOS, f"{path.name}: unknown fence {found['info']!r}"
        if found["info"] == info and not found["why"]:
            yield text.count("\n", 0, found.start("code")), found["code"]


def run(path: Path, info: str) -> int:
    names: dict = {"__name__": path.stem}
    count = 0
    for count, (line, code) in enumerate(blocks(path, info), 1):  # noqa: B007
        exec(compile("\n" * line + code, str(path), "exec"), names)  # tracebacks show the page's own lines
    return count


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder for what a block writes; the precision as it was."""
    monkeypatch.chdir(tmp_path)
    yield
    jax.config.update("jax_enable_x64", True)


def id_of(path):
    return path.stem


@pytest.mark.parametrize("path", PAGES, ids=id_of)
def test_our_blocks_run(path, elsewhere):
    if "symbolic" in path.read_text() and path.name == "README.md":
        pytest.importorskip("sympy")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert run(path, "python") >= 8


def test_blocks_of_scipy_run(elsewhere):
    assert run(ROOT / "docs" / "from_scipy.md", "python peer") == 11


def test_all_four_pages_are_there_and_compact():
    names = {f"from_{peer}.md" for peer in ("scipy", "diffrax", "torchdiffeq", "sciml")}
    assert names <= {p.name for p in PAGES}
    for path in PAGES:
        if path.name in names:
            assert len(path.read_text().splitlines()) <= 250, path.name


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("path", PAGES, ids=id_of)
def test_links_exist(path):
    text = FENCE.sub("", path.read_text())
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), f"{path.name}: {link}"
        if anchor:
            assert anchor in {slug(h) for h in re.findall(r"^#+ (.+)$", target.read_text(), re.M)}, link
    assert links
