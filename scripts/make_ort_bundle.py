"""Make a folder for programs that use ONNX Runtime: wrapped binaries, tables and an example."""

import argparse
from pathlib import Path

from snapbake.errors import run_program
from snapbake.ort_bundle import make_ort_bundle


def main() -> None:
    """Read the command line and make the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefill", type=Path, required=True, help="binary of the prefill graph")
    parser.add_argument("--decode", type=Path, required=True, help="binary of the decode graph")
    parser.add_argument(
        "--manifest", type=Path, required=True, help="MANIFEST.json of the phone's bundle"
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the model")
    parser.add_argument("--encodings", type=Path, required=True, help="the recipe's encodings.json")
    parser.add_argument(
        "--template", type=Path, required=True, help="prompt template of prepare_chat.py"
    )
    parser.add_argument("--example", type=Path, required=True, help="program to put beside them")
    parser.add_argument(
        "--tokens", type=int, required=True, help="new tokens a run of the prefill graph"
    )
    parser.add_argument("--context", type=int, required=True, help="tokens, past and new")
    parser.add_argument("--output-dir", type=Path, required=True, help="folder to write")
    arguments = parser.parse_args()
    make_ort_bundle(
        {"prefill": arguments.prefill, "decode": arguments.decode},
        arguments.manifest,
        arguments.checkpoint,
        arguments.encodings,
        arguments.template,
        arguments.example,
        arguments.tokens,
        arguments.context,
        arguments.output_dir,
    )


if __name__ == "__main__":
    run_program(main)
