"""Compile the prefill and the decode graph into one QNN context binary with shared weights."""

import argparse
from pathlib import Path

from snapbake.errors import run_program
from snapbake.htp_target import add_target_arguments, target_of
from snapbake.weight_sharing import share_weights


def main() -> None:
    """Read the command line, compile and describe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefill", type=Path, required=True, help="ONNX graph of the prefill")
    parser.add_argument("--decode", type=Path, required=True, help="ONNX graph of the decoding")
    parser.add_argument(
        "--proven",
        type=Path,
        nargs=2,
        required=True,
        metavar=("PREFILL", "DECODE"),
        help="the binaries that compile_graph.py made of the same graphs",
    )
    parser.add_argument("--soc", required=True, help="the chip's name, for the manifest: sm8650")
    add_target_arguments(parser)
    parser.add_argument(
        "--made-from",
        type=Path,
        nargs="*",
        default=[],
        help="more files that shaped the graphs; the manifest gets their SHA-256",
    )
    parser.add_argument("--output", type=Path, required=True, help="context binary to write")
    parser.add_argument("--manifest", type=Path, required=True, help="JSON about it to write")
    arguments = parser.parse_args()
    share_weights(
        arguments.prefill,
        arguments.decode,
        arguments.proven,
        arguments.soc,
        target_of(arguments),
        arguments.made_from,
        arguments.output,
        arguments.manifest,
    )


if __name__ == "__main__":
    run_program(main)
