"""Compute the held-out subset with the compiled binaries on the HTP emulator.

The KV cache is handed from prefill chunks into decode steps as an application would; the emulator
takes seconds to half a minute a step. The first step of each graph is kept in qnn-net-run's layout.
"""

import argparse
from pathlib import Path

from snapbake.emulator_run import run_emulator
from snapbake.errors import run_program


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefill", type=Path, required=True, help="binary of the prefill graph")
    parser.add_argument("--decode", type=Path, required=True, help="binary of the decode graph")
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the model")
    parser.add_argument("--encodings", type=Path, required=True, help="the recipe's encodings.json")
    parser.add_argument(
        "--reference", type=Path, required=True, help=".npz file of compute_reference.py"
    )
    parser.add_argument(
        "--tokens", type=int, required=True, help="new tokens a run of the prefill graph"
    )
    parser.add_argument("--context", type=int, required=True, help="tokens, past and new")
    parser.add_argument(
        "--output-dir",
        type=Path,
        required=True,
        help="folder for run.json, outputs.npz, prefill/ and decode/",
    )
    arguments = parser.parse_args()
    run_emulator(
        {"prefill": arguments.prefill, "decode": arguments.decode},
        arguments.checkpoint,
        arguments.encodings,
        arguments.reference,
        arguments.tokens,
        arguments.context,
        arguments.output_dir,
    )


if __name__ == "__main__":
    run_program(main)
