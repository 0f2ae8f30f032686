"""Calibrate the two contract graphs on the records and write them quantised (QDQ).

Weights are quantised per output channel, activations per tensor, both graphs with the same
encodings. The borders are native integers; encodings.json says what they mean.
"""

import argparse
from pathlib import Path

from snapbake.errors import run_program
from snapbake.families import read_spec
from snapbake.files import read_json
from snapbake.quantize import Precision, calibrate_and_quantize
from snapbake.token_records import read_token_records


def main() -> None:
    """Read the command line, calibrate and quantise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefill", type=Path, required=True, help="fp32 prefill graph")
    parser.add_argument("--decode", type=Path, required=True, help="fp32 decode graph")
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the model")
    parser.add_argument(
        "--calibration", type=Path, required=True, help="calibration.json of select_records.py"
    )
    parser.add_argument(
        "--tokens", type=int, required=True, help="new tokens a run of the prefill graph"
    )
    parser.add_argument("--context", type=int, required=True, help="tokens, past and new")
    parser.add_argument("--weight-bits", type=int, choices=[8], required=True)
    parser.add_argument("--activation-bits", type=int, choices=[16], required=True)
    parser.add_argument("--kv-bits", type=int, choices=[16], required=True)
    parser.add_argument(
        "--threads", type=int, default=2, help="CPU threads of the calibration (default: 2)"
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        required=True,
        help="folder for prefill.onnx, decode.onnx, weights.data and encodings.json",
    )
    arguments = parser.parse_args()
    _, records = read_token_records(arguments.calibration)
    calibrate_and_quantize(
        {"prefill": arguments.prefill, "decode": arguments.decode},
        read_spec(read_json(arguments.checkpoint / "config.json")),
        [record.ids for record in records],
        arguments.tokens,
        arguments.context,
        Precision(arguments.weight_bits, arguments.activation_bits, arguments.kv_bits),
        arguments.threads,
        arguments.output_dir,
    )


if __name__ == "__main__":
    run_program(main)
