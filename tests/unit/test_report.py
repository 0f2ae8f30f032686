"""The report: what its pages and plots say, of builds of every size."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from built_figures import Built
from genie_answers import difference
from snapbake.files import read_json

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"verdict.html", "accuracy.svg", "answers.html", "genie.html", "size.svg", "cost.svg"}
LONG_NAME = "an-assistant-that-was-fine-tuned-on-all-that-customers-asked-in-2024.v3"
VOID = {"br", "meta"}


class Balanced(HTMLParser):
    """Notes tags that close what is not open, what stays open, and what would be loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        self.wrong += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"/{tag}")


def require_page(text: str) -> None:
    parser = Balanced()
    parser.feed(text)
    assert not parser.wrong
    assert not parser.open
    # The verdict is put into a script of Snakemake's page.
    assert "<script" not in text
    assert "<!--" not in text


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Built:
    """A build of one model in the two usual recipes; read it only."""
    return Built(tmp_path_factory.mktemp("built"), ["smollm2-135m"])


@pytest.fixture(scope="module")
def drawn(built) -> Path:
    return built.draw(built.folder / "results" / "report")


def test_the_program_draws_everything_and_the_same_again(built, drawn, tmp_path):
    command = [sys.executable, str(ROOT / "scripts" / "draw_report.py")]
    for name, value in built.arguments.items():
        command.append(f"--{name.replace('_', '-')}")
        if isinstance(value, dict):
            command += [f"{key}={entry}" for key, entry in value.items()]
        else:
            command += map(str, value if isinstance(value, list) else [value])
    done = subprocess.run(
        [*command, "--output-dir", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == NAMES
    for name in NAMES:
        assert (tmp_path / name).read_bytes() == (drawn / name).read_bytes()


@pytest.mark.parametrize("arguments", [["--weight-bits", "fp16"], ["--weight-bits", "fp16=many"]])
def test_the_program_refuses_what_it_cannot_read(tmp_path, arguments):
    files = ["--verdicts", "--chats", "--contexts", "--evaluations", "--checks", "--summaries"]
    rest = [word for name in files for word in (name, "x")]
    command = [sys.executable, str(ROOT / "scripts" / "draw_report.py"), *rest, *arguments]
    command += ["--benchmarks", "x", "--output-dir", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "weight-bits" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "choices",
    [
        {"models": ["m"], "recipes": ["w8a16"]},
        {"models": ["m"], "recipes": ["fp16"], "tied": False},
        {"models": ["m"], "recipes": ["fp16", "broken"]},
        {
            "models": ["m", "qwen3-0.6b", LONG_NAME],
            "contexts": [512, 4096],
            "recipes": ["fp16", "w8a16", "w8a8", "w4a16"],
            "socs": ["sm8650", "sm8750"],
        },
        {
            "models": [LONG_NAME],
            "recipes": ["w8a16", "w4a16"],
            "socs": ["sm8550", "sm8650", "sm8750", "qcs8625"],
        },
    ],
)
def test_builds_of_every_size_can_be_drawn(tmp_path, choices):
    built = Built(tmp_path, **choices)
    built.draw(tmp_path / "report")
    for path in (tmp_path / "report").iterdir():
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".html":
            require_page(text)
        else:
            root = ElementTree.fromstring(text)
            assert root.get("width") == "756pt", "as wide as the others"
            assert "NaN" not in text
            assert "nan" not in text
            assert "dc:date" not in text
    verdict = (tmp_path / "report" / "verdict.html").read_text(encoding="utf-8")
    for name in (*built.models, *built.recipes):
        assert name in verdict
    for soc in built.socs:
        assert f"{soc.upper()} (a phone&#x27;s chip, v75)" in verdict


def test_a_build_without_benchmarks_can_be_drawn(tmp_path):
    """Snakemake keeps them in a folder that a person may delete."""
    built = Built(tmp_path, ["m"])
    shutil.rmtree(tmp_path / "benchmarks")
    built.draw(tmp_path)
    assert ElementTree.parse(tmp_path / "cost.svg").getroot().get("width") == "756pt"


def test_an_accepted_build_is_fit(built, drawn):
    text = (drawn / "verdict.html").read_text(encoding="utf-8")
    assert "✔ Fit for the phone: both binaries keep every limit of their recipes, and Genie" in text
    assert "✘" not in text
    verdict = read_json(built.arguments["verdicts"][1])
    emulator = verdict["emulator"]
    assert f"{emulator['kl_divergence']:#.3g}" in text
    assert f"{verdict['cpu']['kl_divergence']:#.3g}" in text
    assert f"{emulator['perplexity_float']:.2f} → {emulator['perplexity']:.2f}" in text
    assert "≤\N{NO-BREAK SPACE}0.03" in text
    assert "≥\N{NO-BREAK SPACE}0.9999" in text
    assert "results/smollm2-135m/c512/w8a16/sm8650/context.bin" in text
    assert "models/&lt;mine&gt; &amp; yours" in text


def test_a_missed_limit_is_told_with_its_gap_and_its_place(tmp_path):
    built = Built(tmp_path, ["m"], recipes=["fp16", "w4a16"])
    built.draw(tmp_path / "report")
    text = (tmp_path / "report" / "verdict.html").read_text(encoding="utf-8")
    assert "✘ 1 of 2 binaries is not fit for the phone." in text
    verdict = read_json(built.arguments["verdicts"][1])
    assert not verdict["accepted"]
    found, worst = verdict["emulator"]["kl_divergence"], verdict["emulator"]["kl_worst"]
    gap = f"{found:#.3g} ✘<br><small>{found - 0.03:#.3g} above the limit</small>"
    assert f'<td class="number missed"><span class="bad">{gap}</span></td>' in text
    place = f"at position {worst['position']} of record {worst['record']}"
    assert f"Furthest off is the token on the emulator {place}" in text
    assert text.count("✔ accepted") == 2, "in the overview and in its card"
    assert text.count("✘ not accepted") == 2


def test_a_single_binary_needs_no_overview(tmp_path):
    built = Built(tmp_path, ["m"], recipes=["w4a16"])
    built.draw(tmp_path / "report")
    text = (tmp_path / "report" / "verdict.html").read_text(encoding="utf-8")
    assert "✘ Not fit for the phone." in text
    assert "All binaries" not in text


def test_answers_lie_side_by_side(drawn):
    text = (drawn / "answers.html").read_text(encoding="utf-8")
    assert "Which is &lt;larger&gt;, 1 &amp; 2?\nSay why." in text
    assert text.count("<mark>since</mark> it comes later.") == 2, "in both recipes"
    # A margin of 0.25 nats: e^0.25 = 1.28.
    assert "3 of 8 tokens alike, then 1.28\N{NO-BREAK SPACE}:\N{NO-BREAK SPACE}1" in text
    assert text.count("✔ all 2 tokens alike") == 2
    # The emulator's answer differs at the fifth token, where the margin is 0.4.
    assert "Emulator, SM8650: 4 of 16 tokens alike, then 1.49" in text


def test_genies_answers_stand_beside_the_originals(drawn):
    text = (drawn / "genie.html").read_text(encoding="utf-8")
    assert text.count("✔ Genie answers as the CPU does.") == 2, "in both recipes"
    assert "smollm2-135m, 512 tokens, w8a16, SM8650 (a phone&#x27;s chip, v75)" in text
    assert "What&#x27;s &lt;b&gt;it&lt;/b&gt;?" in text
    assert "It is so." in text
    assert "It is &amp; was." in text
    # A margin of 0.25 nats: e^0.25 = 1.28.
    told = "3 of 3 tokens as the CPU<br>2 of 3 tokens as the original, whose odds for its next were"
    assert f"{told} 1.28" in text
    assert "near tie up to" not in text
    verdict = (drawn / "verdict.html").read_text(encoding="utf-8")
    assert "answered 1 prompt on the emulator; 3 of 3 tokens are the CPU's" in verdict


def test_near_ties_of_genie_are_explained(tmp_path):
    answer = {"differences": [difference(1e-9)], "agreeing_with_cpu": 2}
    folder = Built(tmp_path, ["m"], recipes=["w8a16"], answer=answer).draw(tmp_path / "report")
    text = (folder / "genie.html").read_text(encoding="utf-8")
    assert "✔ Genie answers as the CPU does." in text
    odds = "1.00\N{NO-BREAK SPACE}:\N{NO-BREAK SPACE}1"
    assert "token 3: the CPU prefers another by 1e-09 nats" in text
    assert re.search(r"A difference counts as a near tie up to [\d.]+ nats", text)
    assert f"the CPU's odds were {odds} or less" in (folder / "verdict.html").read_text()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"same_prompt": False}, "Genie makes other tokens of the prompt"),
        ({"same_text": False}, "Genie makes another text of the tokens"),
        ({"stopped": False}, "Genie goes on after"),
        ({"differences": [difference(99.0)]}, "otherwise than the CPU at token 3"),
    ],
)
def test_genie_at_odds_with_the_cpu_is_told(tmp_path, answer, words):
    folder = Built(tmp_path, ["m"], recipes=["fp16"], answer=answer).draw(tmp_path / "report")
    for name in ("genie.html", "verdict.html"):
        text = (folder / name).read_text(encoding="utf-8")
        require_page(text)
        assert words in text
        assert "✔ Genie" not in text
    assert "✘ Not fit for the phone." in text
    assert "✘ not accepted" in text


