"""The chip that a graph is compiled for, and how a program is told it."""

import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class HtpTarget:
    """What the HTP compiler has to know of a chip.

    `soc_model` is QNN's number for it, `arch` the version of its Hexagon processor (75 is v75).
    A graph plans with `vtcm_mb` MiB of fast memory and has at most `graph_limit_mb` MiB, or any
    size when that is None.
    """

    soc_model: int
    arch: int
    vtcm_mb: int
    graph_limit_mb: int | None = None

    def __str__(self) -> str:
        return f"soc_model {self.soc_model} (v{self.arch})"


def add_target_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that `target_of` reads."""
    parser.add_argument(
        "--soc-model", type=int, required=True, help="QNN's number for the chip: 57 is SM8650"
    )
    parser.add_argument(
        "--arch", type=int, required=True, help="version of its Hexagon processor: 75 is v75"
    )
    parser.add_argument(
        "--vtcm-mb", type=int, required=True, help="MiB of fast memory that a graph plans with"
    )
    parser.add_argument(
        "--graph-limit-mb", type=int, help="MiB of weights that a graph may have (default: any)"
    )


def target_of(arguments: argparse.Namespace) -> HtpTarget:
    """Return the target that a command line names."""
    return HtpTarget(
        arguments.soc_model, arguments.arch, arguments.vtcm_mb, arguments.graph_limit_mb
    )
