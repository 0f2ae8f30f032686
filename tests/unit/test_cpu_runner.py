"""The two graphs on the CPU, by name."""

from pathlib import Path

import numpy as np
import onnx
from onnxruntime import InferenceSession

from contract_graphs import float_pair, graphs_of, runner_of
from snapbake.decoding import Decoder


def test_outputs_come_by_name(tiny_models: dict[str, Path], contract: dict[str, Path]) -> None:
    runner = runner_of(contract["qwen2"])
    decoder = Decoder(float_pair(tiny_models["qwen2"]), runner.run)
    for graph, ids in (("prefill", [5, 6, 7]), ("decode", [8])):
        path = graphs_of(contract["qwen2"])[graph]
        feeds = decoder.feeds(graph, ids)
        found = runner.run(graph, feeds)
        model = onnx.load(path, load_external_data=False)
        names = [value.name for value in model.graph.output]
        assert list(found) == names
        expected = InferenceSession(path, providers=["CPUExecutionProvider"]).run(names, feeds)
        for name, value in zip(names, expected, strict=True):
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)


def test_quantised_outputs_are_codes(quantized: dict[str, Path]) -> None:
    session = runner_of(quantized["llama"])
    model = onnx.load(quantized["llama"] / "decode.onnx", load_external_data=False)
    feeds = {
        value.name: np.zeros(
            [dim.dim_value for dim in value.type.tensor_type.shape.dim],
            onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
        )
        for value in model.graph.input
    }
    assert {value.dtype for value in session.run("decode", feeds).values()} == {np.dtype("uint16")}
