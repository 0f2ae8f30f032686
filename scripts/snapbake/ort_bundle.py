"""The binaries for programs that use ONNX Runtime instead of Genie.

Each binary gets a wrapper, a model of one EPContext node, which onnxruntime's QNN provider opens
like any model (its schema is onnxruntime's, domain com.microsoft). Beside them lies what a program
has to feed, in the form that the graphs take, and an example that answers a question.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from snapbake.bundle_files import copy_file
from snapbake.bundle_manifest import describe_file
from snapbake.decoding import GraphPair, read_pair
from snapbake.errors import SnapbakeError
from snapbake.families import read_spec
from snapbake.files import atomic_path, read_json, write_json
from snapbake.qnn_system import BinaryInfo, TensorInfo, read_context_binary
from snapbake.rope import rope_tables
from snapbake.subset import save_arrays

_OPSET: Final = 21
_IR_VERSION: Final = 10
_TYPES: Final = {
    "int32": TensorProto.INT32,
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "ufix8": TensorProto.UINT8,
    "ufix16": TensorProto.UINT16,
}


def make_ort_bundle(
    binaries: Mapping[str, Path],
    manifest: Path,
    checkpoint: Path,
    encodings: Path,
    template: Path,
    example: Path,
    tokens: int,
    context: int,
    output: Path,
) -> None:
    """Write wrappers, binaries, tables, tokenizer, template and example into a folder.

    `binaries` are those of "prefill" and "decode", `manifest` is the phone bundle's; its facts
    are repeated in metadata.json beside the SHA-256 of every file here.
    """
    spec = read_spec(read_json(checkpoint / "config.json"))
    pair = read_pair(spec, tokens, context, encodings)
    for name, binary in binaries.items():
        info = read_context_binary(binary)
        copy_file(binary, output / f"{name}.bin")
        with atomic_path(output / f"{name}.onnx") as temporary:
            temporary.write_bytes(wrap(info, f"{name}.bin").SerializeToString(deterministic=True))
    save_arrays(output / "tables.npz", _tables(pair))
    copy_file(checkpoint / "tokenizer.json", output / "tokenizer.json")
    copy_file(template, output / "prompt_template.json")
    copy_file(example, output / example.name)
    names = [f"{name}.{ending}" for name in binaries for ending in ("bin", "onnx")]
    names += ["tables.npz", "tokenizer.json", "prompt_template.json", example.name]
    facts = {name: value for name, value in read_json(manifest).items() if name != "files"}
    files = {name: describe_file(output / name) for name in sorted(names)}
    write_json(output / "metadata.json", {**facts, "files": files})


def wrap(info: BinaryInfo, name: str) -> ModelProto:
    """Return a model of one EPContext node for a binary of one graph, a file called `name`."""
    if len(info.graphs) != 1:
        raise SnapbakeError(
            f"{name} holds {len(info.graphs)} graphs and a wrapper takes one; give the binary of a "
            "single graph"
        )
    (graph,) = info.graphs
    node = helper.make_node(
        "EPContext",
        [tensor.name for tensor in graph.inputs],
        [tensor.name for tensor in graph.outputs],
        name=graph.name,
        domain="com.microsoft",
        main_context=1,
        embed_mode=0,
        ep_cache_context=name,
        ep_sdk_version=info.build_id,
        partition_name=graph.name,
        source="QNNExecutionProvider",
    )
    inputs, outputs = ([_value(each) for each in side] for side in (graph.inputs, graph.outputs))
    return helper.make_model(
        helper.make_graph([node], graph.name.rstrip("_"), inputs, outputs),
        opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid("com.microsoft", 1)],
        ir_version=_IR_VERSION,
        producer_name="snapbake",
    )


def _value(tensor: TensorInfo) -> ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, _TYPES[tensor.dtype], tensor.shape)


def _tables(pair: GraphPair) -> dict[str, NDArray]:
    """Return what a caller feeds, in stored form.

    `cos` and `sin` are [context, head_dim / 2]; `allowed` and `masked` are the mask's two values;
    `past_key_{i}` [1, KV, D, context] and `past_value_{i}` [1, KV, context, D] are empty caches;
    `chunk` is how many tokens the prefill graph takes.
    """
    spec, borders = pair.spec, pair.borders
    cos, sin = rope_tables(spec.rope, spec.head_dim, np.arange(pair.context))
    mask = borders["attention_mask"].encode(np.array([0, pair.mask_value], np.float32))
    tables: dict[str, NDArray] = {
        "chunk": np.array(pair.prefill_tokens),
        "cos": borders["position_ids_cos"].encode(cos),
        "sin": borders["position_ids_sin"].encode(sin),
        "allowed": mask[0],
        "masked": mask[1],
    }
    for layer in range(spec.layers):
        for kind, shape in (
            ("key", (1, spec.kv_heads, spec.head_dim, pair.context)),
            ("value", (1, spec.kv_heads, pair.context, spec.head_dim)),
        ):
            border = borders[f"past_{kind}_{layer}_in"]
            tables[f"past_{kind}_{layer}"] = np.full(shape, border.zero_point, border.dtype)
    return tables
