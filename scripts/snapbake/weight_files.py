"""Which files of a Hugging Face folder are its weights, and whether they agree with each other.

transformers takes the first file that it knows and says nothing about the rest, so a stale
`model.safetensors` wins over newer shards. Here everything that is ambiguous is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from snapbake.errors import SnapbakeError
from snapbake.families import DecoderSpec, expected_tensors
from snapbake.folder_json import read_object
from snapbake.safetensors_file import FLOAT_TYPES, TensorInfo, equal_bytes, read_header
from snapbake.torch_file import read_torch_file


@dataclass(frozen=True)
class _Layout:
    """The names under which transformers saves weights in one format."""

    single: str
    index: str
    shards: str
    read: Callable[[Path], dict[str, TensorInfo]]


_LAYOUTS = (
    _Layout(
        "model.safetensors",
        "model.safetensors.index.json",
        "model-*-of-*.safetensors",
        read_header,
    ),
    _Layout(
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "pytorch_model-*-of-*.bin",
        read_torch_file,
    ),
)

# What a tensor of this name tells about the folder, in the order in which it is looked for.
_TELLTALES: Mapping[str, str] = {
    ".qweight": "it is quantised (GPTQ or AWQ); take the unquantised model",
    ".qzeros": "it is quantised (GPTQ or AWQ); take the unquantised model",
    ".absmax": "it is quantised (bitsandbytes); take the unquantised model",
    ".quant_map": "it is quantised (bitsandbytes); take the unquantised model",
    ".weight_scale": "it is quantised; take the unquantised model",
    "lora_": "a LoRA adapter is not merged into it; export it with `llamafactory-cli export`",
    "base_model.model.": "its names keep a peft wrapper; export it with `llamafactory-cli export`",
    "_orig_mod.": "its names keep a torch.compile wrapper; save the model that was compiled",
    "module.": "its names keep a DataParallel wrapper; save `model.module` instead",
    "v_head.": "it is a reward model with a value head; export the language model",
    "score.": "it is a classifier; export the language model",
    "classifier.": "it is a classifier; export the language model",
}


def find_weights(folder: Path) -> dict[str, TensorInfo]:
    """Return the tensors of a folder by name, from one file of weights or from shards.

    Only headers are read. Raises SnapbakeError when there are no weights, when it is not clear
    which files are, and when shards, index and headers disagree.
    """
    found = {layout: present for layout in _LAYOUTS if (present := _weight_names(folder, layout))}
    if not found:
        raise SnapbakeError(
            f"{folder} has no weights ({_LAYOUTS[0].single}); give the folder of a whole export"
        )
    if len(found) > 1:
        first, second = (names[0] for names in found.values())
        raise SnapbakeError(
            f"{folder} has both {first} and {second}, and one of them is stale; remove what the "
            "last export did not write"
        )
    ((layout, names),) = found.items()
    if names == [layout.single]:
        return layout.read(folder / layout.single)
    if layout.single in names:
        raise SnapbakeError(
            f"{folder} has both {layout.single} and shards, and one of them is stale; remove the "
            "one that was not written by the last export"
        )
    if layout.index in names:
        return _read_shards(folder, layout)
    raise SnapbakeError(
        f"{folder} has shards such as {names[0]} and no {layout.index}; copy the whole export"
    )


def _weight_names(folder: Path, layout: _Layout) -> list[str]:
    single = [name for name in (layout.single, layout.index) if (folder / name).exists()]
    return single + sorted(path.name for path in folder.glob(layout.shards))


def match_weights(
    spec: DecoderSpec, found: Mapping[str, TensorInfo], folder: Path
) -> tuple[dict[str, TensorInfo], list[str]]:
    """Return the tensors that the model uses, and what was left out and why.

    Left out are the head that a tied model repeats and the rotary buffers of old Llama exports.
    Raises SnapbakeError for tensors that are missing, not expected, of another shape, or not
    float, and for a head that differs from the embedding that it is tied to.
    """
    used = dict(found)
    notes = []
    buffers = [name for name in used if name.endswith(".rotary_emb.inv_freq")]
    if buffers:
        notes.append(f"left out {len(buffers)} rotary_emb.inv_freq buffers, which are computed")
    for name in buffers:
        del used[name]
    expected = expected_tensors(spec)
    head, embedding = "lm_head.weight", "model.embed_tokens.weight"
    if spec.tied_embeddings and head in used and embedding in used:
        if not equal_bytes(used[head], used[embedding]):
            raise SnapbakeError(
                f"{folder}: lm_head.weight differs from the embedding while config.json says "
                "tie_word_embeddings true; if the head was trained on its own, set it to false"
            )
        del used[head]
        notes.append("left out lm_head.weight, which repeats the tied embedding")
    unexpected = sorted(set(used) - set(expected))
    missing = sorted(set(expected) - set(used))
    if unexpected:
        raise SnapbakeError(_unexpected(unexpected, spec, folder))
    if missing == [head]:
        raise SnapbakeError(
            f"{folder} has no lm_head.weight and config.json does not say tie_word_embeddings "
            "true; if the base model ties its head to the embedding, set it to true, else export "
            "the model again"
        )
    if missing:
        raise SnapbakeError(
            f"{folder} misses {len(missing)} of {len(expected)} tensors of a {spec.family} model, "
            f"the first is {missing[0]}; copy the whole export, or take the config.json that "
            "belongs to it"
        )
    for name, shape in expected.items():
        tensor = used[name]
        if tensor.shape != shape:
            raise SnapbakeError(_wrong_shape(tensor, shape, spec))
        if tensor.dtype not in FLOAT_TYPES:
            raise SnapbakeError(
                f"{tensor.file}: tensor {name} has type {tensor.dtype}; snapbake takes float32, "
                "float16 and bfloat16 weights, so take the model before it was quantised"
            )
    return {name: used[name] for name in expected}, notes


def _read_shards(folder: Path, layout: _Layout) -> dict[str, TensorInfo]:
    index = folder / layout.index
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise SnapbakeError(f"{index} has no weight_map; copy the whole export again")
    names = {str(name) for name in weight_map.values()}
    tensors: dict[str, TensorInfo] = {}
    for name in sorted(names):
        if Path(name).name != name:
            raise SnapbakeError(f"{index} names {name}, which is not a file of its own folder")
        if not (folder / name).is_file():
            raise SnapbakeError(f"{folder} misses the shard {name}; copy the whole export again")
        for key, tensor in layout.read(folder / name).items():
            if weight_map.get(key) != name:
                raise SnapbakeError(
                    f"{folder / name} holds tensor {key}, which {index.name} places in "
                    f"{weight_map.get(key, 'no shard')}; the shards and the index are not of one "
                    "export, copy it again"
                )
            tensors[key] = tensor
    absent = sorted(set(weight_map) - set(tensors))
    if absent:
        raise SnapbakeError(
            f"{index} places tensor {absent[0]} in {weight_map[absent[0]]}, which does not have "
            "it; the shards and the index are not of one export, copy it again"
        )
    present = sorted(path.name for path in folder.glob(layout.shards))
    stale = [name for name in present if name not in names]
    if stale:
        raise SnapbakeError(
            f"{folder} has the shard {stale[0]}, which {index.name} does not name; remove what is "
            "left of an earlier export"
        )
    return tensors


def _unexpected(names: list[str], spec: DecoderSpec, folder: Path) -> str:
    for mark, meaning in _TELLTALES.items():
        telling = [name for name in names if mark in name]
        if telling:
            return f"{folder} has tensor {telling[0]}: {meaning}"
    return (
        f"{folder} has {len(names)} tensors that config.json (model_type {spec.family}, "
        f"num_hidden_layers {spec.layers}) does not account for, the first is {names[0]}; take the "
        "config.json that belongs to the weights"
    )


def _wrong_shape(tensor: TensorInfo, shape: tuple[int, ...], spec: DecoderSpec) -> str:
    found = f"{tensor.file}: tensor {tensor.name} is {list(tensor.shape)}"
    rows_differ = len(tensor.shape) == len(shape) and tensor.shape[1:] == shape[1:]
    if rows_differ and shape[0] == spec.vocab_size:
        return (
            f"{found} and config.json says vocab_size {spec.vocab_size}; after resize_vocab or "
            "added tokens the two must agree, export the model again with the training options"
        )
    return (
        f"{found}, where config.json asks for {list(shape)}; take the config.json that belongs to "
        "the weights"
    )
