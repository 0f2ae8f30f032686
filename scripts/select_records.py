"""Choose the records that calibrate a quantised model, and others to verify it with."""

import argparse
from pathlib import Path

from snapbake.calibration import write_selection
from snapbake.errors import run_program


def main() -> None:
    """Read the arguments and write calibration.json, heldout.json and manifest.json."""
    parser = argparse.ArgumentParser(
        description="Choose records out of fine-tuning data, render them with the model's own "
        "chat template and tokenise them: some to calibrate a quantised model with, and others, "
        "which calibration never sees, to verify it with."
    )
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="FILE",
        help="alpaca, sharegpt or OpenAI messages in .json or .jsonl, or a dataset_info.json",
    )
    parser.add_argument(
        "--dataset", metavar="NAME", help="the data set to take from a dataset_info.json"
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder with config.json, tokenizer.json and the chat template",
    )
    parser.add_argument(
        "--context",
        type=_positive,
        required=True,
        metavar="TOKENS",
        help="context length; longer records are cut off",
    )
    parser.add_argument(
        "--records",
        type=_positive,
        default=100,
        metavar="N",
        help="records for calibration (default: %(default)s)",
    )
    parser.add_argument(
        "--held-out",
        type=_positive,
        default=32,
        metavar="N",
        help="records for verification (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="the same seed chooses the same records (default: %(default)s)",
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        required=True,
        metavar="DIR",
        help="where calibration.json, heldout.json and manifest.json are written",
    )
    options = parser.parse_args()
    write_selection(
        options.data,
        options.dataset,
        options.checkpoint,
        options.context,
        options.records,
        options.held_out,
        options.seed,
        options.output_dir,
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


if __name__ == "__main__":
    run_program(main)
