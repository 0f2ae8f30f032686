"""The identities of the weights and of the model, and where they go."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from gate_tools import as_transformers_5, edit, edit_tensors, prepare, shard
from snapbake.calibration import write_selection
from snapbake.checkpoint import check_checkpoint
from snapbake.errors import SnapbakeError
from snapbake.files import read_json
from snapbake.safetensors_file import stored_identity
from tiny_models import make_tiny_model

DATA = Path(__file__).parents[2] / "config" / "data" / "instructions.json"
EXPORTS = Path(__file__).parent / "exports"
YARN = {"rope_type": "yarn", "factor": 4.0}


def test_the_checkpoint_notes_its_identity(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "qwen3")

    identity = prepare(folder, tmp_path)["sha256"]

    weights = tmp_path / "checkpoint" / "model.safetensors"
    assert stored_identity(weights) == identity
    assert stored_identity(folder / "model.safetensors") is None
    assert stored_identity(tmp_path / "none") is None
    # Readers of the format do not mind.
    original = load_file(folder / "model.safetensors")
    assert all(torch.equal(original[name], tensor) for name, tensor in load_file(weights).items())


def test_one_bit_of_one_weight_is_another_identity(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "llama")
    first = prepare(folder, tmp_path / "1")["sha256"]
    shard(make_tiny_model(tmp_path / "sharded", "llama"))
    edit_tensors(
        folder, lambda tensors: tensors["model.norm.weight"].view(torch.int32)[7].bitwise_xor_(1)
    )

    assert prepare(tmp_path / "sharded", tmp_path / "2")["sha256"] == first
    assert prepare(folder, tmp_path / "3")["sha256"] != first


def test_the_manifest_of_the_calibration_has_it(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "qwen2")
    identity = prepare(folder, tmp_path)["sha256"]

    write_selection(DATA, None, tmp_path / "checkpoint", 512, 10, 4, 1, tmp_path / "calibration")

    manifest = read_json(tmp_path / "calibration" / "manifest.json")
    assert manifest["weights_sha256"] == identity


def as_bin(folder: Path) -> None:
    """Rewrite a folder with PyTorch's file, the tied head in it as saved."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]}, folder / BIN)


def with_defaults(folder: Path) -> None:
    edit(
        folder / "config.json",
        rms_norm_eps=0.000001,
        rope_theta=10000,
        rope_scaling=YARN
        | {"factor": 4, "beta_fast": 32, "original_max_position_embeddings": 2048},
        max_position_embeddings=8192.0,
        head_dim=...,
        sliding_window=None,
    )


BIN = "pytorch_model.bin"
SAME: dict[str, Any] = {
    "shards": shard,
    "a .bin": as_bin,
    "transformers 5": as_transformers_5,
    "transformers 5, shards": lambda folder: (as_transformers_5(folder), shard(folder)),
    "numbers written otherwise": with_defaults,
    "older key": lambda folder: edit(
        folder / "config.json", rope_scaling={"type": "yarn", "factor": 4.0}
    ),
    "the name of another class": lambda folder: edit(
        folder / "config.json", architectures=["Qwen3ForCausalLM"]
    ),
    "other sampling": lambda folder: edit(
        folder / "generation_config.json", temperature=0.5, do_sample=True
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_model_has_the_same_identity(name: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "qwen2", rope_scaling=YARN)
    first = check_checkpoint(folder, None)
    SAME[name](folder)

    second = prepare(folder, tmp_path, sha256=first["model_sha256"])

    assert second["model_sha256"] == first["model_sha256"] != first["sha256"]
    assert check_checkpoint(tmp_path / "checkpoint", None)["model_sha256"] == first["model_sha256"]


def config(**changes: Any) -> Any:
    return lambda folder: edit(folder / "config.json", **changes)


OTHER: dict[str, Any] = {
    "epsilon": config(rms_norm_eps=1e-5),
    "base": config(rope_theta=1e6),
    "no scaling": config(rope_scaling=None),
    "another factor": config(rope_scaling=YARN | {"factor": 2.0}),
    "another kind": config(rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "the length that is scaled": config(max_position_embeddings=1024),
    "heads": config(num_attention_heads=4, num_key_value_heads=2, head_dim=32),
}


@pytest.mark.parametrize("name", OTHER)
def test_other_numbers_are_another_model(name: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "qwen2", rope_scaling=YARN)
    first = check_checkpoint(folder, None)
    OTHER[name](folder)

    found = check_checkpoint(folder, None)
    with pytest.raises(SnapbakeError) as caught:
        prepare(folder, tmp_path / "out", sha256=first["model_sha256"])

    assert found["sha256"] == first["sha256"]
    assert found["model_sha256"] != first["model_sha256"]
    assert str(caught.value) == (
        f"the model in {folder} has SHA-256 {found['model_sha256']} (its weights "
        f"{first['sha256']}) and {first['model_sha256']} was expected; copy the model again "
        "(config.json alone if the weights are the right ones), or correct the configuration if "
        "it was trained anew"
    )
    assert list((tmp_path / "out").iterdir()) == []


def test_the_identity_of_the_weights_is_not_that_of_the_model(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "llama")
    summary = check_checkpoint(folder, None)

    with pytest.raises(SnapbakeError) as caught:
        prepare(folder, tmp_path / "out", sha256=summary["sha256"])

    assert str(caught.value).startswith(f"{summary['sha256']}, which was expected, is the SHA-256")
    assert f"the model has {summary['model_sha256']}; write that" in str(caught.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_an_adapter_has_the_identity_of_the_merged_model(tmp_path: Path) -> None:
    base = EXPORTS / "transformers-4" / "qwen3-full"
    adapter = shutil.copytree(EXPORTS / "transformers-4" / "qwen3-adapter", tmp_path / "adapter")
    merged = prepare(adapter, tmp_path / "1", base=base)["model_sha256"]

    again = prepare(adapter, tmp_path / "2", base=base, sha256=merged)
    checked = check_checkpoint(adapter, base)["model_sha256"]
    with pytest.raises(SnapbakeError, match=f"has SHA-256 {merged} .* and {checked} was expected"):
        prepare(adapter, tmp_path / "3", base=base, sha256=checked)

    assert again["model_sha256"] == merged
    assert checked == check_checkpoint(base, None)["model_sha256"]
    assert list((tmp_path / "3").iterdir()) == []
