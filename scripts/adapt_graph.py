"""Write the decoder graph that Qualcomm's HTP and its LLM runtime take, for one chunk length.

The graph refers to the weights that write_htp_weights.py wrote and lies beside them.
"""

import argparse
from pathlib import Path

from snapbake.errors import run_program
from snapbake.families import read_spec
from snapbake.files import read_json
from snapbake.htp_graph import write_decoder


def main() -> None:
    """Read the command line and write the graph."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the model")
    parser.add_argument(
        "--index", type=Path, required=True, help="JSON file of write_htp_weights.py"
    )
    parser.add_argument("--tokens", type=int, required=True, help="new tokens a run")
    parser.add_argument("--context", type=int, required=True, help="tokens, past and new")
    parser.add_argument("--output", type=Path, required=True, help="ONNX file to write")
    arguments = parser.parse_args()
    spec = read_spec(read_json(arguments.checkpoint / "config.json"))
    write_decoder(spec, arguments.tokens, arguments.context, arguments.index, arguments.output)


if __name__ == "__main__":
    run_program(main)
