"""The weights of a decoder in the form that the HTP graphs use: fused, rotated, fp32, one file.

What is folded, and why it changes nothing:

* The gain of every RMSNorm on the residual stream moves into the Linear layers that read its
  output: W (g * x) = (W diag(g)) x.
* The residual stream is rotated by a fixed orthogonal matrix Q (the R1 rotation of QuaRot and
  SpinQuant: Ashkboos et al. 2024, arXiv 2404.00456; Liu et al. 2024, arXiv 2405.16406). A gain-free
  RMSNorm commutes with Q because |Qx| = |x|, so what writes to the stream is multiplied by Q and
  what reads from it by its transpose. Language models keep a few residual channels that are
  hundreds of times larger than the rest; the rotation spreads them over all channels, which is
  what lets one 16-bit scale, or fp16, hold the stream.
* The factor 1/sqrt(head_dim) of the attention scores moves into the query projection, or into the
  gain of the query norm where the family has one.

Linear weights keep PyTorch's order [out, in]: that is the layout of a 1x1 Conv, so nothing is
transposed.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from snapbake.errors import SnapbakeError
from snapbake.families import DecoderSpec, layer_tensors, model_tensors
from snapbake.files import atomic_path, require_disk_space, write_json

_ALIGNMENT = 4096  # bytes; lets a reader map every tensor on its own

FloatArray = NDArray[np.float32]


def rotation_matrix(size: int) -> NDArray[np.float64]:
    """Return the orthogonal matrix [size, size] that rotates a residual stream of `size` channels.

    It is H (x) B: the Sylvester-Hadamard matrix of the largest power of two that divides `size`,
    and for the odd rest n a Householder reflection that takes the first axis to the diagonal. H
    spreads an outlier evenly; B leaves 1 - 1 / (n - sqrt(n)) of it where it was (5/6 of it for the
    n of 9 that 576 has). Both are exact functions of `size`: no random numbers that a library
    could change.
    """
    power = size & -size
    hadamard = np.ones((1, 1))
    while hadamard.shape[0] < power:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    odd = size // power
    reflection = np.eye(odd)
    if odd > 1:
        axis = np.full(odd, -1 / np.sqrt(odd))
        axis[0] += 1
        reflection -= 2 * np.outer(axis, axis) / (axis @ axis)
    return np.kron(hadamard / np.sqrt(power), reflection)


def htp_tensors(spec: DecoderSpec, checkpoint: Path) -> Iterator[tuple[str, FloatArray]]:
    """Yield name and fp32 value of every weight of the HTP graphs, one at a time.

    `checkpoint` is a normalised folder. Linear weights come as [out, in], gains and biases as
    [channels], the embedding as [vocabulary, hidden].
    """
    rotation = rotation_matrix(spec.hidden_size)
    with safe_open(checkpoint / "model.safetensors", framework="pt") as tensors:

        def load(key: str) -> NDArray[np.float64]:
            return tensors.get_tensor(key).double().numpy()

        top = model_tensors(spec)
        embedding = load(top["embed_tokens.weight"])
        yield "embed_tokens.weight", _single(embedding @ rotation)
        for layer in range(spec.layers):
            names = layer_tensors(spec, layer)
            prefix = f"layers.{layer}."
            for norm, readers in (
                ("input_norm", ("q_proj", "k_proj", "v_proj")),
                ("post_norm", ("gate_proj", "up_proj")),
            ):
                gain = load(names[f"{norm}.weight"])
                yield f"{prefix}{norm}.weight", np.ones(spec.hidden_size, np.float32)
                for reader in readers:
                    scale = _query_scale(spec) if reader == "q_proj" else 1.0
                    weight = load(names[f"{reader}.weight"]) * gain
                    yield f"{prefix}{reader}.weight", _single(weight @ rotation * scale)
                    if f"{reader}.bias" in names:
                        yield (
                            f"{prefix}{reader}.bias",
                            _single(load(names[f"{reader}.bias"]) * scale),
                        )
            if spec.qk_norm:
                scale = spec.head_dim**-0.5
                yield f"{prefix}q_norm.weight", _single(load(names["q_norm.weight"]) * scale)
                yield f"{prefix}k_norm.weight", _single(load(names["k_norm.weight"]))
            for writer in ("o_proj", "down_proj"):
                yield (
                    f"{prefix}{writer}.weight",
                    _single(rotation.T @ load(names[f"{writer}.weight"])),
                )
                if f"{writer}.bias" in names:
                    yield (
                        f"{prefix}{writer}.bias",
                        _single(rotation.T @ load(names[f"{writer}.bias"])),
                    )
        yield "norm.weight", np.ones(spec.hidden_size, np.float32)
        head = embedding if spec.tied_embeddings else load(top["lm_head.weight"])
        yield "lm_head.weight", _single((head * load(top["norm.weight"])) @ rotation)


def _query_scale(spec: DecoderSpec) -> float:
    """Return what of 1/sqrt(head_dim) the query projection takes (the query norm undoes scale)."""
    return 1.0 if spec.qk_norm else float(spec.head_dim**-0.5)


def _single(value: NDArray[np.float64]) -> FloatArray:
    # The writer refuses what is not finite, with the tensor's name.
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(value, dtype=np.float32)


def write_weights(tensors: Iterator[tuple[str, FloatArray]], data: Path, index: Path) -> None:
    """Write tensors one behind the other into `data` and their places into the JSON `index`.

    The index maps a name to dtype ("float32"), shape, offset and length in bytes.
    """
    places: dict[str, dict[str, object]] = {}
    with atomic_path(data) as temporary, temporary.open("wb") as stream:
        for name, value in tensors:
            if not np.isfinite(value).all():
                raise SnapbakeError(
                    f"the weight {name} is not finite in fp32; the checkpoint holds values that "
                    "overflow, so export it again from a sound training state"
                )
            stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
            places[name] = {
                "dtype": value.dtype.name,
                "shape": list(value.shape),
                "offset": stream.tell(),
                "length": value.nbytes,
            }
            stream.write(value.data)
    write_json(index, {"data": data.name, "tensors": places})


def write_htp_weights(spec: DecoderSpec, checkpoint: Path, data: Path, index: Path) -> None:
    """Write the HTP form of a checkpoint's weights; see the module's docstring."""
    parameters = (checkpoint / "model.safetensors").stat().st_size // 2
    require_disk_space(data.parent, parameters * 5)
    write_weights(htp_tensors(spec, checkpoint), data, index)
