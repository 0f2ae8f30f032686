"""Reading texts of any length with real graphs, and the cache that stays."""

from pathlib import Path

import numpy as np
import pytest

from contract_graphs import CONTEXT, float_pair, runner_of, token_ids
from snapbake.decoding import Feeds
from snapbake.errors import SnapbakeError
from snapbake.reading import decoded_cache, read_text, stacked_cache
from snapbake.subset import DECODE_STEPS
from snapbake.torch_reference import TorchModel


@pytest.mark.parametrize("length", [1, 2, DECODE_STEPS, DECODE_STEPS + 1, 20, 21, 36, 63, CONTEXT])
def test_a_text_is_read_to_its_end(
    length: int, tiny_models: dict[str, Path], contract: dict[str, Path]
) -> None:
    steps: list[str] = []
    runner, pair = runner_of(contract["llama"]), float_pair(tiny_models["llama"])

    def run(graph: str, feeds: Feeds) -> dict[str, np.ndarray]:
        steps.append(graph)
        return runner.run(graph, feeds)

    ids = token_ids(length)
    expected = TorchModel(tiny_models["llama"], 2).read(ids)
    logits, decoder = read_text(pair, run, ids)
    assert logits.shape == (length, 512)
    assert logits.dtype == np.float32
    assert np.abs(logits - expected.logits).max() < 1e-4 * np.ptp(expected.logits)
    prefilled = max(0, length - DECODE_STEPS)
    assert steps == ["prefill"] * -(-prefilled // 16) + ["decode"] * (length - prefilled)
    cache = decoded_cache(pair, decoder)
    for name, value in expected.cache.items():
        assert cache[name].shape == value.shape
        assert np.abs(cache[name] - value).max() < 1e-4 * np.ptp(value), name


def test_a_stacked_cache_has_layers_first(
    tiny_models: dict[str, Path], contract: dict[str, Path]
) -> None:
    pair = float_pair(tiny_models["qwen2"])
    _, decoder = read_text(pair, runner_of(contract["qwen2"]).run, token_ids(20))
    cache = decoded_cache(pair, decoder)
    stacked = stacked_cache(cache)
    assert stacked.shape == (2, 2, 1, 20, 64)
    for layer in range(2):
        np.testing.assert_array_equal(stacked[layer, 0], cache[f"past_key_{layer}"])
        np.testing.assert_array_equal(stacked[layer, 1], cache[f"past_value_{layer}"])


@pytest.mark.parametrize("position", [17, 40], ids=["prefill", "decode"])
def test_logits_that_are_not_finite_are_refused(
    position: int, tiny_models: dict[str, Path], contract: dict[str, Path]
) -> None:
    """As when fp16 overflows on the way."""
    runner = runner_of(contract["llama"])
    ids = token_ids(41)

    def run(name: str, feeds: Feeds) -> dict[str, np.ndarray]:
        outputs = runner.run(name, feeds)
        hit = np.flatnonzero(feeds["input_ids"][0] == ids[position])
        outputs["logits"][0, hit, 7] = np.inf
        return outputs

    with pytest.raises(
        SnapbakeError, match=rf"logits at position {position} of a text are not fin"
    ):
        read_text(float_pair(tiny_models["llama"]), run, ids)
