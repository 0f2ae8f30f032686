"""Compare a recipe's graphs, run by onnxruntime on the CPU, with PyTorch fp32 on held-out text."""

import argparse
from pathlib import Path

from snapbake.errors import run_program
from snapbake.evaluation import evaluate_recipe


def main() -> None:
    """Read the command line and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the model")
    parser.add_argument("--prefill", type=Path, required=True, help="the recipe's prefill graph")
    parser.add_argument("--decode", type=Path, required=True, help="the recipe's decode graph")
    parser.add_argument("--encodings", type=Path, required=True, help="the recipe's encodings.json")
    parser.add_argument(
        "--held-out", type=Path, required=True, help="heldout.json of select_records.py"
    )
    parser.add_argument(
        "--tokens", type=int, required=True, help="new tokens a run of the prefill graph"
    )
    parser.add_argument(
        "--reference", type=Path, required=True, help=".npz file of compute_reference.py"
    )
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    parser.add_argument("--output", type=Path, required=True, help="JSON file with the figures")
    parser.add_argument(
        "--cpu-output",
        type=Path,
        required=True,
        help=".npz file: what the CPU made of the text that the emulator computes",
    )
    arguments = parser.parse_args()
    evaluate_recipe(
        arguments.checkpoint,
        {"prefill": arguments.prefill, "decode": arguments.decode},
        arguments.encodings,
        arguments.held_out,
        arguments.reference,
        arguments.tokens,
        arguments.threads,
        arguments.output,
        arguments.cpu_output,
    )


if __name__ == "__main__":
    run_program(main)
