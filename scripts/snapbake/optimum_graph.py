"""The borders of the graph that Optimum exports for `text-generation-with-past`.

Written down from exports by optimum-onnx 0.1.0. With b the batch, s the new tokens and p the past:
`input_ids` and `position_ids` int64 [b, s], `attention_mask` int64 [b, p + s] (1 for a token to
look at), `past_key_values.{layer}.key` and `.value` float32 [b, kv_heads, p, head_dim]; out come
`logits` float32 [b, s, vocabulary] and `present.{layer}.key` and `.value` [b, kv_heads, p + s,
head_dim], the past with the new rows behind it.
"""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

from snapbake.errors import SnapbakeError
from snapbake.onnx_files import shape_of

BATCH = "batch_size"
NEW = "sequence_length"
PAST = "past_sequence_length"
ALL = "past_sequence_length + sequence_length"


def cache_names(layers: int, prefix: str) -> list[str]:
    """Return the names of the KV cache tensors; `prefix` is "past_key_values" or "present"."""
    return [f"{prefix}.{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]


def expected_borders(
    layers: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    vocabulary: int | None = None,
    sizes: dict[str, int] | None = None,
) -> dict[str, tuple[int, list[int | str | None]]]:
    """Return name -> (element type, shape) of every input and output.

    `sizes` replaces the names of dynamic dimensions; None in a shape means any size.
    """

    def size(name: str) -> int | str:
        return sizes[name] if sizes else name

    tokens = [size(BATCH), size(NEW)]
    past = [size(BATCH), kv_heads, size(PAST), head_dim]
    present = [size(BATCH), kv_heads, size(ALL), head_dim]
    return {
        "input_ids": (TensorProto.INT64, [*tokens]),
        "attention_mask": (TensorProto.INT64, [size(BATCH), size(ALL)]),
        "position_ids": (TensorProto.INT64, [*tokens]),
        **dict.fromkeys(cache_names(layers, "past_key_values"), (TensorProto.FLOAT, past)),
        "logits": (TensorProto.FLOAT, [*tokens, vocabulary]),
        **dict.fromkeys(cache_names(layers, "present"), (TensorProto.FLOAT, present)),
    }


def count_layers(model: onnx.ModelProto) -> int:
    """Return the number of layers that hand on a KV cache."""
    return sum(value.name.endswith(".key") for value in model.graph.input)


def require_borders(
    model: onnx.ModelProto,
    path: Path,
    expected: dict[str, tuple[int, list[int | str | None]]],
) -> None:
    """Raise unless the graph's inputs and outputs are exactly the expected ones."""
    found = {value.name: value for value in (*model.graph.input, *model.graph.output)}
    missing = sorted(expected.keys() - found.keys())
    extra = sorted(found.keys() - expected.keys())
    if missing or extra:
        listed = ", ".join(
            [f"no {name}" for name in missing] + [f"{name} as well" for name in extra]
        )
        raise SnapbakeError(
            f"{path} is not a decoder with a KV cache as Optimum exports it: it has {listed}; "
            "export it again with the pinned versions of optimum-onnx and transformers"
        )
    for name, (kind, shape) in expected.items():
        real = shape_of(found[name])
        same = len(real) == len(shape) and all(
            want is None or want == have for want, have in zip(shape, real, strict=True)
        )
        real_kind = found[name].type.tensor_type.elem_type
        if not same or real_kind != kind:
            raise SnapbakeError(
                f"{path}: {name} is {_dtype(real_kind)} {real}, expected {_dtype(kind)} "
                f"{['any' if size is None else size for size in shape]}; export the model again "
                "with the pinned versions of optimum-onnx and transformers"
            )


def _dtype(kind: int) -> str:
    return str(helper.tensor_dtype_to_np_dtype(kind))
