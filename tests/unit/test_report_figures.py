"""Reading the figures of a build, and writing them for people."""

import math

import pytest

from built_figures import Built, checkpoint
from snapbake.errors import SnapbakeError
from snapbake.files import read_json
from snapbake.report_answers import split_at_difference
from snapbake.report_figures import RecipeKey, ideal_size, read_costs
from snapbake.report_plots import nines
from snapbake.report_words import MEASURES, cosine, duration, odds, perplexity, plural, size, small

KL, FIRST_CHOICE, PERPLEXITY, LOGITS = MEASURES
SPACE = "\N{NO-BREAK SPACE}"
COLUMNS = "s\th:m:s\tmax_rss\n"


def test_files_are_known_by_their_folders(tmp_path):
    built = Built(tmp_path, ["a", "b-0.6b"], contexts=[256, 512], socs=["sm8650", "sm8750"])
    figures = built.figures()
    assert len(figures.binaries) == 16
    key = RecipeKey("b-0.6b", 256, "w8a16")
    first, second = figures.binaries_of(key)
    assert (first.soc, second.soc) == ("sm8650", "sm8750")
    folder = tmp_path / "results" / "b-0.6b" / "c256" / "w8a16" / "sm8750"
    assert second.verdict == read_json(folder / "emulator" / "verify.json")
    assert second.manifest == read_json(folder / "context.json")
    assert figures.evaluations[key] == read_json(folder.parent / "evaluation.json")
    assert set(figures.checks) == {("a", 256), ("a", 512), ("b-0.6b", 256), ("b-0.6b", 512)}
    assert figures.title(key) == "b-0.6b, 256 tokens, w8a16"


def test_a_title_has_only_what_differs(tmp_path):
    figures = Built(tmp_path, ["a"]).figures()
    assert [figures.title(key) for key in figures.evaluations] == ["fp16", "w8a16"]


@pytest.mark.parametrize(
    ("argument", "missing"),
    [("contexts", "context.json"), ("verdicts", "verify.json"), ("chats", "genie.json")],
)
def test_half_a_binary_is_refused(tmp_path, argument, missing):
    built = Built(tmp_path, ["a"])
    del built.arguments[argument][1]
    with pytest.raises(SnapbakeError, match=f"{missing} of a, context 512, w8a16, sm8650 was not"):
        built.figures()


def test_a_file_from_elsewhere_is_refused(tmp_path):
    built = Built(tmp_path, ["a"])
    built.arguments["checks"] = [tmp_path / "onnx_check.json"]
    with pytest.raises(SnapbakeError, match="is not a folder of results/"):
        built.figures()


@pytest.mark.parametrize(
    ("tied", "bits", "total", "copy"),
    [
        # 10 million weights, 2 million of them the embedding in 16 bits.
        (True, 16, 20e6, 4e6),
        (True, 8, 8e6 + 4e6, 2e6),
        (False, 8, 8e6 + 4e6, 0),
        (False, 4, 4e6 + 4e6, 0),
    ],
)
def test_the_ideal_counts_every_weight_once(tied, bits, total, copy):
    ideal = ideal_size(checkpoint(tied), bits)
    assert ideal.total == total
    assert ideal.head_copy == copy


def test_only_this_build_counts_in_the_cost(tmp_path):
    def benchmark(place, seconds, peak="100.0"):
        path = tmp_path / f"{place}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{COLUMNS}{seconds}\t0:00:01\t{peak}\n")

    for place, seconds, peak in (
        ("compile_graph/m/c512/w8a16/sm8650/prefill", 3, "100.0"),
        ("compile_graph/m/c512/w8a16/sm8650/decode", 4, "300.0"),
        ("compile_graph/m/c512/w8a16/sm8750/decode", 5, "500.0"),  # another chip
        ("compile_graph/m/c256/w8a16/sm8650/decode", 5, "500.0"),  # another context
        ("compile_graph/other/c512/w8a16/sm8650/decode", 5, "500.0"),
        ("simplify_graph/m/c512/decode", 2, "NA"),
        ("prepare_checkpoint/m", 10, "-"),
        ("prepare_checkpoint/other", 99, "1.0"),
        ("gone/m/c512/fp16", 99, "1.0"),  # another recipe
        ("draw_report", 1, "1.0"),
    ):
        benchmark(place, seconds, peak)
    costs = read_costs(tmp_path, [(RecipeKey("m", 512, "w8a16"), "sm8650")])
    assert [(cost.rule, cost.jobs, cost.seconds, cost.peak) for cost in costs] == [
        ("prepare_checkpoint", 1, 10, None),
        ("compile_graph", 2, 7, 300 * 1024**2),
        ("simplify_graph", 1, 2, None),
    ]


