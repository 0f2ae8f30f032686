"""requirements.txt, the environments of the rules, and what the programs import agree."""

import ast
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from jsonschema import validate

from snapbake.program_sources import program_sources

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = sorted((ROOT / "envs").glob("*.yaml"))
# What Snakemake itself and the Snakefile need; the other requirements are for the programs.
WORKFLOW = {"jsonschema", "pyyaml", "snakemake"}

PINNED = {"type": "string", "pattern": r"^[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+$"}
ENVIRONMENT_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["channels", "dependencies"],
    "properties": {
        "channels": {"const": ["conda-forge", "nodefaults"]},
        "dependencies": {
            "type": "array",
            "prefixItems": [
                {"const": "python =3.11"},
                {"const": "pip"},
                {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["pip"],
                    "properties": {
                        "pip": {
                            "type": "array",
                            "minItems": 1,
                            "uniqueItems": True,
                            "items": PINNED,
                        }
                    },
                },
            ],
            "items": False,
            "minItems": 3,
        },
    },
}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(lines) -> dict[str, str]:
    """Map each distribution to its version; comments and `-r` lines do not count."""
    pairs = [line.split("==") for line in lines if line and line[0] not in "#-"]
    return {canonical(name): version.strip() for name, version in pairs}


def requirements(name: str) -> dict[str, str]:
    return pins((ROOT / name).read_text().splitlines())


def environment(path: Path) -> dict[str, str]:
    return pins(yaml.safe_load(path.read_text())["dependencies"][2]["pip"])


def program_environments() -> list[tuple[str, str]]:
    """Return each program with the environment that its rule declares for it."""
    text = "".join(path.read_text() for path in sorted((ROOT / "rules").glob("*.smk")))
    return re.findall(r'program\("(\w+)", "(\w+)"\)', text)


def imported_modules(program: Path) -> set[str]:
    """Return the top-level names that a program and its local modules import, less Python's own."""
    names = set()
    for path in program_sources(program):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add((node.module or "").split(".")[0])
    return names - set(sys.stdlib_module_names) - {"snapbake"}


@pytest.mark.parametrize("path", ENVIRONMENTS, ids=lambda path: path.stem)
def test_an_environment_is_pinned_and_says_what_it_is_for(path):
    validate(yaml.safe_load(path.read_text()), ENVIRONMENT_SCHEMA)
    assert path.read_text().startswith("# ")


def test_requirements_are_what_the_environments_pin():
    pinned = requirements("requirements.txt")
    used = {}
    for path in ENVIRONMENTS:
        for name, version in environment(path).items():
            assert pinned.get(name) == version, f"{path.name}: {name}"
            used[name] = version
    assert pinned.keys() - used.keys() <= WORKFLOW


def test_development_requirements_begin_with_the_others():
    text = (ROOT / "requirements-dev.txt").read_text()
    assert "-r requirements.txt\n" in text
    assert not requirements("requirements-dev.txt").keys() & requirements("requirements.txt").keys()


def test_a_rule_runs_in_the_environment_that_it_declares_as_input():
    for path in sorted((ROOT / "rules").glob("*.smk")):
        for rule in path.read_text().split("\nrule ")[1:]:
            declared = re.findall(r'program\("\w+", "(\w+)"\)', rule)
            used = re.findall(r'conda:\n\s+"\.\./envs/(\w+)\.yaml"', rule)
            assert len(used) == 1, f"{path.name}: {rule}"
            assert declared in ([], used), f"{path.name}: {rule}"


@pytest.mark.parametrize(("name", "env"), program_environments())
def test_an_environment_has_what_its_programs_import(name, env):
    distributions = packages_distributions()
    available = environment(ROOT / "envs" / f"{env}.yaml").keys()
    for module in sorted(imported_modules(ROOT / "scripts" / f"{name}.py")):
        offered = {canonical(distribution) for distribution in distributions.get(module, [])}
        assert offered & available, f"{name} imports {module}, which envs/{env}.yaml lacks"
