"""The report: every page and plot, made of the figures that a build wrote."""

from collections.abc import Mapping
from pathlib import Path

from snapbake.files import atomic_path
from snapbake.report_answers import answers_page
from snapbake.report_figures import FigureFiles, read_figures
from snapbake.report_genie import genie_page
from snapbake.report_plots import accuracy_svg, cost_svg, size_svg
from snapbake.report_verdict import verdict_page


def draw_report(
    files: FigureFiles, weight_bits: Mapping[str, int], chips: Mapping[str, str], output: Path
) -> None:
    """Write the pages and plots into `output`; `weight_bits` and `chips` are those of `Figures`.

    The same figures give the same bytes.
    """
    figures = read_figures(files, weight_bits, chips)
    pages = {
        "verdict.html": verdict_page(figures),
        "accuracy.svg": accuracy_svg(figures),
        "answers.html": answers_page(figures),
        "genie.html": genie_page(figures),
        "size.svg": size_svg(figures),
        "cost.svg": cost_svg(figures),
    }
    for name, content in pages.items():
        with atomic_path(output / name) as temporary:
            temporary.write_text(content, encoding="utf-8")
