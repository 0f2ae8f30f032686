"""Let libGenie, the phone's runtime, answer chat prompts with the binaries on the HTP emulator.

Tokens are compared with onnxruntime on the CPU over the same graphs and with the float model. What
differs is written down and is no failure here; verify_target.py judges it.
"""

import argparse
from pathlib import Path

from snapbake.errors import run_program
from snapbake.genie_gate import run_genie


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--binaries",
        type=Path,
        nargs=2,
        required=True,
        metavar=("PREFILL", "DECODE"),
        help="binaries of one graph each",
    )
    parser.add_argument(
        "--graphs",
        type=Path,
        nargs=2,
        required=True,
        metavar=("PREFILL", "DECODE"),
        help="the ONNX graphs that they were compiled from",
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the model")
    parser.add_argument("--encodings", type=Path, required=True, help="the recipe's encodings.json")
    parser.add_argument(
        "--template", type=Path, required=True, help="prompt template of prepare_chat.py"
    )
    parser.add_argument("--prompts", type=Path, required=True, help="prompts of prepare_chat.py")
    parser.add_argument(
        "--tokens", type=int, required=True, help="new tokens a run of the prefill graph"
    )
    parser.add_argument("--context", type=int, required=True, help="tokens, past and new")
    parser.add_argument(
        "--soc-model", type=int, required=True, help="QNN's number for the chip: 57 is SM8650"
    )
    parser.add_argument(
        "--arch", type=int, required=True, help="version of its Hexagon processor: 75 is v75"
    )
    parser.add_argument("--count", type=int, required=True, help="most tokens of an answer")
    parser.add_argument("--threads", type=int, default=1, help="processor cores to use")
    parser.add_argument("--output", type=Path, required=True, help="JSON file of the result")
    arguments = parser.parse_args()
    run_genie(
        dict(zip(("prefill", "decode"), arguments.binaries, strict=True)),
        dict(zip(("prefill", "decode"), arguments.graphs, strict=True)),
        arguments.checkpoint,
        arguments.encodings,
        arguments.template,
        arguments.prompts,
        arguments.tokens,
        arguments.context,
        arguments.soc_model,
        arguments.arch,
        arguments.count,
        arguments.threads,
        arguments.output,
    )


if __name__ == "__main__":
    run_program(main)
