"""The decoder graph that Qualcomm's HTP and its LLM runtime (Genie) take, written as ONNX.

The graph is built from the family's `DecoderSpec` and refers to the one weight file that
`htp_weights` wrote; it is about 1 MB itself. What the HTP asks for and the plain export does not
give:

* RMSNorm as one operator (opset 23), because its parts overflow fp16;
* Linear layers as 1x1 Conv, because quantised MatMul of some shapes crashes the HTP;
* the cosine and sine of the rotary embedding as inputs, because computing them from position ids
  is refused once quantised;
* int32 token ids, ranks of 4 and less, a finite additive mask, and no guard against NaN (weights
  are scanned for it instead);
* only the new rows of the KV cache as outputs, keys transposed.

Every tensor has the same name for every chunk length, so that encodings belong to the model and
not to a graph.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from snapbake.errors import SnapbakeError
from snapbake.families import DecoderSpec, layer_tensors
from snapbake.files import atomic_path, read_json

OPSET = 23
IR_VERSION = 10
_CHANNELS_FIRST = (0, 3, 1, 2)
_CHANNELS_LAST = (0, 2, 3, 1)


@dataclass
class _Graph:
    """Nodes and tensors of a graph in the making; methods return the name of what they add."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, TensorProto] = field(default_factory=dict)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def op(self, kind: str, name: str, inputs: list[str], **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def split(self, name: str, source: str, halves: str) -> tuple[str, str]:
        outputs = [f"{name}.first", f"{name}.second"]
        self.nodes.append(helper.make_node("Split", [source, halves], outputs, name=name, axis=-1))
        return outputs[0], outputs[1]

    def ints(self, name: str, values: list[int]) -> str:
        self.initializers[name] = numpy_helper.from_array(np.array(values, np.int64), name)
        return name

    def reshape(self, name: str, source: str, shape: list[int]) -> str:
        return self.op("Reshape", name, [source, self.ints(f"{name}.shape", shape)])

    def transpose(self, name: str, source: str, order: tuple[int, ...]) -> str:
        return self.op("Transpose", name, [source], perm=list(order))

    def input(self, name: str, shape: list[int], kind: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, shape: list[int]) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))


