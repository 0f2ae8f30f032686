"""Choose the held-out text that is looked at closely and let PyTorch fp32 read and answer it.

The HTP emulator, which is slow, computes only this text; the report shows its answers.
"""

import argparse
from pathlib import Path

from snapbake.errors import run_program
from snapbake.reference import compute_reference


def main() -> None:
    """Read the command line and compute."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the model")
    parser.add_argument(
        "--held-out", type=Path, required=True, help="heldout.json of select_records.py"
    )
    parser.add_argument(
        "--tokens", type=int, required=True, help="new tokens a run of the prefill graph"
    )
    parser.add_argument("--readings", type=int, required=True, help="texts that the emulator reads")
    parser.add_argument(
        "--generate", type=int, required=True, help="tokens that the emulator answers with"
    )
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    parser.add_argument("--output", type=Path, required=True, help=".npz file to write")
    arguments = parser.parse_args()
    compute_reference(
        arguments.checkpoint,
        arguments.held_out,
        arguments.tokens,
        arguments.readings,
        arguments.generate,
        arguments.threads,
        arguments.output,
    )


if __name__ == "__main__":
    run_program(main)
