"""A GGUF file as a Hugging Face folder, for small models that are published as GGUF only.

transformers dequantises the weights. The tokenizer is built here from the file's own metadata:
the conversion in transformers 4.57 takes the wrong end token, adds a start token that the file
says not to add, and ignores the pre-tokenizer.
"""

import json
from pathlib import Path
from typing import Any

from snapbake.errors import SnapbakeError

# `tokenizer.ggml.pre` -> whether digits are split one by one before the byte-level pattern.
_PRE_TOKENIZERS = {"smollm": True, "gpt-2": False}
_CONTROL_TOKEN = 3  # token_type of llama.cpp


def convert_gguf(path: Path, folder: Path) -> str | None:
    """Write the model of a GGUF file into `folder`; return the licence that the file states.

    Weights become float32: a 4-bit code times a half-precision scale plus a minimum does not fit
    bfloat16 or float16, and float32 holds it exactly.
    """
    fields = _read_fields(path)
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise SnapbakeError(
            f"{path} is a GGUF file of architecture {architecture!r}; only 'llama' is supported, "
            "give the model as a Hugging Face folder"
        )
    scaled = [key for key in fields if ".rope.scaling." in key]
    if scaled:
        raise SnapbakeError(
            f"{path} has {scaled[0]}, which is lost in the conversion; give the model as a Hugging "
            "Face folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(fields, path, folder)
    _write_weights(path, folder)
    licence = fields.get("general.license")
    return licence if isinstance(licence, str) else None


def _read_fields(path: Path) -> dict[str, Any]:
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        return {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, IndexError, OSError) as error:
        raise SnapbakeError(
            f"{path} cannot be read as GGUF ({error}); download it again"
        ) from error


def _write_weights(path: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    model.save_pretrained(folder)


def _write_tokenizer(fields: dict[str, Any], path: Path, folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in _PRE_TOKENIZERS or "tokenizer.ggml.merges" not in fields:
        raise SnapbakeError(
            f"{path} has a tokenizer of kind {kind!r} with pre-tokenizer {pre!r}; supported are "
            f"'gpt2' with {', '.join(_PRE_TOKENIZERS)}, give the model as a Hugging Face folder"
        )
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
        if _PRE_TOKENIZERS[pre]
        else byte_level
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = fields.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None:
            config[f"{name}_token"] = tokens[token_id]
    if fields.get("tokenizer.chat_template"):
        config["chat_template"] = fields["tokenizer.chat_template"]
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
