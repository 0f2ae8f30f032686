"""Give Optimum's graph fixed shapes: batch 1, a fixed chunk, past for the rest of the context."""

import argparse
from pathlib import Path

from snapbake.errors import run_program
from snapbake.freeze import freeze_shapes


def main() -> None:
    """Read the command line and freeze."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="model.onnx of export_onnx.py")
    parser.add_argument(
        "--tokens",
        type=int,
        required=True,
        help="new tokens a run: the prefill chunk, 1 for decode",
    )
    parser.add_argument(
        "--context", type=int, required=True, help="tokens in all, past and new; more than --tokens"
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="graph to write, in the folder of --model"
    )
    arguments = parser.parse_args()
    freeze_shapes(arguments.model, arguments.tokens, arguments.context, arguments.output)


if __name__ == "__main__":
    run_program(main)
