"""Copies of the workflow, to be run, changed and broken by tests.

A copy has the real programs, or stand-ins that only write the files that their rules expect. The
rules, the configuration and the imports of the programs are the real ones in both, so a test sees
with stand-ins in seconds what would run, without computing anything.
"""

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from snapbake.android_sources import android_sources

ROOT = Path(__file__).resolve().parents[1]

STAND_IN = '''\
"""A stand-in for the program of this name."""

import sys
from pathlib import Path


def imports_of_the_program():
    pass
{imports}


FILES = {{
    "prepare_checkpoint": "config.json generation_config.json model.safetensors tokenizer.json "
    "tokenizer_config.json chat_template.jinja",
    "export_onnx": "model.onnx model.onnx_data",
    "select_records": "calibration.json heldout.json manifest.json",
    "convert_fp16": "prefill.onnx decode.onnx weights.data encodings.json",
    "quantize_graphs": "prefill.onnx decode.onnx weights.data encodings.json",
    "run_emulator": "run.json outputs.npz prefill/input_list.txt decode/input_list.txt "
    "prefill/Result_0/logits.raw decode/Result_0/logits.raw",
    "build_android": "qnn_runner libsnapbake_genie.so build.json",
    "make_ort_bundle": "prefill.onnx prefill.bin decode.onnx decode.bin tables.npz tokenizer.json "
    "prompt_template.json run_with_onnxruntime.py metadata.json",
    "make_bundle": "context.bin genie_config.json htp_backend_ext_config.json tokenizer.json "
    "prompt_template.json run_on_phone.sh README.md LICENSES MANIFEST.json android/runner.json "
    "{android}",
    "draw_report": "verdict.html accuracy.svg answers.html genie.html size.svg cost.svg",
}}
OUTPUTS = {{
    "prepare_checkpoint": ["--summary"],
    "write_htp_weights": ["--data", "--index"],
    "evaluate_recipe": ["--output", "--cpu-output"],
    "prepare_chat": ["--template", "--prompts"],
    "share_weights": ["--output", "--manifest"],
}}

name = Path(__file__).stem
words = sys.argv[1:]
if Path("refuse").exists() and name == Path("refuse").read_text():
    sys.exit(f"error: {{name}} was told to fail")
for option, value in zip(words, words[1:]):
    if option == "--output-dir":
        paths = [Path(value) / file for file in FILES[name].split()]
    else:
        paths = [Path(value)] if option in OUTPUTS.get(name, ["--output"]) else []
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"<p>{{name}} wrote {{path}}</p>")
'''


@dataclass
class Result:
    """How a run of Snakemake ended, and which jobs it planned or ran, by rule."""

    code: int
    text: str
    jobs: dict[str, int]


@dataclass
class Workflow:
    """A copy of the workflow in `folder`, and the folder in which it is run.

    `config` are words that every run gets after --config; `python` is the one that Snakemake runs
    in, and `seconds` what a run may take.
    """

    folder: Path
    where: Path
    config: tuple[str, ...] = ()
    python: str = sys.executable
    seconds: float = 900

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start a run in a process group of its own; it prints to one pipe."""
        command = [self.python, "-m", "snakemake", "--cores", "2"]
        if self.where != self.folder:
            command += ["--snakefile", str(self.folder / "Snakefile")]
        return subprocess.Popen(
            [*command, *self._with_config(arguments)],
            cwd=self.where,
            env={**os.environ, "NO_COLOR": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # A shell ignores it for what runs in its background, and that is inherited.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def _with_config(self, arguments: Sequence[str]) -> list[str]:
        """Return a run's arguments with `config` before what they say after --config."""
        words = list(arguments)
        if self.config:
            at = words.index("--config") if "--config" in words else len(words)
            words[at : at + 1] = ["--config", *self.config]
        return words

    def run(self, *arguments: str, **environment: str) -> Result:
        process = self.start(*arguments, **environment)
        try:
            text, _ = process.communicate(timeout=self.seconds)
        finally:
            end_group(process)
        return Result(process.returncode, text, count_jobs(text))

    def plan(self, *arguments: str) -> dict[str, int]:
        """Return the jobs by rule that a dry run plans; `all` itself is left out."""
        result = self.run("--dry-run", *arguments)
        assert result.code == 0, result.text
        return result.jobs

    def refusal(self, *arguments: str) -> str:
        """Return the one line in which a run is refused."""
        result = self.run("--dry-run", *arguments)
        assert result.code == 1, result.text
        assert "Traceback" not in result.text
        errors = [line for line in result.text.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, result.text
        assert result.text.rstrip().endswith(errors[0]), "nothing comes after the error"
        return errors[0]

    def copy(self, folder: Path) -> "Workflow":
        """Return a copy of this copy with everything that was built in it, dates kept."""
        assert self.where == self.folder
        shutil.copytree(self.folder, folder)
        return Workflow(folder, folder, self.config)

    def configure(self, **changes: Any) -> None:
        """Change keys of config/config.yaml."""
        path = self.folder / "config" / "config.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))

    def append(self, name: str, line: str = "# a comment\n") -> None:
        """Add a line to a file of the workflow."""
        path = self.folder / name
        path.write_text(path.read_text() + line)


def end_group(process: subprocess.Popen[str]) -> None:
    """Kill whatever is left of a run, so that no job outlives its test."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def count_jobs(text: str) -> dict[str, int]:
    """Read Snakemake's table of jobs; `all` and the total are left out."""
    table = re.search(r"^Job stats:\njob +count\n-+ +-+\n(.*?)^total ", text, re.M | re.S)
    rows = [line.split() for line in table[1].splitlines()] if table else []
    return {name: int(count) for name, count in rows if name != "all"}


def import_statements(program: Path) -> str:
    """Return the import statements of a program's top level, indented as in a function."""
    tree = ast.parse(program.read_text())
    kinds = (ast.Import, ast.ImportFrom)
    return "\n".join("    " + ast.unparse(node) for node in tree.body if isinstance(node, kinds))


def copy_real_workflow(folder: Path) -> Workflow:
    """Copy the workflow with its programs, without anything that was built."""
    for name in ("android", "bundle", "config", "envs", "profiles", "report", "rules", "scripts"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*")
        )
    for name in ("Snakefile", "requirements.txt"):
        shutil.copy(ROOT / name, folder)
    return Workflow(folder, folder)


def copy_workflow(folder: Path) -> Workflow:
    """Copy the workflow with stand-ins for its programs."""
    workflow = copy_real_workflow(folder)
    rules = "".join(path.read_text() for path in (folder / "rules").glob("*.smk"))
    android = " ".join(f"android/{name}" for name in android_sources(folder / "android"))
    for name in re.findall(r'program\("(\w+)"', rules):
        program = folder / "scripts" / f"{name}.py"
        imports = import_statements(program)
        program.write_text(STAND_IN.format(imports=imports, android=android))
    return workflow
