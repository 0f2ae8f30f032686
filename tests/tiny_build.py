"""A copy of the workflow with a tiny model and its data, for builds by the real programs."""

import json
import random
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tiny_models import CORPUS, make_tiny_model
from workflow_copy import Workflow, copy_real_workflow

MODEL = "exports/tiny"
DATA = "exports/train.json"
RESULTS = "results/tiny"
RECIPES = ("fp16", "w8a16")
CONTEXT, CHUNK = 64, 16
CALIBRATION = {"records": 10, "held_out": 32, "seed": 1}


def make_tiny_build(folder: Path) -> Workflow:
    """Write a copy whose `all` builds a tiny Qwen3 in both recipes in less than a minute.

    The model and its data lie in it, so that copies of the copy are complete.
    """
    workflow = copy_real_workflow(folder)
    make_tiny_model(folder / MODEL, "qwen3")
    (folder / DATA).write_text(json.dumps(tiny_records(60)))
    workflow.configure(contexts=[CONTEXT], prefill_chunk=CHUNK, calibration=CALIBRATION)
    # The logits of random weights lie close together, so that the first choice often changes.
    recipes = folder / "config" / "recipes.yaml"
    text = re.sub(r"top1_agreement: [\d.]+", "top1_agreement: 0.8", recipes.read_text())
    recipes.write_text(text)
    return Workflow(folder, folder, (f"model={MODEL}", f"data={DATA}"))


def tiny_records(count: int) -> list[dict[str, str]]:
    """Return alpaca records whose conversations fit 64 tokens of the tiny tokenizer."""
    words = " ".join(CORPUS).split()
    chooser = random.Random(1)
    return [
        {
            "instruction": f"{number}. {' '.join(chooser.choices(words, k=4))}",
            "output": " ".join(chooser.choices(words, k=6 + number % 20)),
        }
        for number in range(count)
    ]


def files_below(folder: Path) -> set[str]:
    """Return the paths of all files below a folder, relative to it, hidden ones too."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@contextmanager
def changed(path: Path, content: str | bytes | None) -> Iterator[None]:
    """Give a file another content, or take it away (None), and bring it back afterwards."""
    kept = path.with_name(f"{path.name}.kept")
    shutil.copy2(path, kept)
    try:
        if content is None:
            path.unlink()
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content)
        yield
    finally:
        kept.replace(path)


def target(recipe: str, name: str) -> str:
    """Return the path of a file that is made for the chip."""
    return f"{RESULTS}/c{CONTEXT}/{recipe}/sm8650/{name}"
