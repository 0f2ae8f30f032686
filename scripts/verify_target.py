"""Measure what the binaries computed against PyTorch fp32 and the CPU, and judge it.

A missed limit is written into the verdict and is no failure here, so that a report can show it;
accept_target.py fails on it.
"""

import argparse
from pathlib import Path

from snapbake.errors import run_program
from snapbake.verdict import parse_limits, verify_target


def main() -> None:
    """Read the command line and verify."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="run.json of run_emulator.py")
    parser.add_argument("--outputs", type=Path, required=True, help="outputs.npz of the same run")
    parser.add_argument(
        "--evaluation", type=Path, required=True, help="evaluation.json of evaluate_recipe.py"
    )
    parser.add_argument(
        "--cpu-outputs", type=Path, required=True, help=".npz file of evaluate_recipe.py"
    )
    parser.add_argument(
        "--reference", type=Path, required=True, help=".npz file of compute_reference.py"
    )
    parser.add_argument("--genie", type=Path, required=True, help="genie.json of run_genie.py")
    parser.add_argument(
        "--limits", nargs="*", default=[], metavar="NAME=NUMBER", help="limits of the recipe"
    )
    parser.add_argument("--output", type=Path, required=True, help="JSON file of the verdict")
    arguments = parser.parse_args()
    verify_target(
        arguments.run,
        arguments.outputs,
        arguments.evaluation,
        arguments.cpu_outputs,
        arguments.reference,
        arguments.genie,
        parse_limits(arguments.limits),
        arguments.output,
    )


if __name__ == "__main__":
    run_program(main)
