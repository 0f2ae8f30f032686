"""Folders that LLaMA-Factory 0.9.5 itself wrote, with transformers 4.57 and 5.6 (make_exports.py).

logits.npz is what the version of transformers that wrote a folder computes with it.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from gate_tools import logits, prepare, tree
from snapbake.checkpoint import check_checkpoint
from snapbake.errors import SnapbakeError
from snapbake.files import read_json

EXPORTS = Path(__file__).parent / "exports"
WRITERS = ("transformers-4", "transformers-5")
FAMILIES = ("llama", "qwen2", "qwen3")
IDS = torch.arange(3, 27)[None]
FOLDERS = sorted(path.parent for path in EXPORTS.glob("*/*/config.json"))
ADAPTERS = sorted(path.parent for path in EXPORTS.glob("*/*/adapter_config.json"))


def name_of(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def expected_logits(folder: Path) -> torch.Tensor:
    with np.load(folder.parent / "logits.npz") as arrays:
        return torch.from_numpy(arrays[folder.name])


def copy_adapter(folder: Path, target: Path) -> Path:
    """Copy an adapter with its base beside it, under the name that the adapter has for it."""
    family = folder.name.split("-")[0]
    shutil.copytree(folder.with_name(f"{family}-full"), target / f"tiny-{family}")
    return shutil.copytree(folder, target / "adapter")


def test_every_kind_is_there() -> None:
    kinds = {"transformers-4": ["legacy"], "transformers-5": []}
    expected = {
        f"{writer}/{family}-{kind}"
        for writer, more in kinds.items()
        for family in FAMILIES
        for kind in ["adapter", "full", "merged", "resized", "sharded", *more]
    }
    assert {name_of(folder) for folder in [*FOLDERS, *ADAPTERS]} == expected


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_an_export_means_what_its_writer_computes(folder: Path, tmp_path: Path) -> None:
    before = tree(folder)

    summary = prepare(folder, tmp_path)

    assert torch.equal(logits(tmp_path / "checkpoint", IDS), expected_logits(folder))
    assert tree(folder) == before
    assert summary["family"] == folder.name.split("-")[0]
    assert summary["dtypes"].keys() == {"BF16"}
    notes = " ".join(summary["normalisations"])
    assert ("rope_parameters" in notes) is (folder.parent.name == "transformers-5")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "checkpoint")
    assert tokenizer.eos_token == "<|im_end|>"
    said = "<|im_start|>user\nAdd 20 + 24<|im_end|>"
    assert tokenizer.decode(tokenizer(said).input_ids) == said


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("writer", WRITERS)
def test_the_layout_does_not_change_the_identity(writer: str, family: str, tmp_path: Path) -> None:
    folder = EXPORTS / writer
    kinds = ["full", "sharded", *(["legacy"] if writer == "transformers-4" else [])]

    summaries = [prepare(folder / f"{family}-{kind}", tmp_path / kind) for kind in kinds]

    assert len({summary["sha256"] for summary in summaries}) == 1
    assert len({summary["model_sha256"] for summary in summaries}) == 1
    weights = {(tmp_path / k / "checkpoint" / "model.safetensors").read_bytes() for k in kinds}
    assert len(weights) == 1


@pytest.mark.parametrize("folder", ADAPTERS, ids=name_of)
def test_an_adapter_is_merged_into_the_base_beside_it(folder: Path, tmp_path: Path) -> None:
    adapter = copy_adapter(folder, tmp_path / "in")
    before = tree(tmp_path)

    summary = prepare(adapter, tmp_path / "out")

    expected = expected_logits(folder)
    found = logits(tmp_path / "out" / "checkpoint", IDS)
    assert (found - expected).abs().max() < 1e-5 * (expected.max() - expected.min())
    # The base without the adapter is another model.
    base = expected_logits(folder.with_name(folder.name.replace("adapter", "full")))
    assert (found - base).abs().max() > 0.01
    assert summary["dtypes"].keys() == {"F32"}
    assert summary["source"]["base"]["location"].endswith(f"tiny-{summary['family']}")
    notes = " ".join(summary["normalisations"])
    assert "merged the LoRA adapter (rank 4" in notes
    assert "tokenizer of the adapter" in notes
    after = tree(tmp_path)
    assert {name for name in after if not name.startswith("out/checkpoint")} == set(before)


@pytest.mark.parametrize("family", FAMILIES)
def test_merging_is_what_llamafactory_does(family: str, tmp_path: Path) -> None:
    folder = EXPORTS / "transformers-4"
    prepare(folder / f"{family}-adapter", tmp_path, base=folder / f"{family}-full")

    found = logits(tmp_path / "checkpoint", IDS)
    merged = expected_logits(folder / f"{family}-merged")
    # LLaMA-Factory rounds the merged weights to bfloat16, snapbake keeps float32.
    assert (found - merged).abs().max() < 0.02 * (merged.max() - merged.min())


def test_an_adapter_without_its_base(tmp_path: Path) -> None:
    adapter = shutil.copytree(EXPORTS / "transformers-4" / "qwen3-adapter", tmp_path / "adapter")

    for judge in (lambda: prepare(adapter, tmp_path), lambda: check_checkpoint(adapter, None)):
        with pytest.raises(SnapbakeError) as caught:
            judge()
        for fact in (
            "LoRA adapter",
            "models/tiny-qwen3",
            "`base`",
            "llamafactory-cli export",
            f"--adapter_name_or_path {adapter}",
        ):
            assert fact in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def change_config(**changes: Any) -> Any:
    def damage(adapter: Path) -> None:
        path = adapter / "adapter_config.json"
        path.write_text(json.dumps(read_json(path) | changes))

    return damage


def change_tensors(change: Any) -> Any:
    from safetensors.torch import load_file, save_file

    def damage(adapter: Path) -> None:
        tensors = load_file(adapter / "adapter_model.safetensors")
        change(tensors)
        save_file(tensors, adapter / "adapter_model.safetensors")

    return damage


A = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"
B = A.replace("lora_A", "lora_B")
ADAPTER_REFUSALS: dict[str, tuple[Any, list[str]]] = {
    "not LoRA": (change_config(peft_type="IA3"), ["peft_type 'IA3'", "llamafactory-cli export"]),
    "a classifier": (change_config(task_type="SEQ_CLS"), ["task_type 'SEQ_CLS'"]),
    "whole modules beside": (
        change_config(modules_to_save=["embed_tokens"]),
        ["modules_to_save", "embed_tokens"],
    ),
    "a base that was changed first": (
        change_config(init_lora_weights="pissa"),
        ["init_lora_weights 'pissa'"],
    ),
    "a module to import": (
        change_config(megatron_config={}, megatron_core="os"),
        ["megatron_config"],
    ),
    "layers that are repeated": (change_config(layer_replication=[[0, 1]]), ["layer_replication"]),
    "broken JSON": (
        lambda adapter: (adapter / "adapter_config.json").write_text("{"),
        ["adapter_config.json", "line 1"],
    ),
    "no weights": (
        lambda adapter: (adapter / "adapter_model.safetensors").unlink(),
        ["adapter_model.safetensors"],
    ),
    "truncated weights": (
        lambda adapter: (adapter / "adapter_model.safetensors").write_bytes(
            (adapter / "adapter_model.safetensors").read_bytes()[:-8]
        ),
        ["adapter_model.safetensors", "truncated"],
    ),
    "half a pair": (change_tensors(lambda t: t.pop(B)), ["lora_A", "up_proj", "lora_B"]),
    "another shape": (
        change_tensors(lambda t: t.update({A: torch.ones(4, 64)})),
        ["up_proj", "[4, 64]", "[64, 128]", "base model"],
    ),
    "a layer that the base lacks": (
        change_tensors(lambda t: t.update({A.replace("layers.0", "layers.7"): t[A].clone()})),
        ["layers.7", "Linear layer"],
    ),
    "an embedding": (
        change_tensors(
            lambda t: t.update({"base_model.model.model.embed_tokens.weight": torch.ones(288, 128)})
        ),
        ["embed_tokens", "Linear layer"],
    ),
    "a pair that the configuration leaves out": (
        change_config(target_modules=["q_proj", "v_proj"]),
        ["disagree", "lora_A"],
    ),
    "a pair too few": (
        change_tensors(lambda t: (t.pop(A), t.pop(B))),
        ["disagree", "up_proj"],
    ),
    "not trained": (
        change_tensors(lambda t: t.update({n: v * 0 for n, v in t.items() if "lora_B" in n})),
        ["changes nothing"],
    ),
    "NaN": (change_tensors(lambda t: t[A].fill_(float("nan"))), ["up_proj.lora_A", "NaN"]),
}


@pytest.mark.parametrize("name", ADAPTER_REFUSALS)
def test_adapters_that_are_refused(name: str, tmp_path: Path) -> None:
    adapter = copy_adapter(EXPORTS / "transformers-4" / "qwen3-adapter", tmp_path)
    damage, facts = ADAPTER_REFUSALS[name]
    damage(adapter)
    before = tree(tmp_path)

    with pytest.raises(SnapbakeError) as caught:
        prepare(adapter, tmp_path)

    message = str(caught.value)
    assert [fact for fact in facts if fact not in message] == [], message
    assert "\n" not in message
    assert tree(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "tiny-qwen3"]


def test_a_base_of_another_size(tmp_path: Path) -> None:
    folder = EXPORTS / "transformers-4"
    with pytest.raises(SnapbakeError, match=r"layers\.1\..* does not belong to a Linear layer"):
        prepare(folder / "qwen3-adapter", tmp_path, base=folder / "qwen2-full")


def test_a_base_for_a_whole_model(tmp_path: Path) -> None:
    folder = EXPORTS / "transformers-4"
    with pytest.raises(SnapbakeError, match="not a LoRA adapter alone; remove the base"):
        prepare(folder / "qwen3-full", tmp_path, base=folder / "qwen2-full")


def test_an_adapter_is_checked_with_its_base(tmp_path: Path) -> None:
    adapter = copy_adapter(EXPORTS / "transformers-5" / "llama-adapter", tmp_path)
    before = tree(tmp_path)

    summary = check_checkpoint(adapter, None)

    assert tree(tmp_path) == before
    assert summary["adapter"]["ranks"] == [4, 4]
    assert summary["adapter"]["base"] == str(tmp_path / "tiny-llama")
    assert summary["family"] == "llama"
