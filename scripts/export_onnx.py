"""Export a checkpoint to ONNX with Optimum: one graph, dynamic shapes, a KV cache in and out."""

import argparse
from pathlib import Path

from snapbake.errors import run_program
from snapbake.export import export_checkpoint


def main() -> None:
    """Read the command line and export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="folder with config.json, model.safetensors"
    )
    parser.add_argument("--opset", type=int, default=18, help="ONNX opset, 17 to 20 (default: 18)")
    parser.add_argument(
        "--output-dir",
        type=Path,
        required=True,
        help="folder for model.onnx and model.onnx_data; other files in it are left alone",
    )
    arguments = parser.parse_args()
    export_checkpoint(arguments.checkpoint, arguments.opset, arguments.output_dir)


if __name__ == "__main__":
    run_program(main)
