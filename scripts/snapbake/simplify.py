"""onnxsim on a frozen graph, without its weights, and the proof that the result is static.

With fixed shapes most of the exported graph computes constants. onnxsim folds them. It would also
load gigabytes of weights and write folded copies of them; so it gets a skeleton in which every
weight is an input of the graph, and the weights' places in the data file are put back afterwards.
onnxsim's own "ok" says nothing (it compares no numbers by default and takes cut-off data files);
what is checked here is the shape of the result, and `snapbake.onnx_check` compares the numbers.
"""

from pathlib import Path

import onnx
from onnx import TensorProto, helper
from onnx.external_data_helper import load_external_data_for_tensor

from snapbake.errors import SnapbakeError
from snapbake.external_data import place_of
from snapbake.freeze import frozen_sizes, require_same_folder
from snapbake.onnx_files import (
    byte_size,
    load_graph,
    require_external_data,
    save_graph,
    shape_of,
)
from snapbake.optimum_graph import count_layers, expected_borders, require_borders

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
    tokens, context = _require_frozen(frozen, model_path)
    weights = {tensor.name: tensor for tensor in frozen.graph.initializer if place_of(tensor)}
    simplified = _run_onnxsim(make_skeleton(frozen, model_path.parent), model_path)
    restore_weights(simplified, weights)
    _clear_remarks(simplified)
    _require_same_borders(frozen, simplified, model_path)
    static = require_static(simplified, model_path)
    # What folding may add: a few masks, [tokens, context] of int64 at most.
    _require_small(static, frozen.ByteSize() + 3 * 8 * tokens * context, model_path)
    save_graph(static, output)


def make_skeleton(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """Return a copy whose external weights are inputs and whose small constants are inside."""
    skeleton = onnx.ModelProto()
    skeleton.CopyFrom(model)
    graph = skeleton.graph
    inside = [tensor for tensor in graph.initializer if not place_of(tensor)]
    for tensor in filter(place_of, model.graph.initializer):
        graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        )
    graph.ClearField("initializer")
    graph.initializer.extend(inside)
    for node in graph.node:
        for attribute in node.attribute:
            if place_of(attribute.t):
                if byte_size(attribute.t) > _SMALL:
                    raise SnapbakeError(
                        f"the constant of {node.name} has {byte_size(attribute.t)} bytes; Optimum "
                        "keeps weights as initializers, so export the model again with its pinned "
                        "version"
                    )
                load_external_data_for_tensor(attribute.t, str(folder))
                attribute.t.ClearField("data_location")
                attribute.t.ClearField("external_data")
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


def _require_frozen(model: onnx.ModelProto, path: Path) -> tuple[int, int]:
    """Return new tokens and context of a frozen graph; raise when its borders do not agree."""
    for value in (*model.graph.input, *model.graph.output):
        shape = shape_of(value)
        if not all(isinstance(size, int) and size > 0 for size in shape):
            raise SnapbakeError(
                f"{path}: {value.name} {shape} has no fixed shape; run freeze_shapes.py first"
            )
    last = {value.name: int(shape_of(value)[-1]) for value in model.graph.input}
    tokens, context = last.get("input_ids", 0), last.get("attention_mask", 0)
    # onnxsim takes a mask that does not fit the past without a word.
    sizes = frozen_sizes(tokens, context)
    require_borders(model, path, expected_borders(count_layers(model), sizes=sizes))
    return tokens, context


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


def _require_small(model: onnx.ModelProto, allowed: int, path: Path) -> None:
    if model.ByteSize() > allowed:
        raise SnapbakeError(
            f"onnxsim blew the graph of {path} up to {model.ByteSize()} bytes by folding something "
            f"large ({allowed} are expected at most); use the pinned version of onnxsim"
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
