"""A program's local sources are found completely, and nothing else is."""

import textwrap
from pathlib import Path

import pytest

from snapbake.errors import SnapbakeError
from snapbake.program_sources import program_sources

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def scripts(tmp_path):
    """A folder with a package `tools` and a sibling module; `write` adds files to it."""
    folder = tmp_path / "scripts"

    def write(name: str, text: str = "") -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    write("tools/__init__.py")
    write("tools/low.py", "import json\n")
    write("tools/middle.py", "from tools.low import x\n")
    write("tools/unused.py")
    write("sibling.py")
    return write


def names(program: Path) -> list[str]:
    return [path.relative_to(program.parent).as_posix() for path in program_sources(program)]


def test_imports_are_followed_through_modules(scripts):
    program = scripts("run.py", "import numpy\nfrom tools.middle import y\n")
    assert names(program) == ["run.py", "tools/__init__.py", "tools/low.py", "tools/middle.py"]


@pytest.mark.parametrize(
    "statement",
    [
        "import tools.low",
        "import tools.low as low, os",
        "from tools import low",
        "from tools.low import *",
        "def main():\n    from tools import low",
        "COMMAND = ['python', '-m', 'tools.low']",
    ],
)
def test_every_way_to_name_a_module_counts(scripts, statement):
    program = scripts("run.py", statement)
    assert names(program) == ["run.py", "tools/__init__.py", "tools/low.py"]


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("tools/other.py", "from .low import x"),
        ("tools/other.py", "from . import low"),
        ("tools/deep/__init__.py", "from ..low import x"),
    ],
)
def test_relative_imports(scripts, module, statement):
    scripts(module, statement)
    program = scripts("run.py", f"import {module.removesuffix('.py').replace('/', '.')}")
    if module.endswith("__init__.py"):
        program = scripts("run.py", "import tools.deep")
    assert "tools/low.py" in names(program)


def test_a_sibling_module_is_local_and_a_cycle_ends(scripts):
    scripts("sibling.py", "import run\n")
    program = scripts("run.py", "import sibling\n")
    assert names(program) == ["run.py", "sibling.py"]


def test_a_text_that_only_mentions_a_module_does_not_count(scripts):
    program = scripts("run.py", '"""See tools.low for the rest."""\nX = "low"\n')
    assert names(program) == ["run.py"]


def test_files_that_are_known_are_not_parsed_again(scripts):
    known = {}
    program = scripts("run.py", "import tools.middle")
    first = program_sources(program, known)
    assert set(known) == set(first)
    scripts("tools/middle.py", "this is not Python")
    assert program_sources(program, known) == first


def test_paths_begin_like_the_program(scripts, tmp_path, monkeypatch):
    scripts("run.py", "import tools.low")
    monkeypatch.chdir(tmp_path)
    assert [str(path) for path in program_sources(Path("scripts/run.py"))] == [
        "scripts/run.py",
        "scripts/tools/__init__.py",
        "scripts/tools/low.py",
    ]


def test_what_cannot_be_followed_is_named(scripts):
    with pytest.raises(SnapbakeError, match=r"absent\.py does not exist"):
        program_sources(scripts("run.py").with_name("absent.py"))
    with pytest.raises(SnapbakeError, match=r"run\.py is not valid Python at line 2"):
        program_sources(scripts("run.py", "x = 1\nimport\n"))
    with pytest.raises(SnapbakeError, match=r"imports tools\.gone, which is not in"):
        program_sources(scripts("run.py", "import tools.gone"))


def test_no_module_of_snapbake_is_imported_dynamically():
    """Only imports that stand in the source can be followed, so no others are allowed."""
    for path in SCRIPTS.rglob("*.py"):
        text = path.read_text()
        assert "importlib.import_module" not in text, path
        assert "__import__" not in text, path
