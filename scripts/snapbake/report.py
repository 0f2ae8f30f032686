"""The report: every page and plot, made of the figures that a build wrote."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from snapbake.files import atomic_path
from snapbake.report_answers import answers_page
from snapbake.report_figures import read_figures
from snapbake.report_plots import accuracy_svg, cost_svg, size_svg
from snapbake.report_verdict import verdict_page


def draw_report(
    verdicts: Iterable[Path],
    contexts: Iterable[Path],
    evaluations: Iterable[Path],
    checks: Iterable[Path],
    summaries: Iterable[Path],
    benchmarks: Path,
    weight_bits: Mapping[str, int],
    chips: Mapping[str, str],
    output: Path,
) -> None:
    """Write verdict.html, answers.html, accuracy.svg, size.svg and cost.svg into `output`.

    The arguments are those of `report_figures.read_figures`. The same figures give the same bytes.
    """
    figures = read_figures(
        verdicts, contexts, evaluations, checks, summaries, benchmarks, weight_bits, chips
    )
    pages = {
        "verdict.html": verdict_page(figures),
        "accuracy.svg": accuracy_svg(figures),
        "answers.html": answers_page(figures),
        "size.svg": size_svg(figures),
        "cost.svg": cost_svg(figures),
    }
    for name, content in pages.items():
        with atomic_path(output / name) as temporary:
            temporary.write_text(content, encoding="utf-8")
