"""Weights beside a graph: found, pointed to, mapped."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from snapbake.errors import SnapbakeError
from snapbake.external_data import ExternalWeights, Place, place_of, point_to
from snapbake.files import read_json


def test_a_tensor_of_the_graph_has_no_place() -> None:
    assert place_of(numpy_helper.from_array(np.zeros(3, np.float32), "x")) is None


def test_a_tensor_is_pointed_elsewhere_without_what_it_held() -> None:
    tensor = numpy_helper.from_array(np.ones(4, np.float32), "x")
    for place in (Place("a.data", 4096, 16), Place("b.data", 0, 16)):
        point_to(tensor, place.location, place.offset, place.length)
        assert place_of(tensor) == place
    assert not tensor.raw_data
    assert tensor.dims == [4]
    typed = helper.make_tensor("y", TensorProto.INT64, [2], [5, 6])
    point_to(typed, "a.data", 0, 16)
    assert not typed.int64_data


def test_a_place_may_begin_the_file_without_saying_so() -> None:
    tensor = TensorProto(name="x", data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "a.data"), ("length", "8")):
        tensor.external_data.add(key=key, value=value)
    assert place_of(tensor) == Place("a.data", 0, 8)


def test_weights_are_read_as_the_graph_has_them(contract: dict[str, Path]) -> None:
    folder = contract["qwen3"]
    model = onnx.load(folder / "prefill.onnx", load_external_data=False)
    weights = ExternalWeights(model, folder)
    index = read_json(folder / "weights.json")["tensors"]
    assert set(weights.names()) == index.keys()
    assert weights.total_bytes() == sum(place["length"] for place in index.values())
    loaded = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in onnx.load(folder / "prefill.onnx").graph.initializer
    }
    for name in weights.names():
        np.testing.assert_array_equal(weights[name], loaded[name], strict=True)
        assert not weights[name].flags.writeable


def test_a_missing_data_file_is_named(contract: dict[str, Path], tmp_path: Path) -> None:
    model = onnx.load(contract["llama"] / "decode.onnx", load_external_data=False)
    with pytest.raises(SnapbakeError, match=r"weights\.data, the weights of .* is missing"):
        ExternalWeights(model, tmp_path)
