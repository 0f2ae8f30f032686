"""genie_config.json: what Qualcomm's LLM runtime has to know, and whether it can take a model.

Genie fails without a word on some mistakes, and on others it answers with nonsense, so binaries
and configuration are judged here first. The rules were found by trying with Genie 1.21 (QAIRT
2.51); docs/bundle.md lists them.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from snapbake.errors import SnapbakeError
from snapbake.families import DecoderSpec
from snapbake.genie_positions import positional_encoding
from snapbake.qnn_system import BinaryInfo, GraphInfo, TensorInfo

EXTENSIONS_FILE: Final = "htp_backend_ext_config.json"

_REAL: Final = ("float32", "float16", "ufix16")
_CACHE: Final = (*_REAL, "ufix8")
_INTS: Final = ("int32",)


def genie_config(
    spec: DecoderSpec,
    context: int,
    stop: Sequence[int],
    binaries: Sequence[str],
    tokenizer: str = "tokenizer.json",
    extensions: str = EXTENSIONS_FILE,
    poll: bool = True,
) -> dict[str, Any]:
    """Return the content of a genie_config.json for greedy answers.

    `context` and the answer's limit are in tokens, `stop` are the tokens that end an answer.
    Paths are as Genie sees them from its working folder. There is no bos-token: the chat template
    writes it where a model wants it. With `poll` Genie's threads wait busily, which is fast on a
    phone and takes the emulator's processors away.
    """
    return {
        "dialog": {
            "version": 1,
            "type": "basic",
            "max-num-tokens": context,
            "context": {
                "version": 1,
                "size": context,
                "n-vocab": spec.vocab_size,
                "bos-token": -1,
                "eos-token": list(stop),
            },
            "sampler": {
                "version": 1,
                "seed": 42,
                "temp": 0.0,
                "top-k": 1,
                "top-p": 1.0,
                "greedy": True,
            },
            "tokenizer": {"version": 1, "path": tokenizer},
            "engine": {
                "version": 1,
                "n-threads": 3,
                "backend": {
                    "version": 1,
                    "type": "QnnHtp",
                    "extensions": extensions,
                    "QnnHtp": {
                        "version": 1,
                        "use-mmap": True,
                        "spill-fill-bufsize": 0,
                        "mmap-budget": 0,
                        "poll": poll,
                        "cpu-mask": "0xe0",
                        "kv-dim": spec.head_dim,
                        "allow-async-init": False,
                    },
                },
                "model": {
                    "version": 1,
                    "type": "binary",
                    "binary": {"version": 1, "ctx-bins": list(binaries)},
                    "positional-encoding": positional_encoding(spec, context),
                },
            },
        }
    }


def htp_extensions(soc_model: int, arch: int) -> dict[str, Any]:
    """Return the content of htp_backend_ext_config.json for a chip."""
    return {
        "devices": [
            {
                "soc_model": soc_model,
                "dsp_arch": f"v{arch}",
                "cores": [{"core_id": 0, "perf_profile": "burst", "rpc_control_latency": 100}],
            }
        ],
        "memory": {"mem_type": "shared_buffer"},
        "context": {"weight_sharing_enabled": True},
    }


def require_fit(
    config: Mapping[str, Any], binaries: Mapping[str, BinaryInfo], spec: DecoderSpec | None = None
) -> None:
    """Raise with the first thing that Genie would refuse, or take and answer nonsense.

    `binaries` are the descriptions of the files that the configuration names, by those names.
    `spec` is the model where it is at hand.
    """
    for mistake in _mistakes(config, binaries, spec):
        raise SnapbakeError(f"Genie cannot run this model: {mistake}")


def _mistakes(
    config: Mapping[str, Any], binaries: Mapping[str, BinaryInfo], spec: DecoderSpec | None
) -> Iterator[str]:
    try:
        dialog = config["dialog"]
        size, vocabulary = dialog["context"]["size"], dialog["context"]["n-vocab"]
        model = dialog["engine"]["model"]
        named = model["binary"]["ctx-bins"]
        half = model["positional-encoding"]["rope-dim"]
    except (KeyError, TypeError) as error:
        yield f"genie_config.json lacks {error}; make it again"
        return
    if sorted(named) != sorted(binaries):
        yield (
            f"genie_config.json names the binaries {', '.join(named)} and there are "
            f"{', '.join(binaries)}; make it again"
        )
        return
    graphs = {
        f"{graph.name.rstrip('_')} of {Path(name).name}": graph
        for name, binary in binaries.items()
        for graph in binary.graphs
    }
    tokens: dict[int, str] = {}
    contexts = set()
    for place, graph in graphs.items():
        shapes = _shapes(graph)
        if "input_ids" not in shapes or "attention_mask" not in shapes:
            yield f"the graph {place} has no input_ids or no attention_mask; build it again"
            return
        count, context = shapes["input_ids"][-1], shapes["attention_mask"][-1]
        contexts.add(context)
        if count in tokens:
            yield f"{tokens[count]} and {place} both take {count} tokens at a time; leave one out"
        tokens[count] = place
        yield from _graph_mistakes(place, graph, count, context, half, vocabulary)
    if len(contexts) != 1:
        yield f"the graphs have contexts of {sorted(contexts)} tokens; compile them for one"
        return
    if size > min(contexts):
        yield (
            f"context.size {size} is above the {min(contexts)} tokens of the graphs, at which "
            f"Genie fails without a message; set it to {min(contexts)} or less"
        )
    if 1 not in tokens:
        yield "no graph takes one token at a time, without which the end of the context is lost"
    yield from _encoding_mistakes(graphs)
    if spec is not None:
        yield from _model_mistakes(graphs, spec, half, vocabulary)


def _graph_mistakes(
    place: str, graph: GraphInfo, count: int, context: int, half: int, vocabulary: int
) -> Iterator[str]:
    """Yield what is wrong with names, dtypes and shapes of one graph's borders."""
    layers = len([tensor for tensor in graph.inputs if tensor.name.startswith("past_key_")])
    past = context - count
    inputs: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
        "input_ids": (_INTS, (1, count)),
        "attention_mask": (_REAL, (1, 1, count, context)),
        "position_ids_cos": (_REAL, (1, 1, count, half)),
        "position_ids_sin": (_REAL, (1, 1, count, half)),
    }
    outputs: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
        # With the last row only Genie loads it and answers nonsense.
        "logits": (_REAL, (1, count, vocabulary))
    }
    heads = next((tensor.shape[1] for tensor in graph.inputs if tensor.name == "past_key_0_in"), 0)
    for layer in range(layers):
        for kind, last in (("key", False), ("value", True)):
            for way, length, border in (("in", past, inputs), ("out", count, outputs)):
                shape = (length, 2 * half) if last else (2 * half, length)
                border[f"past_{kind}_{layer}_{way}"] = (_CACHE, (1, heads, *shape))
    for what, expected, tensors in (
        ("input", inputs, graph.inputs),
        ("output", outputs, graph.outputs),
    ):
        found = {tensor.name: tensor for tensor in tensors}
        for name in expected.keys() - found.keys():
            yield f"the graph {place} lacks the {what} {name}; build it from the graph contract"
        for name in sorted(expected.keys() & found.keys()):
            dtypes, wanted = expected[name]
            if found[name].dtype not in dtypes:
                yield (
                    f"{name} of the graph {place} is {found[name].dtype} and Genie takes "
                    f"{' or '.join(dtypes)}"
                )
            if found[name].shape != wanted:
                yield (
                    f"{name} of the graph {place} has the shape {list(found[name].shape)} and "
                    f"Genie needs {list(wanted)}"
                )


