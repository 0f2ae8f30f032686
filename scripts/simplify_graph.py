"""Simplify a graph with fixed shapes by onnxsim, without loading its weights."""

import argparse
from pathlib import Path

from snapbake.errors import run_program
from snapbake.simplify import simplify_graph


def main() -> None:
    """Read the command line and simplify."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="graph of freeze_shapes.py")
    parser.add_argument(
        "--output", type=Path, required=True, help="graph to write, in the folder of --model"
    )
    arguments = parser.parse_args()
    simplify_graph(arguments.model, arguments.output)


if __name__ == "__main__":
    run_program(main)
