"""Write the weights of a normalised checkpoint as pytorch_model.bin (PyTorch's own format)."""

import argparse
from pathlib import Path

from snapbake.errors import run_program
from snapbake.torch_weights import write_torch_weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="folder written by prepare_checkpoint.py"
    )
    parser.add_argument("--output", type=Path, required=True, help="the .bin file to write")
    arguments = parser.parse_args()
    write_torch_weights(arguments.checkpoint, arguments.output)


if __name__ == "__main__":
    run_program(main)
