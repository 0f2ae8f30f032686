"""LoRA adapters: what they need of a base model, and merging them into it.

What is read here is the folder that training leaves, in the form of peft: adapter_config.json and
adapter_model.safetensors. Merging is peft's; before and after it, everything is compared.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapbake.adapter_base import ADAPTER_CONFIG
from snapbake.errors import SnapbakeError
from snapbake.families import DecoderSpec, expected_tensors
from snapbake.folder_json import read_object
from snapbake.safetensors_file import FLOAT_TYPES, TensorInfo, read_header, scan_tensors

_WEIGHTS = "adapter_model.safetensors"
_FACTOR = re.compile(r"base_model\.model\.(?P<module>.+)\.(?P<part>lora_A|lora_B)\.weight")
_MAGNITUDE = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_magnitude_vector(\.weight)?")
_EXPORT = "merge it with `llamafactory-cli export`"

# What makes an adapter more than products of two matrices on Linear layers: key -> harmless values.
_HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "alora_invocation_tokens": (None,),
    "arrow_config": (None,),
    "bias": ("none",),
    "corda_config": (None,),
    "eva_config": (None,),
    # The other ways to initialise change the base model too.
    "init_lora_weights": (True, False, "gaussian"),
    "layer_replication": (None,),
    "loftq_config": (None, {}),
    "lora_bias": (None, False),
    # Names a module that peft would import.
    "megatron_config": (None,),
    "modules_to_save": (None, []),
    "peft_type": ("LORA",),
    "target_parameters": (None, []),
    "task_type": ("CAUSAL_LM", None),
    "trainable_token_indices": (None,),
    "use_qalora": (None, False),
}


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter; `ranks` are the ranks of its modules, smallest and largest."""

    folder: Path
    tensors: Mapping[str, TensorInfo]
    ranks: tuple[int, int]


def read_adapter(folder: Path, spec: DecoderSpec, base: Path) -> Adapter:
    """Judge an adapter against the model that it is for, by its configuration and headers.

    Raises SnapbakeError when it is not plain LoRA on Linear layers, and when a tensor has no place
    or another shape in the base model.
    """
    config = read_object(folder / ADAPTER_CONFIG)
    for key, allowed in _HARMLESS.items():
        value = config.get(key, allowed[0])
        if value not in allowed:
            raise SnapbakeError(
                f"{folder / ADAPTER_CONFIG} has {key} {value!r}, which snapbake does not merge; "
                f"{_EXPORT} and give the folder that it writes"
            )
    path = folder / _WEIGHTS
    if not path.is_file():
        raise SnapbakeError(
            f"{folder} has no {_WEIGHTS}; copy the whole folder of the adapter, or {_EXPORT}"
        )
    tensors = read_header(path)
    if not tensors:
        raise SnapbakeError(f"{path} has no tensors; copy the whole folder of the adapter")
    linears = {
        name.removesuffix(".weight"): shape
        for name, shape in expected_tensors(spec).items()
        if len(shape) == 2 and "embed_tokens" not in name
    }
    factors: dict[str, dict[str, TensorInfo]] = {}
    for name, tensor in tensors.items():
        match = _FACTOR.fullmatch(name) or _MAGNITUDE.fullmatch(name)
        if match is None or match["module"] not in linears or tensor.dtype not in FLOAT_TYPES:
            raise SnapbakeError(
                f"{path}: tensor {name} ({tensor.dtype} {list(tensor.shape)}) does not belong to a "
                f"Linear layer of {base}; if that is the base model, {_EXPORT}"
            )
        parts = factors.setdefault(match["module"], {})
        parts[match.groupdict().get("part", "magnitude")] = tensor
    ranks = [_rank(module, parts, linears[module], base) for module, parts in factors.items()]
    return Adapter(folder, tensors, (min(ranks), max(ranks)))


def merge_adapter(adapter: Adapter, base: Path, output: Path) -> None:
    """Write the whole model, `base` with the adapter merged, in float32 to `output`.

    `base` is a normalised folder. Raises SnapbakeError when peft does not use every tensor of the
    adapter, when merging changes nothing, and when the merged model computes other logits than the
    model with the adapter beside it.
    """
    import torch
    from peft import PeftModel, get_peft_model_state_dict
    from transformers import AutoModelForCausalLM

    scan_tensors(adapter.tensors.values())
    path = adapter.folder / _WEIGHTS
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, local_files_only=True)
    ids = torch.arange(min(48, model.config.vocab_size))[None]
    with torch.no_grad():
        plain = model(ids).logits
        try:
            wrapped = PeftModel.from_pretrained(model, adapter.folder, torch_device="cpu").eval()
        except Exception as error:  # peft raises many kinds for configurations that do not fit
            raise SnapbakeError(
                f"peft cannot apply {adapter.folder} ({str(error).splitlines()[0][:200]}); "
                f"{_EXPORT}"
            ) from error
        # Without the embedding, for which peft would ask the hub whether it was resized.
        applied = get_peft_model_state_dict(wrapped, save_embedding_layers=False)
        differing = sorted(applied.keys() ^ adapter.tensors.keys())
        if differing:
            raise SnapbakeError(
                f"{path} and {ADAPTER_CONFIG} disagree about {differing[0]}: the tensor is in one "
                "of them only; copy the whole folder of the adapter"
            )
        expected = wrapped(ids).logits
        try:
            merged = wrapped.merge_and_unload(safe_merge=True)
        except ValueError as error:  # a weight that is not finite
            raise SnapbakeError(
                f"merging {adapter.folder} gives NaN or infinity ({error}); take an earlier "
                "checkpoint of the training"
            ) from error
        found = merged(ids).logits
    if torch.equal(expected, plain):
        raise SnapbakeError(
            f"{adapter.folder} changes nothing in {base.name}: it was not trained, or its scale "
            "is 0; take the adapter of a finished training"
        )
    if (found - expected).abs().max() > 1e-4 * (expected.max() - expected.min()):
        raise SnapbakeError(
            f"the model with {adapter.folder} merged computes other logits than with the adapter "
            f"beside it; {_EXPORT}"
        )
    merged.save_pretrained(output)


def _rank(module: str, parts: Mapping[str, TensorInfo], shape: tuple[int, ...], base: Path) -> int:
    """Return the rank of a module's factors [rank, in] and [out, rank]; raise unless they fit."""
    path = next(iter(parts.values())).file
    if "lora_A" not in parts or "lora_B" not in parts:
        raise SnapbakeError(
            f"{path} has {' and '.join(sorted(parts))} of {module} and lora_A and lora_B are "
            "needed; copy the whole folder of the adapter"
        )
    first, second = parts["lora_A"].shape, parts["lora_B"].shape
    if len(first) != 2 or first[0] < 1 or (second, first[1]) != ((shape[0], first[0]), shape[1]):
        raise SnapbakeError(
            f"{path}: lora_A {list(first)} and lora_B {list(second)} of {module} do not fit the "
            f"{list(shape)} of {base}; give the base model that the adapter was trained on"
        )
    return first[0]