def _encoding_mistakes(graphs: Mapping[str, GraphInfo]) -> Iterator[str]:
    """Yield tensors that have another encoding in another graph, or as input and as output."""
    first: dict[str, tuple[str, TensorInfo]] = {}
    for place, graph in graphs.items():
        for tensor in (*graph.inputs, *graph.outputs):
            name = tensor.name.removesuffix("_in").removesuffix("_out")
            before, other = first.setdefault(name, (place, tensor))
            mine = (tensor.dtype, tensor.scale, tensor.offset)
            if mine != (other.dtype, other.scale, other.offset):
                yield (
                    f"{tensor.name} of the graph {place} is {_encoding(tensor)} and {other.name} "
                    f"of {before} is {_encoding(other)}; the cache could not be handed on"
                )


def _model_mistakes(
    graphs: Mapping[str, GraphInfo], spec: DecoderSpec, half: int, vocabulary: int
) -> Iterator[str]:
    if vocabulary != spec.vocab_size or 2 * half != spec.head_dim:
        yield (
            f"genie_config.json has {vocabulary} tokens and heads of {2 * half}, the model "
            f"{spec.vocab_size} and {spec.head_dim}; make it again"
        )
    for place, graph in graphs.items():
        names = {tensor.name for tensor in graph.inputs}
        if f"past_key_{spec.layers - 1}_in" not in names or (f"past_key_{spec.layers}_in" in names):
            yield f"the graph {place} has another number of layers than the model's {spec.layers}"


def _shapes(graph: GraphInfo) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tensor.shape for tensor in graph.inputs}


def _encoding(tensor: TensorInfo) -> str:
    if tensor.scale is None:
        return tensor.dtype
    return f"{tensor.dtype} with scale {tensor.scale} and offset {tensor.offset}"