def test_snakemake_opens_its_report_with_the_verdict(drawn, tmp_path):
    """Make a report of the real text, captions and style around the pages."""
    captions = "\n".join(
        f'        report("results/report/{name}", caption="{ROOT}/report/captions/{stem}.rst", '
        f'category="{category}"),'
        for name, stem, category in (
            ("verdict.html", "verdict", "1. Verdict"),
            ("accuracy.svg", "accuracy", "2. Quality"),
            ("answers.html", "answers", "2. Quality"),
            ("genie.html", "genie", "2. Quality"),
            ("size.svg", "size", "3. Size"),
            ("cost.svg", "cost", "4. Cost of the build"),
        )
    )
    (tmp_path / "Snakefile").write_text(
        f'report: "{ROOT}/report/workflow.rst"\nconfig["models"] = ["smollm2-135m"]\n'
        f'rule draw:\n    output:\n{captions}\n    shell: "cp {drawn}/* results/report"\n'
    )
    style = ["--report-stylesheet", str(ROOT / "report" / "style.css")]
    for arguments in ([], ["--report", "report.html", *style]):
        command = [sys.executable, "-m", "snakemake", "--cores", "1", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    opening = text[text.index('<script id="workflow-desc">') : text.index('<script id="results">')]
    assert "Fit for the phone: both binaries" in opening
    assert "smollm2-135m" in opening
    assert "javascript:app.showCategory" in opening
    assert "safe center" in text
    assert "system-message" not in text, "docutils found a mistake in a text"
