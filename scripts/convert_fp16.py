"""Write the two contract graphs in fp16: weights, activations, KV cache and logits."""

import argparse
from pathlib import Path

from snapbake.errors import run_program
from snapbake.fp16 import convert_fp16


def main() -> None:
    """Read the command line and convert."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefill", type=Path, required=True, help="fp32 prefill graph")
    parser.add_argument("--decode", type=Path, required=True, help="fp32 decode graph")
    parser.add_argument(
        "--output-dir",
        type=Path,
        required=True,
        help="folder for prefill.onnx, decode.onnx, weights.data and encodings.json",
    )
    arguments = parser.parse_args()
    convert_fp16(arguments.prefill, arguments.decode, arguments.output_dir)


if __name__ == "__main__":
    run_program(main)