@pytest.mark.parametrize(
    "text", ["s\th:m:s\n1\t0\n", f"{COLUMNS}1\t0:00:01\n", f"{COLUMNS}x\t0\t1\n"]
)
def test_a_broken_benchmark_is_named(tmp_path, text):
    path = tmp_path / "export_onnx" / "m.tsv"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(SnapbakeError, match=r"m\.tsv is not a benchmark of Snakemake"):
        read_costs(tmp_path, [(RecipeKey("m", 512, "w8a16"), "sm8650")])


@pytest.mark.parametrize(
    ("original", "text", "parts"),
    [
        ("The same.", "The same.", ("The same.", "", "")),
        ("The bowstring is", "The classic knot", ("The ", "classic", " knot")),
        # A token may be a part of a word; the word is marked.
        ("It works well", "It working well", ("It ", "working", " well")),
        ("One. Two", "One.\n\nTwo", ("One.", "\n\nTwo", "")),
        ("It ends here", "It ends", ("It ends", "", "")),
        ("It ends", "It ends not", ("It ends", " not", "")),
        ("今天天气很好。", "今天空气很好。", ("今天", "空", "气很好。")),
        ("안녕하세요", "안녕히", ("안녕", "히", "")),
        ("", "Yes", ("", "Yes", "")),
        ("Yes", "", ("", "", "")),
    ],
)
def test_the_first_other_word_is_found(original, text, parts):
    assert split_at_difference(original, text) == parts
    assert "".join(parts) == text


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (small(0.0079174), "0.00792"),
        (small(0.03), "0.0300"),
        (small(0), "0"),
        (small(1.32e-6), f"1.3{SPACE}×{SPACE}10⁻⁶"),
        (cosine(0.99999999), "0.999999"),
        (cosine(1.0), "1.000000"),
        (odds(0), f"1.00{SPACE}:{SPACE}1"),
        (odds(math.log(12)), f"12{SPACE}:{SPACE}1"),
        (odds(20), f"over 1000{SPACE}:{SPACE}1"),
        (duration(0.44), "0.4 s"),
        (duration(59.6), "1 min 00 s"),
        (duration(185), "3 min 05 s"),
        (duration(7380), "2 h 03 min"),
        (size(198_197_248), f"198.2{SPACE}MB"),
        (size(934_000), f"0.93{SPACE}MB"),
        (size(1_510_000_000), f"1.51{SPACE}GB"),
        (plural(1, "token"), "1 token"),
        (plural(5154, "token"), "5\N{THIN SPACE}154 tokens"),
        (FIRST_CHOICE.write(0.92999), f"92.99{SPACE}%"),
        (FIRST_CHOICE.write(0.93), f"93.00{SPACE}%"),
        (FIRST_CHOICE.write_limit(0.93), f"≥{SPACE}93{SPACE}%"),
        (PERPLEXITY.write(0.02516), f"+2.52{SPACE}%"),
        (PERPLEXITY.write(-0.0000001), f"+0.00{SPACE}%"),
        (PERPLEXITY.write(-0.0126), f"−1.26{SPACE}%"),
        (PERPLEXITY.write(4e59), f"over{SPACE}+1000{SPACE}%"),
        (PERPLEXITY.write_miss({"found": 4e59, "limit": 0.04}), "over 100 points above the limit"),
        (perplexity(24.4295), "24.43"),
        (perplexity(4.2e59), f"4.2{SPACE}×{SPACE}10⁵⁹"),
        (small(135.2), "135"),
        (PERPLEXITY.write_limit(0.04), f"≤{SPACE}+4{SPACE}%"),
        (KL.write_miss({"found": 0.042, "limit": 0.03}), "0.0120 above the limit"),
        (FIRST_CHOICE.write_miss({"found": 0.9, "limit": 0.93}), "3 points below the limit"),
        (LOGITS.write_miss({"found": 0.9995, "limit": 0.9999}), "0.000400 below the limit"),
    ],
)
def test_numbers_are_written_for_people(written, expected):
    assert written == expected


def test_nines_are_counted():
    assert nines(0.99) == pytest.approx(2)
    assert nines(0.9999) == pytest.approx(4)
    assert nines(1.0) == 7
    assert nines(0.0) == 0
