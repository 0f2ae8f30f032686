"""onnxsim on a frozen graph, without its weights, and the proof that the result is static.

With fixed shapes most of the exported graph computes constants. onnxsim folds them. It would also
load gigabytes of weights and write folded copies of them; so it gets a skeleton in which every
weight is an input of the graph, and the weights' places in the data file are put back afterwards.
onnxsim's own "ok" says nothing (it compares no numbers by default and takes cut-off data files);
what is checked here is the shape of the result, and `snapbake.onnx_check` compares the numbers.
"""

from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper

from snapbake.errors import SnapbakeError
from snapbake.freeze import require_same_folder
from snapbake.onnx_files import (
    byte_size,
    external_array,
    is_external,
    load_graph,
    require_external_data,
    save_graph,
    shape_of,
)

# What makes shapes out of data at run time: none may be left in a static graph.
_SHAPE_OPERATORS = frozenset(
    ("ConstantOfShape", "If", "Loop", "NonZero", "Range", "Scan", "Shape", "Size")
)
_SMALL = 1 << 20  # bytes; a constant up to this size is data for folding, not a weight


def simplify_graph(model_path: Path, output: Path) -> None:
    """Write the simplified graph of `model_path` to `output`, in the same folder.

    Inputs, outputs and the data file stay the same. Raises when onnxsim fails, loses an input or
    output, leaves a dynamic shape, or blows the graph up.
    """
    require_same_folder(model_path, output)
    frozen = load_graph(model_path)
    require_external_data(frozen, model_path)
    _require_static_borders(frozen, model_path)
    weights = {tensor.name: tensor for tensor in frozen.graph.initializer if is_external(tensor)}
    simplified = _run_onnxsim(make_skeleton(frozen, model_path.parent), model_path)
    restore_weights(simplified, weights)
    _clear_remarks(simplified)
    _require_same_borders(frozen, simplified, model_path)
    static = require_static(simplified, model_path)
    _require_small(frozen, static, model_path)
    save_graph(static, output)


def make_skeleton(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """Return a copy whose external weights are inputs and whose small constants are inside."""
    skeleton = onnx.ModelProto()
    skeleton.CopyFrom(model)
    graph = skeleton.graph
    inside = [tensor for tensor in graph.initializer if not is_external(tensor)]
    for tensor in filter(is_external, model.graph.initializer):
        graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        )
    graph.ClearField("initializer")
    graph.initializer.extend(inside)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t") and is_external(attribute.t):
                if byte_size(attribute.t) > _SMALL:
                    raise SnapbakeError(
                        f"the constant of {node.name} has {byte_size(attribute.t)} bytes; Optimum "
                        "keeps weights as initializers, so export the model again with its pinned "
                        "version"
                    )
                value = external_array(attribute.t, folder)
                attribute.t.CopyFrom(numpy_helper.from_array(value, attribute.t.name))
    return skeleton


def restore_weights(model: onnx.ModelProto, weights: dict[str, TensorProto]) -> None:
    """Turn the inputs that stand for weights back into references to the data file, in place.

    A weight that nothing reads any more is left out.
    """
    graph = model.graph
    used = {name for node in graph.node for name in node.input}
    inputs = [value for value in graph.input if value.name not in weights]
    names = [value.name for value in graph.input if value.name in weights]
    graph.ClearField("input")
    graph.input.extend(inputs)
    graph.initializer.extend(weights[name] for name in names if name in used)


def require_static(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Return the model with the shape of every tensor inferred; raise when one is not fixed."""
    left = sorted({node.op_type for node in model.graph.node} & _SHAPE_OPERATORS)
    if left:
        raise SnapbakeError(
            f"onnxsim left {', '.join(left)} in the graph of {path}, which makes shapes at run "
            "time; check that every input of the graph is frozen"
        )
    model.graph.ClearField("value_info")
    try:
        inferred = onnx.shape_inference.infer_shapes(
            model, check_type=True, strict_mode=True, data_prop=True
        )
    except onnx.shape_inference.InferenceError as error:
        raise SnapbakeError(
            f"the simplified graph of {path} contradicts itself: {_first_line(error)}; "
            "use the pinned version of onnxsim"
        ) from error
    values = (*inferred.graph.value_info, *inferred.graph.output)
    shapes = {value.name: shape_of(value) for value in values if value.type.HasField("tensor_type")}
    for node in inferred.graph.node:
        for name in filter(None, node.output):
            shape = shapes.get(name)
            if shape is None or not all(isinstance(size, int) for size in shape):
                raise SnapbakeError(
                    f"the tensor {name} of {node.op_type} {node.name} has no fixed shape "
                    f"({shape or 'unknown'}) after simplifying {path}; freeze every input first"
                )
    return inferred


def _run_onnxsim(skeleton: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    # Imported here: it takes seconds and a third of a gigabyte.
    import onnxsim

    try:
        simplified, _ = onnxsim.simplify(skeleton)
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise SnapbakeError(
            f"onnxsim could not simplify {path}: {_first_line(error)}; "
            "freeze the graph again and use the pinned version of onnxsim"
        ) from error
    return simplified


def _clear_remarks(model: onnx.ModelProto) -> None:
    """Remove onnxsim's diary, which ORT's qnn_preprocess_model fails on, and tracing remarks."""
    model.ClearField("metadata_props")
    model.ClearField("doc_string")
    model.graph.ClearField("metadata_props")
    model.graph.ClearField("doc_string")
    for node in model.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")


def _require_static_borders(model: onnx.ModelProto, path: Path) -> None:
    for value in (*model.graph.input, *model.graph.output):
        shape = shape_of(value)
        if not all(isinstance(size, int) and size > 0 for size in shape):
            raise SnapbakeError(
                f"{path}: {value.name} {shape} has no fixed shape; run freeze_shapes.py first"
            )


def _require_same_borders(before: onnx.ModelProto, after: onnx.ModelProto, path: Path) -> None:
    for kind in ("input", "output"):
        old, new = (
            [
                (value.name, value.type.tensor_type.elem_type, shape_of(value))
                for value in getattr(model.graph, kind)
            ]
            for model in (before, after)
        )
        if old != new:
            changed = [entry for entry in old if entry not in new] or new
            raise SnapbakeError(
                f"onnxsim changed the {kind}s of {path}, first at {changed[0][0]}; "
                "use the pinned version of onnxsim"
            )


def _require_small(before: onnx.ModelProto, after: onnx.ModelProto, path: Path) -> None:
    # What folding may add: a few masks, [tokens, context] of int64 at most.
    sizes = {value.name: shape_of(value) for value in before.graph.input}
    tokens, context = int(sizes["input_ids"][-1]), int(sizes["attention_mask"][-1])
    allowed = before.ByteSize() + 3 * 8 * tokens * context
    if after.ByteSize() > allowed:
        raise SnapbakeError(
            f"onnxsim blew the graph of {path} up from {before.ByteSize()} to {after.ByteSize()} "
            "bytes by folding something large; use the pinned version of onnxsim"
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
