"""Ranges cover every tensor, come from the text alone, and take no memory."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime import InferenceSession

from contract_graphs import (
    CHUNK,
    CONTEXT,
    calibration_ids,
    float_pair,
    graphs_of,
    make_contract,
    token_ids,
)
from snapbake.decoding import Decoder, Feeds
from snapbake.errors import SnapbakeError
from snapbake.files import read_json
from snapbake.ranges import DECODE_STEPS, MASK_VALUE, RangeObserver, Ranges, observe_ranges
from snapbake.torch_reference import TorchModel
from tiny_models import make_tiny_model


def observe(
    folder: Path, checkpoint: Path, records: Sequence[Sequence[int]], context: int = CONTEXT
) -> Ranges:
    pair = float_pair(checkpoint, context=context, mask=MASK_VALUE)
    return observe_ranges(graphs_of(folder), pair, records, threads=2)


def float_tensors(path: Path) -> set[str]:
    """Every float tensor that is no weight."""
    model = onnx.load(path, load_external_data=False)
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    return {v.name for v in values if v.type.tensor_type.elem_type == TensorProto.FLOAT}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_every_tensor_of_both_graphs_has_a_range(
    family: str, tiny_models: dict[str, Path], contract: dict[str, Path]
) -> None:
    ranges = observe(contract[family], tiny_models[family], calibration_ids())
    for graph in graphs_of(contract[family]).values():
        assert float_tensors(graph) == ranges.keys()
    for name, (low, high) in ranges.items():
        assert np.isfinite([low, high]).all()
        assert low < high, name


def recomputed(folder: Path, checkpoint: Path, ids: list[int]) -> Ranges:
    """The ranges of one record whose body fills whole chunks, by reading every tensor."""
    sessions = {}
    for graph, path in graphs_of(folder).items():
        model = onnx.load(path)
        names = sorted(float_tensors(path) - {value.name for value in model.graph.input})
        present = {value.name for value in model.graph.output}
        for name in names:
            if name not in present:
                value = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
                model.graph.output.append(value)
        session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        sessions[graph] = session, names
    ranges: Ranges = {}

    def run(graph: str, feeds: Feeds) -> dict[str, np.ndarray]:
        session, names = sessions[graph]
        outputs = dict(zip(names, session.run(names, feeds), strict=True))
        for name, value in {**feeds, **outputs}.items():
            low, high = ranges.get(name, (np.inf, -np.inf))
            # What a softmax reads counts down to 40 below the largest of the row.
            lowest = value.max(axis=-1).min() - 40 if name.endswith(".masked") else value.min()
            ranges[name] = min(low, float(lowest)), max(high, float(value.max()))
        return outputs

    decoder = Decoder(float_pair(checkpoint, mask=MASK_VALUE), run)
    list(decoder.prefill(ids[:-DECODE_STEPS]))
    for token in ids[-DECODE_STEPS:]:
        decoder.step("decode", [token])
    del ranges["input_ids"]
    return ranges


def test_ranges_are_those_of_the_tensors(
    tiny_models: dict[str, Path], contract: dict[str, Path]
) -> None:
    ids = token_ids(2 * CHUNK + DECODE_STEPS)
    found = observe(contract["qwen3"], tiny_models["qwen3"], [ids])
    expected = recomputed(contract["qwen3"], tiny_models["qwen3"], ids)
    assert found.keys() == expected.keys()
    for name, limits in expected.items():
        np.testing.assert_allclose(found[name], limits, rtol=1e-4, atol=1e-4, err_msg=name)


def embedding_of(folder: Path) -> np.memmap:
    """The embedding in the weight file, to change in place."""
    place = read_json(folder / "weights.json")["tensors"]["embed_tokens.weight"]
    shape = tuple(place["shape"])
    return np.memmap(folder / "weights.data", np.float32, "r+", place["offset"], shape)


@pytest.fixture
def own_graphs(tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint and a folder of its graphs, whose weights a test may spoil."""
    checkpoint = make_tiny_model(tmp_path / "checkpoint", "llama")
    make_contract(checkpoint, tmp_path / "htp")
    return checkpoint, tmp_path / "htp"


