"""The checkpoint gate: a Hugging Face folder is judged, then handed on in one normal form.

Judging (`inspect_checkpoint`) reads JSON and headers only and writes nothing. Writing
(`write_checkpoint`) streams the weights once, and looks at every value on the way.
"""

import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from snapbake.errors import SnapbakeError
from snapbake.families import DecoderSpec, read_spec, rope_settings
from snapbake.files import require_disk_space, write_json
from snapbake.folder_json import read_object
from snapbake.safetensors_file import TensorInfo, write_tensors
from snapbake.sources import Source, open_source
from snapbake.tokenizer_files import TokenizerFiles, prove_tokenizer, read_tokenizer
from snapbake.weight_files import find_weights, match_weights

OUTPUT_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)

_TORCH_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class Inspection:
    """A folder that was judged good: what it is, and what the normalised folder will hold."""

    folder: Path
    spec: DecoderSpec
    config: dict[str, Any]
    generation_config: dict[str, Any]
    tensors: Mapping[str, TensorInfo]
    tokenizer: TokenizerFiles
    normalisations: tuple[str, ...]

    @property
    def parameters(self) -> int:
        """Number of weights; a tied head is counted once."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @property
    def dtypes(self) -> dict[str, int]:
        """Number of tensors by safetensors type."""
        return dict(sorted(Counter(tensor.dtype for tensor in self.tensors.values()).items()))


def prepare_checkpoint(source: str, sha256: str | None, output: Path, summary: Path) -> None:
    """Fetch `source`, judge it, write the normalised folder `output` and the JSON `summary`.

    `source` and `sha256` are those of `open_source`. The summary says family, specification,
    number of weights, types, what was normalised, the identity of the weights, the source and its
    licence. Raises SnapbakeError for a model that is refused; nothing is written then.
    """
    with open_source(source, sha256, output.parent) as opened:
        inspection = inspect_checkpoint(opened.folder)
        identity = write_checkpoint(inspection, output)
    write_json(summary, _summary(inspection, identity, opened))


def inspect_checkpoint(folder: Path) -> Inspection:
    """Judge a folder without loading a tensor and without writing anything.

    Raises SnapbakeError, one sentence with the file, tensor or key and the way out, for everything
    that snapbake cannot build or that transformers would silently misread.
    """
    config = _read_config(folder)
    try:
        spec = read_spec(config)
    except SnapbakeError as error:  # its message starts with "config.json"
        raise SnapbakeError(f"{folder}/{error}") from error
    _refuse_configured(config, spec, folder)
    tensors, weight_notes = match_weights(spec, find_weights(folder), folder)
    tokenizer = read_tokenizer(folder, spec.vocab_size)
    normal, config_notes = _normalise_config(config, spec, tensors)
    generation, generation_notes = _generation_config(folder, config, tokenizer)
    return Inspection(
        folder=folder,
        spec=spec,
        config=normal,
        generation_config=generation,
        tensors=tensors,
        tokenizer=tokenizer,
        normalisations=(*config_notes, *weight_notes, *tokenizer.notes, *generation_notes),
    )


def write_checkpoint(inspection: Inspection, output: Path) -> str:
    """Write the normalised folder and return the identity of its weights (see `write_tensors`).

    The files appear in `output` when all of them are whole. A tokenizer or template that
    transformers cannot use, and NaN or infinity in a weight, raise SnapbakeError and leave
    `output` as it was.
    """
    size = sum(tensor.end - tensor.start for tensor in inspection.tensors.values())
    require_disk_space(output, size + (64 << 20))
    output.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        write_json(staging / "config.json", inspection.config)
        write_json(staging / "generation_config.json", inspection.generation_config)
        write_json(staging / "tokenizer_config.json", inspection.tokenizer.config)
        shutil.copyfile(inspection.tokenizer.tokenizer, staging / "tokenizer.json")
        (staging / "chat_template.jinja").write_text(
            inspection.tokenizer.chat_template, encoding="utf-8"
        )
        prove_tokenizer(staging, inspection.folder)
        identity = write_tensors(inspection.tensors.values(), staging / "model.safetensors")
        output.mkdir(exist_ok=True)
        for name in OUTPUT_FILES:
            (staging / name).replace(output / name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return identity


def _summary(inspection: Inspection, identity: str, source: Source) -> dict[str, Any]:
    return {
        "architecture": inspection.spec.architecture,
        "dtypes": inspection.dtypes,
        "family": inspection.spec.family,
        "licence": source.licence,
        "normalisations": list(inspection.normalisations),
        "parameters": inspection.parameters,
        "sha256": identity,
        "source": source.origin,
        "spec": asdict(inspection.spec),
        "tokens": len(inspection.tokenizer.token_ids),
    }


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.exists():
        raise SnapbakeError(f"{folder} does not exist; check the path of the model")
    if not folder.is_dir():
        raise SnapbakeError(
            f"{folder} is a file; give the folder that `llamafactory-cli export` wrote"
        )
    adapter = folder / "adapter_config.json"
    path = folder / "config.json"
    if adapter.is_file():
        base = _adapter_base(adapter)
        if path.is_file():
            raise SnapbakeError(
                f"{folder} has an adapter (adapter_config.json) beside whole weights, and it is "
                "not clear whether it is merged; export the model into an empty folder"
            )
        raise SnapbakeError(
            f"{folder} is a LoRA adapter, not a whole model; merge it with its base: "
            f"`llamafactory-cli export --model_name_or_path {base} --adapter_name_or_path "
            f"{folder} --finetuning_type lora --template <the training template> --export_dir "
            "<new folder>`"
        )
    if not path.is_file():
        raise SnapbakeError(
            f"{folder} has no config.json; give the folder that `llamafactory-cli export` wrote"
        )
    return read_object(path)


def _adapter_base(path: Path) -> str:
    base = read_object(path).get("base_model_name_or_path")
    return base if isinstance(base, str) and base else "<the base model>"


def _refuse_configured(config: Mapping[str, Any], spec: DecoderSpec, folder: Path) -> None:
    quantisation = config.get("quantization_config") or config.get("compression_config")
    if quantisation:
        method = quantisation.get("quant_method") if isinstance(quantisation, dict) else None
        raise SnapbakeError(
            f"{folder} is quantised already ({method or 'quantization_config'}); take the "
            "unquantised model and merge the adapter into that"
        )
    if config.get("auto_map"):
        raise SnapbakeError(
            f"{folder}: auto_map in config.json asks for code that comes with the model, which "
            "snapbake does not run; if it is a plain model of its family, remove the key"
        )
    heads = [path.name for path in sorted(folder.glob("value_head.*"))]
    if heads:
        raise SnapbakeError(
            f"{folder} has {heads[0]}: it is a reward model; export the language model"
        )
    architectures = config.get("architectures")
    if architectures is None:
        architectures = [spec.architecture]
    if not isinstance(architectures, list) or not str(architectures[:1]).endswith("ForCausalLM']"):
        raise SnapbakeError(
            f"{folder}: architectures in config.json is {architectures!r}; snapbake builds "
            f"language models ({spec.architecture} for this family) only"
        )


def _normalise_config(
    config: Mapping[str, Any], spec: DecoderSpec, tensors: Mapping[str, TensorInfo]
) -> tuple[dict[str, Any], list[str]]:
    """Return config.json with every key that matters written out, as transformers 4 reads it."""
    normal = dict(config)
    notes = []
    if config.get("architectures") != [spec.architecture]:
        notes.append(
            f"config.json: architectures {config.get('architectures')!r} became "
            f"['{spec.architecture}'], as model_type and the tensors prove"
        )
        normal["architectures"] = [spec.architecture]
    theta, scaling = rope_settings(config)
    if "rope_parameters" in normal:
        del normal["rope_parameters"]
        notes.append(
            "config.json: rope_parameters of transformers 5 became rope_theta and rope_scaling"
        )
    elif scaling != normal.get("rope_scaling"):
        notes.append("config.json: rope_scaling was written with rope_type")
    dtypes = {tensor.dtype for tensor in tensors.values()}
    dtype = _TORCH_DTYPES[dtypes.pop()] if len(dtypes) == 1 else "float32"
    said = normal.pop("dtype", None) or normal.get("torch_dtype")
    if said != dtype:
        notes.append(f"config.json: torch_dtype {said!r} became '{dtype}', the type of the tensors")
    explicit = {
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": spec.max_position_embeddings,
        "num_key_value_heads": spec.kv_heads,
        "rope_scaling": scaling,
        "rope_theta": theta,
        "tie_word_embeddings": spec.tied_embeddings,
        "torch_dtype": dtype,
    }
    added = sorted(key for key in explicit if key not in {**config, "torch_dtype": None})
    added = [key for key in added if not key.startswith("rope_")]
    if added:
        notes.append(f"config.json: wrote out {', '.join(added)}")
    # The name of the folder that the model once came from: no meaning, and it breaks equality.
    for key in ("_name_or_path", "_model_name_or_path"):
        normal.pop(key, None)
    return normal | explicit, notes


def _generation_config(
    folder: Path, config: Mapping[str, Any], tokenizer: TokenizerFiles
) -> tuple[dict[str, Any], list[str]]:
    path = folder / "generation_config.json"
    notes = []
    if path.is_file():
        content = read_object(path)
    else:
        content = {}
        notes.append("generation_config.json: made, as there was none")
    for name in ("bos_token", "eos_token", "pad_token"):
        key = f"{name}_id"
        if content.get(key) is None:
            known = config.get(key)
            value = tokenizer.special_id(name) if known is None else known
            if value is not None:
                content[key] = value
                if path.is_file():
                    notes.append(f"generation_config.json: added {key} {value}")
    return content, notes
