"""Check every ONNX graph on the way: onnx.checker, and the numbers against PyTorch in fp32.

Prompts are taken from the calibration records and read in prefill chunks and then token by token,
the KV cache handed on. The program fails when a graph differs by more than 1/1000 of the range.
"""

import argparse
from pathlib import Path

from snapbake.errors import run_program
from snapbake.onnx_check import Stage, check_graphs


def main() -> None:
    """Read the command line and check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the model")
    parser.add_argument(
        "--records", type=Path, required=True, help="calibration.json of select_records.py"
    )
    parser.add_argument("--exported", type=Path, required=True, help="Optimum's model.onnx")
    for stage in ("static", "simplified", "adapted"):
        parser.add_argument(
            f"--{stage}",
            type=Path,
            nargs=2,
            metavar=("PREFILL", "DECODE"),
            required=True,
            help=f"the two {stage} graphs",
        )
    parser.add_argument(
        "--tokens", type=int, required=True, help="new tokens a run of the prefill graphs"
    )
    parser.add_argument("--context", type=int, required=True, help="tokens, past and new")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    parser.add_argument("--output", type=Path, required=True, help="JSON file with the figures")
    arguments = parser.parse_args()
    check_graphs(
        arguments.checkpoint,
        arguments.records,
        [
            Stage("exported", arguments.exported, arguments.exported),
            Stage("static", *arguments.static),
            Stage("simplified", *arguments.simplified),
            Stage("adapted", *arguments.adapted),
        ],
        arguments.tokens,
        arguments.context,
        arguments.threads,
        arguments.output,
    )


if __name__ == "__main__":
    run_program(main)