@pytest.mark.parametrize("length", [2, 3, 4, 5, 6, 7, 19, 20, 21, 30, 60, 61, 63, 64])
def test_nothing_but_the_text_widens_a_range(own_graphs: tuple[Path, Path], length: int) -> None:
    """A chunk that is not full is not filled with the padding token, which may be an outlier."""
    checkpoint, folder = own_graphs
    embedding = embedding_of(folder)
    embedding[0] *= 1000
    embedding.flush()
    ids = token_ids(length)
    ranges = observe(folder, checkpoint, [ids])
    rows = embedding[ids]
    assert ranges["embed_tokens"] == (float(rows.min()), float(rows.max()))


@pytest.mark.parametrize("context", [CONTEXT, 2 * CHUNK + 5, CHUNK + 1])
def test_a_text_is_observed_to_its_last_token(
    context: int, tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    """Every key and value that PyTorch computes is within the ranges, at every position."""
    checkpoint = tiny_models["qwen3"]
    make_contract(checkpoint, tmp_path, context=context)
    ids = token_ids(context)
    ranges = observe(tmp_path, checkpoint, [ids], context)
    for name, value in TorchModel(checkpoint, 2).read(ids).cache.items():
        low, high = ranges[f"{name}_out"]
        slack = 1e-4 * np.ptp(value)
        assert low <= value.min() + slack, name
        assert high >= value.max() - slack, name


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_a_text_shorter_than_the_decode_steps_is_observed(
    length: int, tiny_models: dict[str, Path], contract: dict[str, Path]
) -> None:
    ranges = observe(contract["llama"], tiny_models["llama"], [token_ids(length)])
    assert ranges.keys() == float_tensors(contract["llama"] / "prefill.onnx")


def test_more_records_only_widen(tiny_models: dict[str, Path], contract: dict[str, Path]) -> None:
    records = [token_ids(40, seed) for seed in range(3)]
    few = observe(contract["qwen2"], tiny_models["qwen2"], records[:1])
    many = observe(contract["qwen2"], tiny_models["qwen2"], records)
    for name, (low, high) in few.items():
        assert many[name][0] <= low
        assert many[name][1] >= high
    again = observe(contract["qwen2"], tiny_models["qwen2"], records[::-1])
    assert again.keys() == many.keys()
    for name, limits in again.items():
        assert limits == pytest.approx(many[name])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("position", [3, 38], ids=["prefill", "decode"])
def test_what_is_not_finite_is_refused(
    own_graphs: tuple[Path, Path], position: int, value: float
) -> None:
    checkpoint, folder = own_graphs
    ids = token_ids(40)
    embedding = embedding_of(folder)
    embedding[ids[position], 17] = value
    embedding.flush()
    with pytest.raises(SnapbakeError, match=r"the activation \S+ is not finite in fp32 on the cal"):
        observe(folder, checkpoint, [ids])


def test_no_record_is_refused(tiny_models: dict[str, Path], contract: dict[str, Path]) -> None:
    with pytest.raises(SnapbakeError, match="no calibration records"):
        observe(contract["llama"], tiny_models["llama"], [])


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_memory_does_not_grow_with_the_records(
    tiny_models: dict[str, Path], contract: dict[str, Path]
) -> None:
    pair = float_pair(tiny_models["llama"], mask=MASK_VALUE)
    observer = RangeObserver(graphs_of(contract["llama"]), threads=2)

    def read(count: int) -> None:
        for seed in range(count):
            list(Decoder(pair, observer.run).prefill(token_ids(CONTEXT - CHUNK, seed)))

    read(20)
    before = resident_bytes()
    read(100)  # whose activations would take 200 MB
    assert resident_bytes() - before < 20e6
    assert all(type(limit) is float for limits in observer.ranges.values() for limit in limits)


def test_a_text_longer_than_the_context_is_refused(
    tiny_models: dict[str, Path], contract: dict[str, Path]
) -> None:
    with pytest.raises(SnapbakeError, match=r"found 1 after 64; use a larger context"):
        observe(contract["llama"], tiny_models["llama"], [token_ids(CONTEXT + 1)])
