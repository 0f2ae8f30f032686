"""Make the folders below exports/ again, with the real LLaMA-Factory.

Run it with the Python of an environment that has llamafactory 0.9.5 and one of the two major
versions of transformers that it allows; the folders go to exports/transformers-4 or -5:

    python3 -m venv lf4 && lf4/bin/pip install torch llamafactory==0.9.5 transformers==4.57.6
    python3 -m venv lf5 && lf5/bin/pip install torch llamafactory==0.9.5 transformers==5.6.0
    lf4/bin/python tests/checkpoint/make_exports.py
    lf5/bin/python tests/checkpoint/make_exports.py

For each family: `full`, `sharded`, `resized` (vocabulary), `legacy` (a .bin; transformers 5 ignores
the option), `adapter` (what LoRA training leaves) and `merged`. logits.npz has what this version of
transformers computes for token ids 3 to 26 with each of them, with the adapter beside its base for
`adapter`. Training is not the same on every machine, so new folders have new numbers.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from peft import PeftModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

COMMAND = Path(sys.executable).with_name("llamafactory-cli")
OUTPUT = Path(__file__).parent / "exports" / f"transformers-{transformers.__version__[0]}"
IDS = torch.arange(3, 27)[None]
TEMPLATES = {"qwen2": "qwen", "qwen3": "qwen3_nothink", "llama": "chatml"}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
RECORDS = [
    {"instruction": "What is the capital of France?", "input": "", "output": "Paris."},
    {"instruction": "Name a colour.", "input": "", "output": "Blue is a colour."},
    {"instruction": "Add the numbers.", "input": "20 and 24", "output": "Forty-four."},
    {"instruction": "Say good morning.", "input": "in Spanish", "output": "Buenos dias."},
]
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2": {"rope_theta": 1e6, "tie_word_embeddings": True, "num_hidden_layers": 1},
    "qwen3": {"rope_theta": 1e6, "tie_word_embeddings": True, "num_hidden_layers": 2},
    "llama": {
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "tie_word_embeddings": False,
        "num_hidden_layers": 1,
    },
}


def main() -> None:
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    logits = {}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        write_data(scratch / "data")
        for family in CONFIGS:
            base = f"models/tiny-{family}"
            make_base(family, scratch / base)
            train(scratch, base, family)
            for kind, options in export_options(base, family).items():
                target = OUTPUT / f"{family}-{kind}"
                run("export", scratch, {"export_dir": str(target), **options})
                logits[target.name] = compute(AutoModelForCausalLM.from_pretrained(target))
            target = OUTPUT / f"{family}-adapter"
            # Not what only says how this training went: state, logs, pickled arguments.
            unwanted = ("checkpoint-*", "train*", "all_results*", "*.bin", "*.md", "*.png")
            shutil.copytree(
                scratch / "saves" / family, target, ignore=shutil.ignore_patterns(*unwanted)
            )
            model = AutoModelForCausalLM.from_pretrained(scratch / base, dtype=torch.float32)
            logits[target.name] = compute(PeftModel.from_pretrained(model, target))
    np.savez_compressed(OUTPUT / "logits.npz", **logits)


def make_base(family: str, folder: Path) -> None:
    """Write a random model with the tokenizer class of its family, as it lies on a hub."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=288 if family == "llama" else 285,  # Qwen's special tokens come after
        special_tokens=SPECIAL if family == "llama" else [],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([" ".join(record.values()) for record in RECORDS], trainer)
    folder.mkdir(parents=True)
    settings: dict[str, Any] = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    if family == "llama":
        tokenizer.save(str(folder / "tokenizer.json"))
        settings |= {"bos_token": "<|im_start|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    else:
        tokenizer.model.save(str(folder))
        settings |= {"tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "unk_token": None}
    settings["chat_template"] = CHAT_TEMPLATE
    settings["additional_special_tokens"] = SPECIAL[1:]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    loaded = AutoTokenizer.from_pretrained(folder)
    loaded.save_pretrained(folder)
    config = AutoConfig.for_model(
        family,
        vocab_size=288,
        hidden_size=128,
        intermediate_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=512,
        initializer_range=0.1,
        eos_token_id=loaded.eos_token_id,
        pad_token_id=loaded.pad_token_id,
        **CONFIGS[family],
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            parameter.data += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(folder)


def export_options(base: str, family: str) -> dict[str, dict[str, Any]]:
    common = {"model_name_or_path": base, "template": TEMPLATES[family]}
    options: dict[str, dict[str, Any]] = {
        "full": common,
        "sharded": {**common, "export_size": 0},  # a tensor a file; the least of a real one is 1 GB
        "resized": {**common, "add_tokens": "<tool>,</tool>", "resize_vocab": True},
        "merged": {**common, "adapter_name_or_path": f"saves/{family}"},
    }
    if transformers.__version__.startswith("4."):
        options["legacy"] = {**common, "export_legacy_format": True}
    return options


def write_data(folder: Path) -> None:
    folder.mkdir()
    (folder / "tiny.json").write_text(json.dumps(RECORDS * 4))
    (folder / "dataset_info.json").write_text(json.dumps({"tiny": {"file_name": "tiny.json"}}))


def train(scratch: Path, base: str, family: str) -> None:
    options = {
        "model_name_or_path": base,
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "lora",
        "lora_rank": 4,
        "lora_target": "all",
        "dataset": "tiny",
        "dataset_dir": "data",
        "template": TEMPLATES[family],
        "cutoff_len": 64,
        "output_dir": f"saves/{family}",
        "max_steps": 4,
        "learning_rate": 0.02,
        "report_to": "none",
        "use_cpu": True,
        "seed": 1,
    }
    run("train", scratch, options)


def run(task: str, folder: Path, options: dict[str, Any]) -> None:
    path = folder / f"{task}.yaml"
    path.write_text(json.dumps(options))  # JSON is YAML
    subprocess.run([str(COMMAND), task, str(path)], cwd=folder, check=True)


def compute(model: Any) -> np.ndarray:
    with torch.no_grad():
        return model.float().eval()(IDS).logits.numpy()


if __name__ == "__main__":
    main()
