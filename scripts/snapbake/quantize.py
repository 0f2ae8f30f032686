"""Quantising the contract graphs: QDQ by onnxruntime's quantiser, one encoding for both graphs.

The prefill graph is quantised with onnxruntime.quantization's QNN configuration. The decode graph
is then the same quantised graph with the decode graph's shapes: the two float graphs are equal but
for these, so every tensor, weight or activation, has the same encoding in both by construction.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnxruntime.quantization.calibrate import CalibrationDataReader, CalibrationMethod, TensorsData
from onnxruntime.quantization.execution_providers.qnn.quant_config import get_qnn_qdq_config
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.quant_utils import QuantType, add_infer_metadata

from snapbake.decoding import Border, GraphPair, border_names
from snapbake.errors import SnapbakeError
from snapbake.external_data import ExternalWeights, point_to
from snapbake.families import DecoderSpec
from snapbake.files import atomic_path, require_disk_space, write_json
from snapbake.ranges import MASK_VALUE, Ranges, observe_ranges
from snapbake.rope import rope_tables

_ACTIVATION_TYPES = {16: QuantType.QUInt16, 8: QuantType.QUInt8}
_WEIGHT_TYPES = {8: QuantType.QInt8}
# At least this is taken off the scores of positions that must not be seen.
_LEAST_MASK = 100.0
_INLINE_LIMIT = 1024  # bytes; larger tensors go to the shared weight file


@dataclass(frozen=True)
class Encoding:
    """An affine encoding of a whole tensor: real = (code - zero_point) * scale."""

    bits: int
    scale: float
    zero_point: int

    @staticmethod
    def of_range(low: float, high: float, bits: int, symmetric: bool = False) -> "Encoding":
        """Return the unsigned encoding that covers [low, high] and holds 0 exactly."""
        steps = 2**bits - 1
        low, high = min(low, 0.0), max(high, 0.0)
        if symmetric:
            reach = max(-low, high)
            scale = np.float32(max(reach, 1e-6) / (2 ** (bits - 1) - 1))
            return Encoding(bits, float(scale), 2 ** (bits - 1))
        scale = np.float32(max(high - low, 1e-6) / steps)
        return Encoding(bits, float(scale), int(np.clip(np.rint(-low / scale), 0, steps)))

    def override(self) -> dict[str, Any]:
        """Return the encoding as an entry of onnxruntime's tensor overrides."""
        kind = {8: np.uint8, 16: np.uint16}[self.bits]
        return {
            "quant_type": _ACTIVATION_TYPES[self.bits],
            "scale": np.array(self.scale, np.float32),
            "zero_point": np.array(self.zero_point, kind),
        }

    def signed_override(self) -> dict[str, Any]:
        """Return the override of the same real numbers as int16, for a symmetric encoding."""
        return {
            "quant_type": QuantType.QInt16,
            "scale": np.array(self.scale, np.float32),
            "zero_point": np.array(0, np.int16),
        }


@dataclass(frozen=True)
class Precision:
    """The numbers of bits of a quantised recipe."""

    weight_bits: int
    activation_bits: int
    kv_bits: int


class _NoData(CalibrationDataReader):
    """The ranges are known already, so the quantiser's own calibration has nothing to read."""

    def get_next(self) -> dict:
        return {}


def mask_value(ranges: Ranges, layers: int) -> float:
    """Return what to add to the scores of positions that must not be seen.

    It takes the largest score of every layer to the bottom of what its softmax reads, where nothing
    has a share any more. Some models need more than others: where biases make all scores of a head
    -200, a position with the score 0 - 100 would be the only one to be seen.
    """
    needed = (
        ranges[f"layers.{layer}.scores"][1] - ranges[f"layers.{layer}.masked"][0]
        for layer in range(layers)
    )
    return -float(max(_LEAST_MASK, *(math.ceil(value) for value in needed)))


def fixed_encodings(ranges: Ranges, spec: DecoderSpec, precision: Precision) -> dict[str, Encoding]:
    """Return the encodings that do not follow from one tensor's observed range.

    The mask and the rotary tables have known ranges: cosine is largest at position 0, where it is
    the factor that some kinds of scaling put on both tables. The KV cache is one tensor that passes
    through the graphs: what leaves a layer, what comes back in, and both joined share one symmetric
    encoding (the HTP wants the second operand of a 16x16-bit MatMul symmetric).
    """
    bits = precision.activation_bits
    largest = float(rope_tables(spec.rope, spec.head_dim, np.zeros(1, np.int64))[0].max())
    encodings = {
        "attention_mask": Encoding.of_range(mask_value(ranges, spec.layers), 0.0, bits),
        "position_ids_cos": Encoding.of_range(-largest, largest, bits),
        "position_ids_sin": Encoding.of_range(-largest, largest, bits),
    }
    for layer in range(spec.layers):
        for names in cache_chains(layer):
            low, high = merged(ranges, names)
            shared = Encoding.of_range(low, high, precision.kv_bits, symmetric=True)
            encodings.update(dict.fromkeys(names, shared))
    return encodings


