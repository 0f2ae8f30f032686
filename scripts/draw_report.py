"""Draw the pages and plots of the report from the figures that a build wrote.

The files must lie where the workflow puts them, results/<model>/c<context>/<recipe>/<chip>/, as
these folders say what a file is about.
"""

import argparse
from pathlib import Path

from snapbake.errors import SnapbakeError, run_program
from snapbake.report import draw_report
from snapbake.report_figures import FigureFiles


def _named(word: str) -> tuple[str, str]:
    """Split NAME=VALUE."""
    name, _, value = word.partition("=")
    if not name or not value:
        raise argparse.ArgumentTypeError(f"{word!r} is not NAME=VALUE")
    return name, value


def main() -> None:
    """Read the command line and draw."""
    parser = argparse.ArgumentParser(description=__doc__)

    def add_files(option: str, text: str) -> None:
        parser.add_argument(option, type=Path, nargs="+", required=True, help=text)

    add_files("--verdicts", "verify.json of every binary")
    add_files("--chats", "genie.json of every binary")
    add_files("--contexts", "context.json of every binary")
    add_files("--evaluations", "evaluation.json of every recipe")
    add_files("--checks", "onnx_check.json of every model and context")
    add_files("--summaries", "checkpoint.json of every model")
    parser.add_argument(
        "--weight-bits",
        type=_named,
        nargs="+",
        required=True,
        metavar="RECIPE=BITS",
        help="bits of a weight in every recipe",
    )
    parser.add_argument(
        "--chips",
        type=_named,
        nargs="+",
        default=[],
        metavar="CHIP=NAME",
        help="the chips' names as people know them (default: as in the paths)",
    )
    parser.add_argument(
        "--benchmarks", type=Path, required=True, help="folder of Snakemake's benchmarks"
    )
    parser.add_argument("--output-dir", type=Path, required=True, help="folder of the figures")
    arguments = parser.parse_args()
    try:
        weight_bits = {name: int(bits) for name, bits in arguments.weight_bits}
    except ValueError as error:
        raise SnapbakeError(f"--weight-bits must give whole numbers of bits: {error}") from error
    draw_report(
        FigureFiles(
            verdicts=arguments.verdicts,
            chats=arguments.chats,
            contexts=arguments.contexts,
            evaluations=arguments.evaluations,
            checks=arguments.checks,
            summaries=arguments.summaries,
            benchmarks=arguments.benchmarks,
        ),
        weight_bits,
        dict(arguments.chips),
        arguments.output_dir,
    )


if __name__ == "__main__":
    run_program(main)
