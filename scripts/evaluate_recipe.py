"""Compare a recipe's graphs, run by onnxruntime on the CPU, with PyTorch fp32 on held-out text.

Writes the figures, and the part of the text that the HTP emulator will compute together with what
PyTorch and the CPU made of it.
"""

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
    parser.add_argument("--context", type=int, required=True, help="tokens, past and new")
    parser.add_argument(
        "--subset-records", type=int, required=True, help="texts that the emulator reads"
    )
    parser.add_argument(
        "--generate", type=int, required=True, help="tokens that the emulator answers with"
    )
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    parser.add_argument("--output", type=Path, required=True, help="JSON file with the figures")
    parser.add_argument("--subset", type=Path, required=True, help=".npz file for the emulator")
    arguments = parser.parse_args()
    evaluate_recipe(
        arguments.checkpoint,
        {"prefill": arguments.prefill, "decode": arguments.decode},
        arguments.encodings,
        arguments.held_out,
        arguments.tokens,
        arguments.context,
        arguments.subset_records,
        arguments.generate,
        arguments.threads,
        arguments.output,
        arguments.subset,
    )


if __name__ == "__main__":
    run_program(main)