def cache_chains(layer: int) -> tuple[list[str], list[str]]:
    """Return the tensors that hold one layer's keys, and those that hold its values.

    Each list runs from where the new rows are computed, over Reshape and Transpose (which keep the
    encoding of what they read), to the cache joined with them.
    """
    prefix = f"layers.{layer}"
    keys = [f"{prefix}.k_rope", *(f"past_key_{layer}_{way}" for way in ("out", "in"))]
    values = [f"{prefix}.{name}" for name in ("v_proj", "v_rows", "v_split")]
    values += [f"past_value_{layer}_{way}" for way in ("out", "in")]
    return [*keys, f"{prefix}.keys"], [*values, f"{prefix}.values"]


def merged(ranges: Ranges, names: list[str]) -> tuple[float, float]:
    """Return the smallest range that holds the ranges of all `names`."""
    return min(ranges[name][0] for name in names), max(ranges[name][1] for name in names)


def quantize_prefill(
    path: Path, ranges: Ranges, fixed: Mapping[str, Encoding], precision: Precision
) -> onnx.ModelProto:
    """Return the QDQ form of the prefill graph, its weights in memory, borders still float."""
    model = onnx.load(path)
    # The graph has its shapes: without this mark the quantiser would infer them on a copy.
    add_infer_metadata(model)
    overrides = {name: [encoding.override()] for name, encoding in fixed.items()}
    for node in model.graph.node:
        if node.op_type == "MatMul" and fixed[node.input[1]].bits == 16:
            overrides[node.input[1]][0]["convert"] = {
                **fixed[node.input[1]].signed_override(),
                "recv_nodes": {node.name},
            }
    config = get_qnn_qdq_config(
        # Without weights, because it serialises the model, which protobuf refuses above 2 GB.
        onnx.load(path, load_external_data=False),
        _NoData(),
        activation_type=_ACTIVATION_TYPES[precision.activation_bits],
        weight_type=_WEIGHT_TYPES[precision.weight_bits],
        per_channel=True,
        init_overrides=overrides,
    )
    observed: dict[str, Any] = {
        name: (np.array(low, np.float32), np.array(high, np.float32))
        for name, (low, high) in ranges.items()
    }
    quantizer = QDQQuantizer(
        model,
        config.per_channel,
        config.reduce_range,
        config.weight_type,
        config.activation_type,
        TensorsData(CalibrationMethod.MinMax, observed),
        config.nodes_to_quantize or [],
        config.nodes_to_exclude or [],
        config.op_types_to_quantize,
        config.extra_options,
    )
    quantized = quantizer.quantize_model()
    quantizer.model.topological_sort()
    del quantized.metadata_props[:]
    return quantized


def strip_borders(model: onnx.ModelProto) -> dict[str, dict[str, Any]]:
    """Give the graph native integer borders: drop the first Q of inputs, the last DQ of outputs.

    Returns dtype, scale and zero point of each border tensor; int32 ids have only a dtype.
    """
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    consumers: dict[str, list[onnx.NodeProto]] = {}
    producers: dict[str, onnx.NodeProto] = {}
    for node in graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node)
        for name in node.output:
            producers[name] = node
    borders: dict[str, dict[str, Any]] = {}
    renamed: dict[str, str] = {}
    dropped: set[str] = set()

    def note(value: onnx.ValueInfoProto, node: onnx.NodeProto) -> None:
        zero_point = constants[node.input[2]]
        value.type.tensor_type.elem_type = zero_point.data_type
        borders[value.name] = {
            "dtype": numpy_helper.to_array(zero_point).dtype.name,
            "scale": float(numpy_helper.to_array(constants[node.input[1]])),
            "zero_point": int(numpy_helper.to_array(zero_point)),
        }

    for value in graph.input:
        if value.type.tensor_type.elem_type == TensorProto.INT32:
            borders[value.name] = {"dtype": "int32"}
            continue
        readers = consumers[value.name]
        if [node.op_type for node in readers] != ["QuantizeLinear"]:
            raise SnapbakeError(
                f"the input {value.name} is not quantised as a whole; this graph is not one that "
                "snapbake's adapt stage wrote, build it again"
            )
        note(value, readers[0])
        renamed[readers[0].output[0]] = value.name
        dropped.add(readers[0].name)
    for value in graph.output:
        last = producers[value.name]
        if last.op_type != "DequantizeLinear":
            raise SnapbakeError(
                f"the output {value.name} is not quantised; this graph is not one that snapbake's "
                "adapt stage wrote, build it again"
            )
        note(value, last)
        if value.name in consumers:
            # The rest of the graph reads the real numbers too: they get a name of their own.
            last.output[0] = f"{value.name}_DequantizeLinear"
            for node in consumers[value.name]:
                _rename_inputs(node, {value.name: last.output[0]})
        else:
            dropped.add(last.name)
        renamed[last.input[0]] = value.name
    kept = [node for node in graph.node if node.name not in dropped]
    for node in kept:
        _rename_inputs(node, renamed)
        for index, name in enumerate(node.output):
            node.output[index] = renamed.get(name, name)
    del graph.node[:]
    graph.node.extend(kept)
    del graph.value_info[:]
    return borders


