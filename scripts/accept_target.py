"""Fail when a verdict of verify_target.py misses a limit or Genie differs from the CPU.

The message has the figures.
"""

import argparse
from pathlib import Path

from snapbake.errors import run_program
from snapbake.verdict import accept_target


def main() -> None:
    """Read the command line and accept or fail."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verdict", type=Path, required=True, help="verify.json")
    parser.add_argument("--output", type=Path, required=True, help="text file: the limits kept")
    arguments = parser.parse_args()
    accept_target(arguments.verdict, arguments.output)


if __name__ == "__main__":
    run_program(main)
