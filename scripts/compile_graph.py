"""Compile an ONNX graph into a QNN context binary for a chip's HTP."""

import argparse
from pathlib import Path

from snapbake.context_binary import compile_graph
from snapbake.errors import run_program
from snapbake.htp_target import add_target_arguments, target_of


def main() -> None:
    """Read the command line and compile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, required=True, help="ONNX graph, its weights in files beside it"
    )
    parser.add_argument(
        "--graph-name",
        required=True,
        help="the graph's name in the binary, which is padded with underscores",
    )
    add_target_arguments(parser)
    parser.add_argument("--output", type=Path, required=True, help="context binary to write")
    arguments = parser.parse_args()
    compile_graph(arguments.model, arguments.graph_name, target_of(arguments), arguments.output)


if __name__ == "__main__":
    run_program(main)