def _rename_inputs(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    for index, name in enumerate(node.input):
        node.input[index] = names.get(name, name)


def with_shapes_of(
    quantized: onnx.ModelProto, own: onnx.ModelProto, other: onnx.ModelProto
) -> onnx.ModelProto:
    """Return `quantized` with the shapes of the float graph `other` in place of those of `own`.

    `own` is the float graph that was quantised. Raises ValueError when the two float graphs differ
    in more than shapes.
    """
    if _without_shapes(own) != _without_shapes(other):
        raise ValueError("the prefill and the decode graph differ in more than their shapes")
    result = onnx.ModelProto()
    result.CopyFrom(quantized)
    replacements = {
        tensor.name: tensor
        for tensor in other.graph.initializer
        if tensor.data_type == TensorProto.INT64
    }
    for tensor in result.graph.initializer:
        if tensor.name in replacements:
            tensor.CopyFrom(replacements[tensor.name])
    shapes = {value.name: value for value in [*other.graph.input, *other.graph.output]}
    for value in [*result.graph.input, *result.graph.output]:
        value.type.tensor_type.shape.CopyFrom(shapes[value.name].type.tensor_type.shape)
    return result


def _without_shapes(model: onnx.ModelProto) -> tuple:
    """Return what must be equal: the nodes, and the weights with their places in the data file."""
    nodes = [
        (node.op_type, list(node.input), list(node.output), list(node.attribute))
        for node in model.graph.node
    ]
    weights = [
        tensor for tensor in model.graph.initializer if tensor.data_type != TensorProto.INT64
    ]
    return nodes, weights


def move_weights(model: onnx.ModelProto, data: Path) -> None:
    """Move the large tensors of a model into the file `data`, leaving references."""
    with atomic_path(data) as temporary, temporary.open("wb") as stream:
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) > _INLINE_LIMIT:
                place = (data.name, stream.tell(), len(tensor.raw_data))
                stream.write(tensor.raw_data)
                point_to(tensor, *place)


def calibrate_and_quantize(
    graphs: Mapping[str, Path],
    spec: DecoderSpec,
    records: Sequence[Sequence[int]],
    tokens: int,
    context: int,
    precision: Precision,
    threads: int,
    output: Path,
) -> None:
    """Observe the ranges over `records` (token ids) and write the quantised pair into `output`.

    `graphs` are the fp32 contract graphs "prefill" and "decode".
    """
    prefill = onnx.load(graphs["prefill"], load_external_data=False)
    require_disk_space(output, ExternalWeights(prefill, graphs["prefill"].parent).total_bytes())
    plain = Border(np.dtype(np.float32))
    borders = dict.fromkeys(border_names(spec.layers), plain)
    pair = GraphPair(spec, tokens, context, MASK_VALUE, borders)
    ranges = observe_ranges(graphs, pair, records, threads)
    quantize_pair(graphs["prefill"], graphs["decode"], ranges, spec, precision, output)


def quantize_pair(
    prefill: Path,
    decode: Path,
    ranges: Ranges,
    spec: DecoderSpec,
    precision: Precision,
    output: Path,
) -> None:
    """Write prefill.onnx, decode.onnx, weights.data and encodings.json into the folder `output`."""
    fixed = fixed_encodings(ranges, spec, precision)
    quantized = quantize_prefill(prefill, ranges, fixed, precision)
    move_weights(quantized, output / "weights.data")
    encodings = activation_encodings(quantized)
    borders = strip_borders(quantized)
    for layer in range(spec.layers):
        for kind in ("key", "value"):
            written, read = (borders[f"past_{kind}_{layer}_{way}"] for way in ("out", "in"))
            if written != read:
                raise ValueError(
                    f"past_{kind}_{layer} leaves the graph as {written}, enters as {read}"
                )
    floats = [onnx.load(path, load_external_data=False) for path in (prefill, decode)]
    for name, model in (
        ("prefill", quantized),
        ("decode", with_shapes_of(quantized, *floats)),
    ):
        with atomic_path(output / f"{name}.onnx") as temporary:
            onnx.save(model, temporary)
    write_json(
        output / "encodings.json",
        {
            "tensors": borders,
            "activations": encodings,
            "mask_value": mask_value(ranges, spec.layers),
        },
    )


def activation_encodings(model: onnx.ModelProto) -> dict[str, dict[str, Any]]:
    """Return dtype, scale and zero point of every activation that a QDQ graph quantises."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    found: dict[str, dict[str, Any]] = {}
    for node in model.graph.node:
        if node.op_type != "QuantizeLinear":
            continue
        scale, zero_point = (numpy_helper.to_array(constants[name]) for name in node.input[1:3])
        if not np.isfinite(scale).all() or (scale <= 0).any():
            raise SnapbakeError(
                f"the scale of {node.input[0]} came out as {scale}; its calibrated range is not "
                "usable, check the calibration records"
            )
        found[node.input[0]] = {
            "dtype": zero_point.dtype.name,
            "scale": float(scale),
            "zero_point": int(zero_point),
        }
    return found