class _Builder:
    """Builds one graph; `weights` is the index that `htp_weights.write_weights` wrote."""

    def __init__(self, spec: DecoderSpec, tokens: int, context: int, weights: dict) -> None:
        self.spec, self.tokens, self.context = spec, tokens, context
        self.data: str = weights["data"]
        self.places: dict[str, dict] = weights["tensors"]
        self.tensors = layer_tensors(spec, 0)  # by logical name: which there are in every layer
        self.graph = _Graph()

    def weight(self, name: str, kernel: tuple[int, ...] = ()) -> str:
        """Refer to a tensor of the weight file; `kernel` are dimensions of 1 to add to its own."""
        place = self.places.get(name)
        if place is None:
            raise SnapbakeError(
                f"the index of {self.data} has no weight {name}, which the model of config.json "
                "needs; write the weights and the graph from one checkpoint"
            )
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT)
        tensor.dims.extend([*place["shape"], *kernel])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (
            ("location", self.data),
            ("offset", place["offset"]),
            ("length", place["length"]),
        ):
            tensor.external_data.add(key=key, value=str(value))
        self.graph.initializers[name] = tensor
        return name

    def norm(self, name: str, source: str) -> str:
        gain = self.weight(f"{name}.weight")
        return self.graph.op(
            "RMSNormalization", name, [source, gain], axis=-1, epsilon=self.spec.rms_norm_eps
        )

    def linear(self, name: str, source: str) -> str:
        """Add a Linear layer as a 1x1 Conv: [1, in, 1, tokens] -> [1, out, 1, tokens]."""
        inputs = [source, self.weight(f"{name}.weight", (1, 1))]
        if f"{name.rpartition('.')[2]}.bias" in self.tensors:
            inputs.append(self.weight(f"{name}.bias"))
        return self.graph.op("Conv", name, inputs, kernel_shape=[1, 1])

    def projected(self, layer: int, letter: str, heads: int, source: str) -> str:
        """Project to query, key or value heads: [1, hidden, 1, tokens] -> [1, heads, tokens, D]."""
        spec, graph = self.spec, self.graph
        name = f"layers.{layer}.{letter}"
        rows = graph.transpose(f"{name}_rows", self.linear(f"{name}_proj", source), _CHANNELS_LAST)
        split = graph.reshape(f"{name}_split", rows, [1, self.tokens, heads, spec.head_dim])
        if spec.qk_norm and letter in "qk":
            split = self.norm(f"{name}_norm", split)
        # The value rows leave the graph as they are, so they carry the output's name.
        name = f"past_value_{layer}_out" if letter == "v" else f"{name}_heads"
        return graph.transpose(name, split, (0, 2, 1, 3))

    def rotate(self, name: str, source: str) -> str:
        """Apply the rotary position embedding to [1, heads, tokens, D] (halves, not pairs)."""
        graph = self.graph
        halves = graph.ints("rope.halves", [self.spec.head_dim // 2] * 2)
        first, second = graph.split(f"{name}.split", source, halves)

        def times(part: str, table: str, label: str) -> str:
            return graph.op("Mul", f"{name}.{label}", [part, f"position_ids_{table}"])

        turned_first = graph.op(
            "Sub",
            f"{name}.turned_first",
            [times(first, "cos", "first_cos"), times(second, "sin", "second_sin")],
        )
        turned_second = graph.op(
            "Add",
            f"{name}.turned_second",
            [times(second, "cos", "second_cos"), times(first, "sin", "first_sin")],
        )
        return graph.op("Concat", name, [turned_first, turned_second], axis=-1)

    def attention(self, layer: int, source: str) -> str:
        """Add attention over past and new tokens: [1, hidden, 1, tokens] in, the same out."""
        spec, graph, tokens, context = self.spec, self.graph, self.tokens, self.context
        past, head_dim, group = context - tokens, spec.head_dim, spec.heads // spec.kv_heads
        name = f"layers.{layer}"
        query = self.projected(layer, "q", spec.heads, source)
        key = self.projected(layer, "k", spec.kv_heads, source)
        value = self.projected(layer, "v", spec.kv_heads, source)
        query = self.rotate(f"{name}.q_rope", query)
        key = graph.transpose(
            f"past_key_{layer}_out", self.rotate(f"{name}.k_rope", key), (0, 1, 3, 2)
        )
        past_key = graph.input(f"past_key_{layer}_in", [1, spec.kv_heads, head_dim, past])
        past_value = graph.input(f"past_value_{layer}_in", [1, spec.kv_heads, past, head_dim])
        graph.output(f"past_key_{layer}_out", [1, spec.kv_heads, head_dim, tokens])
        graph.output(f"past_value_{layer}_out", [1, spec.kv_heads, tokens, head_dim])
        keys = graph.op("Concat", f"{name}.keys", [past_key, key], axis=3)
        values = graph.op("Concat", f"{name}.values", [past_value, value], axis=2)

        grouped = [1, spec.kv_heads, group * tokens]
        query = graph.reshape(f"{name}.q_grouped", query, [*grouped, head_dim])
        scores = graph.op("MatMul", f"{name}.scores", [query, keys])
        scores = graph.reshape(f"{name}.scores_heads", scores, [1, spec.heads, tokens, context])
        scores = graph.op("Add", f"{name}.masked", [scores, "attention_mask"])
        share = graph.op("Softmax", f"{name}.softmax", [scores], axis=-1)
        share = graph.reshape(f"{name}.softmax_grouped", share, [*grouped, context])
        mixed = graph.op("MatMul", f"{name}.mixed", [share, values])
        mixed = graph.reshape(f"{name}.mixed_heads", mixed, [1, spec.heads, tokens, head_dim])
        mixed = graph.transpose(f"{name}.mixed_rows", mixed, (0, 2, 1, 3))
        mixed = graph.reshape(f"{name}.mixed_flat", mixed, [1, 1, tokens, spec.heads * head_dim])
        mixed = graph.transpose(f"{name}.mixed_channels", mixed, _CHANNELS_FIRST)
        return self.linear(f"{name}.o_proj", mixed)

    def mlp(self, layer: int, source: str) -> str:
        """Add the gated MLP with SiLU: [1, hidden, 1, tokens] in and out."""
        graph, name = self.graph, f"layers.{layer}"
        gate = self.linear(f"{name}.gate_proj", source)
        sigmoid = graph.op("Sigmoid", f"{name}.sigmoid", [gate])
        silu = graph.op("Mul", f"{name}.silu", [gate, sigmoid])
        up = self.linear(f"{name}.up_proj", source)
        gated = graph.op("Mul", f"{name}.gated", [silu, up])
        return self.linear(f"{name}.down_proj", gated)

    def residual(self, name: str, stream: str, addend: str) -> str:
        rows = self.graph.transpose(f"{name}.rows", addend, _CHANNELS_LAST)
        return self.graph.op("Add", name, [stream, rows])

    def build(self) -> onnx.ModelProto:
        spec, graph, tokens, context = self.spec, self.graph, self.tokens, self.context
        graph.input("input_ids", [1, tokens], TensorProto.INT32)
        graph.input("attention_mask", [1, 1, tokens, context])
        graph.input("position_ids_cos", [1, 1, tokens, spec.head_dim // 2])
        graph.input("position_ids_sin", [1, 1, tokens, spec.head_dim // 2])
        graph.output("logits", [1, tokens, spec.vocab_size])
        embedded = graph.op(
            "Gather", "embed_tokens", [self.weight("embed_tokens.weight"), "input_ids"], axis=0
        )
        stream = graph.reshape("embedded", embedded, [1, 1, tokens, spec.hidden_size])
        for layer in range(spec.layers):
            name = f"layers.{layer}"
            normed = self.norm(f"{name}.input_norm", stream)
            normed = graph.transpose(f"{name}.input_norm.channels", normed, _CHANNELS_FIRST)
            stream = self.residual(f"{name}.attended", stream, self.attention(layer, normed))
            normed = self.norm(f"{name}.post_norm", stream)
            normed = graph.transpose(f"{name}.post_norm.channels", normed, _CHANNELS_FIRST)
            stream = self.residual(f"{name}.hidden", stream, self.mlp(layer, normed))
        normed = graph.transpose("norm.channels", self.norm("norm", stream), _CHANNELS_FIRST)
        head = self.linear("lm_head", normed)
        rows = graph.transpose("lm_head.rows", head, _CHANNELS_LAST)
        graph.reshape("logits", rows, [1, tokens, spec.vocab_size])
        unused = sorted(self.places.keys() - graph.initializers.keys())
        if unused:
            raise SnapbakeError(
                f"the index of {self.data} has a weight {unused[0]}, which the model of "
                "config.json has not; write the weights and the graph from one checkpoint"
            )
        proto = helper.make_graph(
            graph.nodes,
            "decoder",
            graph.inputs,
            graph.outputs,
            list(graph.initializers.values()),
        )
        return helper.make_model(
            proto,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="snapbake",
        )


def build_decoder(spec: DecoderSpec, tokens: int, context: int, weights: dict) -> onnx.ModelProto:
    """Return the contract graph for chunks of `tokens` in a context of `context` tokens.

    `weights` is the content of the weight index; the model refers to its data file and holds no
    weight itself. With AR = `tokens`, CL = `context`, KV = kv_heads, D = head_dim, V = vocabulary:

    in   input_ids int32 [1, AR]; attention_mask [1, 1, AR, CL], added to the scores;
         position_ids_cos, position_ids_sin [1, 1, AR, D/2];
         past_key_{i}_in [1, KV, D, CL-AR]; past_value_{i}_in [1, KV, CL-AR, D]
    out  logits [1, AR, V]; past_key_{i}_out [1, KV, D, AR]; past_value_{i}_out [1, KV, AR, D]
    """
    if not 0 < tokens < context:
        raise SnapbakeError(
            f"a graph of {tokens} tokens needs a context of more than that, found {context}; "
            "raise `contexts` or lower `prefill_chunk` in config.yaml"
        )
    return _Builder(spec, tokens, context, weights).build()


def write_decoder(spec: DecoderSpec, tokens: int, context: int, index: Path, output: Path) -> None:
    """Build the contract graph and write it beside the weight file that it refers to."""
    if output.parent.resolve() != index.parent.resolve():
        raise SnapbakeError(
            f"{output} must lie in the folder of {index}, because ONNX refuses external data from "
            "elsewhere; choose an output in that folder"
        )
    model = build_decoder(spec, tokens, context, read_json(index))
    try:
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise SnapbakeError(
            f"the weights of {index} have other shapes than the model of config.json; write the "
            "weights and the graph from one checkpoint"
        ) from error
    with atomic_path(output) as temporary:
        onnx.save(model, temporary)
