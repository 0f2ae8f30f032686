"""Random tiny models in Hugging Face layout, made the same for the same seed.

The weights are shaped to show mistakes: norm weights are not one, biases are not zero, and a few
channels are outliers. Heads are 64 wide: HTP miscompiles fp16 graphs with heads of 32.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from snapbake.families import FAMILIES, expected_tensors, read_spec

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Enough text for a few hundred merges; what it says does not matter.
CORPUS = (
    "The user asks a question and the assistant gives a short answer.",
    "What is the capital of France? The capital of France is Paris.",
    "Name the largest ocean on the planet. The Pacific ocean is the largest one.",
    "How many days are in a leap year? A leap year has three hundred and sixty-six days.",
    "Which metal is liquid at room temperature? Mercury is liquid at room temperature.",
    "Translate good morning into Spanish. Buenos dias means good morning.",
    "Write one sentence about the sea. The sea keeps moving long after the wind has gone.",
    "Explain why bread rises before it is baked: yeast eats sugar and makes gas in the dough.",
)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def make_tiny_model(
    folder: Path,
    family: str,
    *,
    seed: int = 0,
    layers: int = 2,
    vocab: int = 512,
    tie: bool = True,
    dtype: str = "float32",
    **overrides: Any,
) -> Path:
    """Write a random model of `family` (llama, qwen2, qwen3) into `folder` and return `folder`.

    `overrides` replaces or adds keys of config.json, e.g. `num_attention_heads=4`,
    `rope_scaling={...}`; the tensors follow the config.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(family, layers=layers, vocab=vocab, tie=tie, dtype=dtype) | overrides
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "do_sample": False},
    )
    save_file(
        {name: tensor.to(_DTYPES[dtype]) for name, tensor in tiny_weights(config, seed).items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    _write_tokenizer(folder, vocab)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return folder


def tiny_config(
    family: str, *, layers: int, vocab: int, tie: bool, dtype: str = "float32"
) -> dict[str, Any]:
    """Return the content of config.json: hidden 128, two heads of 64 on one key/value head."""
    config: dict[str, Any] = {
        "architectures": [FAMILIES[family].architecture],
        "model_type": family,
        "vocab_size": vocab,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": tie,
        "torch_dtype": dtype,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if family != "qwen2":
        config["attention_bias"] = False
    if family == "llama":
        config["mlp_bias"] = False
    return config


def tiny_weights(config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """Return float32 tensors for a config, the same for the same seed on every machine."""
    random = np.random.default_rng(seed)
    weights = {}
    for name, shape in expected_tensors(read_spec(config)).items():
        noise = random.standard_normal(shape, dtype=np.float32)
        if "embed_tokens" in name:
            noise *= 0.15
            noise[:, [5, 77]] *= 8.0  # massive channels of the residual stream
        elif name.endswith("norm.weight"):
            noise = 1.0 + 0.25 * noise
        elif name.endswith(".bias"):
            noise *= 0.5
        else:
            noise *= 1.5 / np.sqrt(shape[-1])
            noise[3] *= 6.0  # one loud output channel
        weights[name] = torch.from_numpy(np.ascontiguousarray(noise, dtype=np.float32))
    return weights


def _write_tokenizer(folder: Path, vocab: int) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": 2048,
        },
    )


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
