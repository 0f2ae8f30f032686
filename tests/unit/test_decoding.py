"""A decoder over the real graphs: in whatever steps a text is read, it says the same."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract_graphs import CHUNK, CONTEXT, float_pair, runner_of, token_ids
from snapbake.cpu_runner import CpuRunner
from snapbake.decoding import Border, Decoder, Feeds, GraphPair, border_names, read_pair
from snapbake.errors import SnapbakeError
from snapbake.families import read_spec
from snapbake.files import read_json
from snapbake.rope import rope_tables
from snapbake.torch_reference import Reference, TorchModel

CODES = Border(np.dtype(np.uint16), 0.25, 1000)


@settings(deadline=None)
@given(
    st.floats(2**-20, 128, width=32),
    st.integers(0, 65535),
    st.lists(st.integers(0, 65535), min_size=1, max_size=20),
)
def test_codes_survive_the_way_to_real_numbers(
    scale: float, zero_point: int, codes: list[int]
) -> None:
    border = Border(np.dtype(np.uint16), scale, zero_point)
    stored = np.array(codes, np.uint16)
    real = border.decode(stored)
    assert real.dtype == np.float32
    np.testing.assert_allclose(real, (np.array(codes) - zero_point) * scale, rtol=1e-6)
    np.testing.assert_array_equal(border.encode(real), stored, strict=True)


def test_the_nearest_code_is_taken() -> None:
    real = np.array([0.0, 0.12, 0.13, -0.13, 15.0], np.float32)
    np.testing.assert_array_equal(CODES.encode(real), [1000, 1000, 1001, 999, 1060])


def test_what_lies_outside_saturates() -> None:
    real = np.array([-1e30, -251.0, -250.0, 16133.75, 16134.0, 1e30], np.float32)
    codes = CODES.encode(real)
    assert codes.dtype == np.uint16
    assert codes.tolist() == [0, 0, 0, 65535, 65535, 65535]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_float_border_keeps_its_numbers(dtype: type) -> None:
    border = Border.of({"dtype": np.dtype(dtype).name})
    real = np.array([-1000.0, 0.5, 3.0], np.float32)
    assert border.encode(real).dtype == dtype
    np.testing.assert_array_equal(border.decode(border.encode(real)), real, strict=True)


def test_a_border_is_read_from_its_entry() -> None:
    entry = {"dtype": "uint16", "scale": 0.25, "zero_point": 1000}
    assert Border.of(entry) == CODES
    assert Border.of({"dtype": "int32"}) == Border(np.dtype(np.int32))


@pytest.fixture(scope="module")
def checkpoint(tiny_models: dict[str, Path]) -> Path:
    return tiny_models["qwen3"]


@pytest.fixture(scope="module")
def runner(contract: dict[str, Path]) -> CpuRunner:
    return runner_of(contract["qwen3"])


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return token_ids(CONTEXT, seed=5)


@pytest.fixture(scope="module")
def reference(checkpoint: Path, ids: list[int]) -> Reference:
    return TorchModel(checkpoint, 2).read(ids)


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.abs(found - expected).max() < 1e-4 * np.ptp(expected))


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 48, 49, 63, 64])
def test_a_text_of_any_length_is_read(
    length: int, checkpoint: Path, runner: CpuRunner, ids: list[int], reference: Reference
) -> None:
    decoder = Decoder(float_pair(checkpoint), runner.run)
    chunks = list(decoder.prefill(ids[:length]))
    assert [len(chunk) for chunk in chunks] == [
        min(CHUNK, length - start) for start in range(0, length, CHUNK)
    ]
    assert decoder.length == length
    assert close(np.concatenate(chunks), reference.logits[:length])


@pytest.mark.parametrize("splits", [[3, 20, 40], [16, 17, 18], [5, 5, 64], [1] * 64])
def test_steps_of_any_size_agree(
    splits: list[int],
    checkpoint: Path,
    runner: CpuRunner,
    ids: list[int],
    reference: Reference,
) -> None:
    """A chat goes on with the cache that it has: every split is a prompt of its own."""
    decoder = Decoder(float_pair(checkpoint), runner.run)
    logits = []
    for size in splits:
        part = ids[decoder.length : decoder.length + size]
        logits += list(decoder.prefill(part)) if len(part) > 1 else [decoder.step("decode", part)]
    assert close(np.concatenate(logits), reference.logits[: decoder.length])


def test_a_step_agrees_with_reading_all_again(
    checkpoint: Path, runner: CpuRunner, ids: list[int]
) -> None:
    pair = float_pair(checkpoint)
    decoder = Decoder(pair, runner.run)
    list(decoder.prefill(ids[:20]))
    for position in range(20, 30):
        stepped = decoder.step("decode", [ids[position]])
        *_, again = Decoder(pair, runner.run).prefill(ids[: position + 1])
        assert close(stepped[0], again[-1])


def test_the_inputs_of_a_step(checkpoint: Path, runner: CpuRunner, ids: list[int]) -> None:
    pair = float_pair(checkpoint, mask=-7.0)
    decoder = Decoder(pair, runner.run)
    list(decoder.prefill(ids[:18]))
    feeds = decoder.feeds("prefill", ids[18:23])
    assert feeds["input_ids"].dtype == np.int32
    assert feeds["input_ids"].tolist() == [[*ids[18:23], *[0] * 11]]
    mask = feeds["attention_mask"][0, 0]
    past = CONTEXT - CHUNK
    for row in range(CHUNK):
        seen = {*range(18), *range(past, past + row + 1)}
        assert {int(column) for column in np.flatnonzero(mask[row] == 0)} == seen
    assert set(np.unique(mask)) == {-7.0, 0.0}
    tables = rope_tables(pair.spec.rope, pair.spec.head_dim, np.arange(18, 34))
    for name, table in zip(("position_ids_cos", "position_ids_sin"), tables, strict=True):
        np.testing.assert_array_equal(feeds[name][0, 0], table)
    assert np.all(feeds["past_key_0_in"][..., 18:] == 0)
    assert np.all(np.any(feeds["past_key_0_in"][..., :18] != 0, axis=(0, 1, 2)))
    assert all(value.flags.c_contiguous for value in feeds.values())


def test_an_unused_cache_holds_zeros_in_stored_form(
    checkpoint: Path, quantized: dict[str, Path]
) -> None:
    spec = read_spec(read_json(checkpoint / "config.json"))
    pair = read_pair(spec, CHUNK, CONTEXT, quantized["qwen3"] / "encodings.json")
    feeds = Decoder(pair, runner_of(quantized["qwen3"]).run).feeds("decode", [5])
    assert set(feeds) == {
        "input_ids",
        *(name for name in border_names(spec.layers) if not name.endswith(("_out", "logits"))),
    }
    for name, value in feeds.items():
        if name != "input_ids":
            assert value.dtype == np.uint16
        if "past" in name:
            assert np.all(pair.borders[name].decode(value) == 0)


@pytest.mark.parametrize(
    ("length", "graph", "count", "message"),
    [
        (
            49,
            "prefill",
            3,
            r"prefill graph takes 1 to 16 tokens after at most 48, found 3 after 49",
        ),
        (64, "decode", 1, r"decode graph takes 1 to 1 tokens after at most 63, found 1 after 64; "),
        (0, "prefill", 17, r"takes 1 to 16 tokens .* found 17"),
        (0, "decode", 2, r"takes 1 to 1 tokens .* found 2"),
        (0, "prefill", 0, r"takes 1 to 16 tokens .* found 0"),
    ],
)
def test_a_step_beyond_the_context_is_refused(
    length: int,
    graph: str,
    count: int,
    message: str,
    checkpoint: Path,
    runner: CpuRunner,
    ids: list[int],
) -> None:
    decoder = Decoder(float_pair(checkpoint), runner.run)
    list(decoder.prefill(ids[:length]))
    with pytest.raises(SnapbakeError, match=message):
        decoder.step(graph, [5] * count)
    assert decoder.length == length


def test_a_text_longer_than_the_context_is_refused(checkpoint: Path, runner: CpuRunner) -> None:
    decoder = Decoder(float_pair(checkpoint), runner.run)
    with pytest.raises(SnapbakeError, match=r"found 1 after 64; use a larger context"):
        list(decoder.prefill(token_ids(CONTEXT + 1)))


def test_an_answer_is_that_of_transformers(
    checkpoint: Path, runner: CpuRunner, ids: list[int]
) -> None:
    expected, _ = TorchModel(checkpoint, 2).generate(ids[:20], 24, ())
    decoder = Decoder(float_pair(checkpoint), runner.run)
    assert decoder.generate(ids[:20], 24, ()) == expected
    assert decoder.length == 20 + 23  # the last token is not read


def test_an_answer_ends_with_a_stop_token(
    checkpoint: Path, runner: CpuRunner, ids: list[int]
) -> None:
    pair = float_pair(checkpoint)
    free = Decoder(pair, runner.run).generate(ids[:20], 24, ())
    stop = free[7]
    end = free.index(stop) + 1
    assert Decoder(pair, runner.run).generate(ids[:20], 24, {stop}) == free[:end]
    assert TorchModel(checkpoint, 2).generate(ids[:20], 24, {stop})[0] == free[:end]


@pytest.mark.parametrize(("length", "count"), [(60, 4), (63, 1), (64, 0)])
def test_an_answer_ends_with_the_context(
    length: int, count: int, checkpoint: Path, runner: CpuRunner, ids: list[int]
) -> None:
    decoder = Decoder(float_pair(checkpoint), runner.run)
    assert len(decoder.generate(ids[:length], 10, ())) == count


def test_padding_has_no_influence(checkpoint: Path, runner: CpuRunner, ids: list[int]) -> None:
    """What a partial chunk is filled up with does not reach the real rows."""
    pair: GraphPair = float_pair(checkpoint)

    def filled(graph: str, feeds: Feeds) -> dict[str, np.ndarray]:
        feeds["input_ids"][0, 5:] = 400
        return runner.run(graph, feeds)

    plain, other = Decoder(pair, runner.run), Decoder(pair, filled)
    np.testing.assert_array_equal(plain.step("prefill", ids[:5]), other.step("prefill", ids[:5]))
    for name, value in plain.cache.items():
        np.testing.assert_array_equal(value, other.cache[name])
