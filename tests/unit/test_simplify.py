"""Simplified graphs are static, small, and refer to the weights where they were."""

import shutil
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from snapbake.errors import SnapbakeError
from snapbake.onnx_files import external_tensors, shape_of
from snapbake.simplify import make_skeleton, require_static, simplify_graph


@pytest.fixture
def frozen(tiny_onnx: dict[str, Path], tmp_path: Path) -> Path:
    """A private copy of one frozen graph and its weights."""
    for name in ("c64.static.prefill.onnx", "model.onnx_data"):
        shutil.copy(tiny_onnx["qwen3"] / name, tmp_path)
    return tmp_path / "c64.static.prefill.onnx"


def load(path: Path) -> onnx.ModelProto:
    return onnx.load(path, load_external_data=False)


@pytest.mark.parametrize("graph", ["prefill", "decode"])
def test_the_result_is_static_and_small(tiny_graphs: Path, graph: str) -> None:
    before = load(tiny_graphs / f"c64.static.{graph}.onnx")
    after = load(tiny_graphs / f"c64.simplified.{graph}.onnx")
    left = {node.op_type for node in after.graph.node}
    assert not left & {"Shape", "Range", "ConstantOfShape", "If", "Loop"}
    assert len(after.graph.node) < len(before.graph.node) / 2
    assert after.ByteSize() < before.ByteSize()
    shapes = {value.name: shape_of(value) for value in after.graph.value_info}
    made = {name for node in after.graph.node for name in node.output}
    assert made <= shapes.keys() | {value.name for value in after.graph.output}
    assert all(isinstance(size, int) for shape in shapes.values() for size in shape)


@pytest.mark.parametrize("graph", ["prefill", "decode"])
def test_borders_and_weights_are_the_same(tiny_graphs: Path, graph: str) -> None:
    before = load(tiny_graphs / f"c64.static.{graph}.onnx")
    after = load(tiny_graphs / f"c64.simplified.{graph}.onnx")
    assert list(after.graph.input) == list(before.graph.input)
    assert list(after.graph.output) == list(before.graph.output)
    old = {tensor.name: place for tensor, place in external_tensors(before) if tensor.name}
    new = {tensor.name: place for tensor, place in external_tensors(after)}
    assert new.items() <= old.items()
    assert len(new) == len(before.graph.initializer)


def test_remarks_are_gone(tiny_graphs: Path) -> None:
    model = load(tiny_graphs / "c64.simplified.prefill.onnx")
    assert not model.metadata_props
    assert not any(node.metadata_props or node.doc_string for node in model.graph.node)


def test_two_runs_give_the_same_bytes(frozen: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        simplify_graph(frozen, frozen.with_name(name))
    assert frozen.with_name("a.onnx").read_bytes() == frozen.with_name("b.onnx").read_bytes()


def test_the_skeleton_holds_no_weight(frozen: Path) -> None:
    skeleton = make_skeleton(load(frozen), frozen.parent)
    assert list(external_tensors(skeleton)) == []
    assert skeleton.ByteSize() < 200_000
    assert "model.embed_tokens.weight" in {value.name for value in skeleton.graph.input}


def test_data_cut_short_is_refused(frozen: Path) -> None:
    data = frozen.with_name("model.onnx_data")
    data.write_bytes(data.read_bytes()[:-200])
    with pytest.raises(SnapbakeError, match="cut short"):
        simplify_graph(frozen, frozen.with_name("out.onnx"))
    assert not frozen.with_name("out.onnx").exists()


def test_a_dynamic_graph_is_refused(tiny_onnx: dict[str, Path], tmp_path: Path) -> None:
    for name in ("model.onnx", "model.onnx_data"):
        shutil.copy(tiny_onnx["llama"] / name, tmp_path)
    with pytest.raises(SnapbakeError, match=r"input_ids .*run freeze_shapes\.py first"):
        simplify_graph(tmp_path / "model.onnx", tmp_path / "out.onnx")


def test_a_mask_that_does_not_fit_is_refused(frozen: Path) -> None:
    """onnxsim takes such a graph and says that all is well."""
    model = load(frozen)
    mask = next(value for value in model.graph.input if value.name == "attention_mask")
    mask.type.tensor_type.shape.dim[1].dim_value = 60
    onnx.save(model, frozen)
    with pytest.raises(SnapbakeError, match=r"past_key_values\.0\.key is float32"):
        simplify_graph(frozen, frozen.with_name("out.onnx"))
    assert sorted(path.name for path in frozen.parent.iterdir()) == [
        "c64.static.prefill.onnx",
        "model.onnx_data",
    ]


def test_a_shape_made_at_run_time_is_found() -> None:
    graph = helper.make_graph(
        [helper.make_node("Shape", ["x"], ["y"])],
        "shape",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [2])],
    )
    with pytest.raises(SnapbakeError, match="left Shape in the graph"):
        require_static(helper.make_model(graph), Path("graph.onnx"))


def test_a_tensor_without_fixed_shape_is_found() -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Reshape", ["x", "shape"], ["y"], name="reshape"),
            helper.make_node("ReduceSum", ["y"], ["z"], keepdims=0),
        ],
        "reshape",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [6]),
            helper.make_tensor_value_info("shape", TensorProto.INT64, [2]),
        ],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    with pytest.raises(SnapbakeError, match="tensor y of Reshape reshape has no fixed shape"):
        require_static(model, Path("graph.onnx"))
