"""Write the weights of a checkpoint in the form of the HTP graphs: folded, rotated, fp32, one file.

The rotation changes no result: it spreads the few huge channels of the residual stream evenly, so
that 16 bits can hold them. scripts/snapbake/htp_weights.py has the details.
"""

import argparse
from pathlib import Path

from snapbake.errors import run_program
from snapbake.families import read_spec
from snapbake.files import read_json
from snapbake.htp_weights import write_htp_weights


def main() -> None:
    """Read the command line and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the model")
    parser.add_argument("--data", type=Path, required=True, help="file of all weights to write")
    parser.add_argument(
        "--index", type=Path, required=True, help="JSON file to write: where each weight is"
    )
    arguments = parser.parse_args()
    spec = read_spec(read_json(arguments.checkpoint / "config.json"))
    write_htp_weights(spec, arguments.checkpoint, arguments.data, arguments.index)


if __name__ == "__main__":
    run_program(main)
