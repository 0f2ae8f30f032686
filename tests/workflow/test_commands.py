"""The rules call the real programs with options that these have."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from snapbake.checkpoint import OUTPUT_FILES

ROOT = Path(__file__).resolve().parents[2]
OPTION = re.compile(r"--[a-z][a-z0-9-]*")


def rule_options() -> dict[str, set[str]]:
    """Map each program to the options that its rule calls it with."""
    found = {}
    for path in sorted((ROOT / "rules").glob("*.smk")):
        for rule in path.read_text().split("\nrule ")[1:]:
            for name in re.findall(r'program\("(\w+)"', rule):
                shell = rule.partition("shell:")[2].split('"""')[1]
                given = re.findall(r'option\(\s*"(--[a-z-]+)"', rule)
                found[name] = {*OPTION.findall(shell), *given}
    return found


@pytest.mark.parametrize(("name", "options"), rule_options().items())
def test_a_rule_knows_its_program(name, options):
    command = [sys.executable, f"scripts/{name}.py", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    usage, _, rest = done.stdout.partition("\n\n")
    assert options <= set(OPTION.findall(rest)), "an option that the program does not have"
    required = set(OPTION.findall(re.sub(r"\[[^\[\]]*\]", "", usage)))
    assert required <= options, "an option that the program cannot do without"


@pytest.mark.parametrize("name", rule_options())
def test_a_rule_is_named_after_its_program(name):
    text = "".join(path.read_text() for path in (ROOT / "rules").glob("*.smk"))
    rule = re.search(rf"\nrule {name}:\n(.*?)(?=\nrule |\Z)", text, re.S)[1]
    assert f'"logs/{name}' in rule
    assert f'"benchmarks/{name}' in rule or "localrule: True" in rule


def test_the_files_of_a_checkpoint_are_those_that_its_program_writes():
    text = (ROOT / "rules" / "common.smk").read_text()
    listed = re.search(r"CHECKPOINT = \[.*?for name in \[(.*?)\]", text, re.S)[1]
    assert re.findall(r'"([^"]+)"', listed) == list(OUTPUT_FILES)
