"""The identity of the weights, from the checkpoint into what is made of it."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from gate_tools import edit_tensors, prepare, shard
from snapbake.calibration import write_selection
from snapbake.files import read_json
from snapbake.safetensors_file import stored_identity
from tiny_models import make_tiny_model

DATA = Path(__file__).parents[2] / "config" / "data" / "instructions.json"


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
