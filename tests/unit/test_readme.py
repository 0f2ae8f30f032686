"""The two READMEs say the same, and what they name exists: files, rules, options, messages."""

import ast
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READMES = ["README.md", "README.zh-CN.md"]
DOCUMENTS = [
    *READMES,
    "docs/android.md",
    "docs/bundle.md",
    "docs/cluster.md",
    "docs/graph-contract.md",
    "docs/verification.md",
    "profiles/README.md",
]
FOLDERS = ["config", "docs", "envs", "profiles", "report", "rules", "scripts", "tests"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def prose(name: str) -> str:
    return FENCE.sub("", read(name))


def inline_code(name: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(name))


def commands(name: str) -> list[list[str]]:
    """Return the words of every simple command in a document's shell blocks."""
    blocks = "".join(text for kind, text in FENCE.findall(read(name)) if kind == "bash")
    lines = blocks.replace("\\\n", " ").splitlines()
    parts = [part for line in lines for part in re.split(r"&&|\|", line)]
    return [words for part in parts if (words := shlex.split(part))]


@cache
def rule_sources() -> str:
    return "".join(path.read_text() for path in [ROOT / "Snakefile", *ROOT.glob("rules/*.smk")])


@cache
def rules() -> set[str]:
    return set(re.findall(r"^rule (\w+):", rule_sources(), re.M)) - {"all"}


@cache
def result_patterns() -> list[re.Pattern]:
    """Return a pattern for each path below results/ that a rule reads or writes."""
    target = "results/{model}/c{ctx}/{recipe}/{soc}"
    paths = re.findall(r'"(results/[^"\n]+|\{TARGET\}/[^"\n]+)"', rule_sources())
    parts = [re.split(r"\{+\w+\}+", path.replace("{TARGET}", target)) for path in paths]
    return [re.compile(r"[\w-]+".join(map(re.escape, fixed))) for fixed in parts]


def is_result(path: str) -> bool:
    """Whether a rule reads or writes this file, or one in this folder."""
    folder = path.count("/") + 1
    return any(
        pattern.fullmatch(path) or re.fullmatch("/".join(pattern.pattern.split("/")[:folder]), path)
        for pattern in result_patterns()
    )


@cache
def options(*command: str) -> set[str]:
    """Return the options in the help text of a program."""
    done = subprocess.run(
        [*command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", done.stdout))


@cache
def messages() -> list[str]:
    """Return the texts of the programs, with … in place of what is filled in."""
    texts = []
    for path in ROOT.glob("scripts/snapbake/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [getattr(part, "value", None) for part in node.values]
                texts.append("".join(part if isinstance(part, str) else "…" for part in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return texts


def table(name: str, heading: int) -> list[list[str]]:
    """Return the rows of the table in the n-th section of a README, without its head."""
    section = re.split(r"^## ", prose(name), flags=re.M)[heading]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[2:]]


def section_of(word: str) -> int:
    """Return the number of the section of README.md whose heading begins with a word."""
    headings = re.findall(r"^## (.*)$", read("README.md"), re.M)
    return 1 + next(n for n, heading in enumerate(headings) if heading.startswith(word))


def test_both_have_the_same_form():
    english, chinese = (re.findall(r"^(#+) ", prose(name), re.M) for name in READMES)
    assert english == chinese, "headings"
    english, chinese = (FENCE.findall(read(name)) for name in READMES)
    assert english == chinese, "code blocks"
    english, chinese = (prose(name).count("\n|") for name in READMES)
    assert english == chinese, "rows of tables"
    english, chinese = (set(inline_code(name)) for name in READMES)
    assert english == chinese, "code in the text"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_to_files(name):
    folder = (ROOT / name).parent
    for link in re.findall(r"\]\(([^)#]+)\)", prose(name)):
        assert (folder / link).exists(), link


@pytest.mark.parametrize("name", DOCUMENTS)
def test_paths_exist_or_are_made(name):
    words = [word for code in inline_code(name) for word in code.split()]
    words += [word for command in commands(name) for word in command]
    for word in words:
        if word.startswith("results/"):
            for path in expand_braces(word):
                assert is_result(path.rstrip("/")), path
        elif word.split("/")[0] in FOLDERS and "/" in word:
            assert (ROOT / word).exists(), word


def expand_braces(word: str) -> list[str]:
    """Return the words that a shell makes of a{b,c}d."""
    head, brace, rest = word.partition("{")
    if not brace:
        return [word]
    middle, _, tail = rest.partition("}")
    return [path for part in middle.split(",") for path in expand_braces(head + part + tail)]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_rules_that_are_named_exist(name):
    verbs = "|".join(sorted({rule.split("_")[0] for rule in rules()} - {"run"}))
    named = {code for code in inline_code(name) if re.fullmatch(rf"({verbs})_[a-z0-9_]+", code)}
    assert named <= rules()


@pytest.mark.parametrize("name", READMES)
def test_every_rule_has_a_step(name):
    steps = table(name, section_of("The tutorial"))
    assert {rule for row in steps for rule in re.findall(r"`(\w+)`", row[2])} == rules()


def test_the_picture_has_every_rule():
    assert set(re.findall(r">([a-z]\w+)</text>", read("docs/rulegraph.svg"))) == rules()


def test_options_of_commands_exist():
    programs = {
        "snakemake": (sys.executable, "-m", "snakemake"),
        "pip": (sys.executable, "-m", "pip", "install"),
        "pytest": (sys.executable, "-m", "pytest"),
    }
    checked = set()
    for command in commands("README.md"):
        program = programs.get(command[0])
        if command[0] == "python":
            program = (sys.executable, command[1].removeprefix("$repo/"))
        if program:
            given = {word for word in command if re.match(r"--?[A-Za-z]", word)}
            assert given <= options(*program), command
            checked.add(command[0])
    assert checked == {*programs, "python"}


def test_messages_are_those_of_the_programs():
    rows = table("README.md", section_of("When something fails"))
    assert len(rows) == 10
    for row in rows:
        for part in filter(None, (part.strip() for part in row[0].strip(" `").split("…"))):
            assert any(part in text for text in messages()), part
