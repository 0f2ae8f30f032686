"""Write an ONNX graph as a DLC, which the QAIRT SDK's tools take for any chip."""

import argparse
from pathlib import Path

from snapbake.dlc import write_dlc
from snapbake.errors import run_program


def main() -> None:
    """Read the command line and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, required=True, help="ONNX graph, its weights in files beside it"
    )
    parser.add_argument(
        "--graph-name",
        required=True,
        help="the graph's name in the DLC, which is padded with underscores",
    )
    parser.add_argument("--output", type=Path, required=True, help="DLC to write")
    arguments = parser.parse_args()
    write_dlc(arguments.model, arguments.graph_name, arguments.output)


if __name__ == "__main__":
    run_program(main)
