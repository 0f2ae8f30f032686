"""pytorch_model.bin of tiny models, read back by torch and by transformers."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from snapbake.errors import SnapbakeError
from snapbake.torch_weights import write_torch_weights
from tiny_models import make_tiny_model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_holds_the_same_tensors(tmp_path: Path, dtype: str) -> None:
    checkpoint = make_tiny_model(tmp_path / "model", "qwen2", dtype=dtype, tie=False)

    write_torch_weights(checkpoint, tmp_path / "torch" / "pytorch_model.bin")

    state = torch.load(tmp_path / "torch" / "pytorch_model.bin", weights_only=True)
    original = load_file(checkpoint / "model.safetensors")
    assert state.keys() == original.keys()
    assert all(state[name].dtype == tensor.dtype for name, tensor in original.items())
    assert all(torch.equal(state[name], tensor) for name, tensor in original.items())


def test_a_tied_head_is_stored_once(tiny_model: Path, tmp_path: Path) -> None:
    output = tmp_path / "pytorch_model.bin"

    write_torch_weights(tiny_model, output)

    state = torch.load(output, weights_only=True)
    head, embedding = state["lm_head.weight"], state["model.embed_tokens.weight"]
    assert head.untyped_storage().data_ptr() == embedding.untyped_storage().data_ptr()
    weights = (tiny_model / "model.safetensors").stat().st_size
    assert output.stat().st_size < weights + 20_000


def test_transformers_loads_the_same_model(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "legacy"
    folder.mkdir()
    shutil.copy(tiny_model / "config.json", folder)
    write_torch_weights(tiny_model, folder / "pytorch_model.bin")
    ids = torch.arange(12)[None]

    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    original = AutoModelForCausalLM.from_pretrained(tiny_model)

    assert not any(info.values())
    assert model.lm_head.weight is model.model.embed_tokens.weight
    with torch.no_grad():
        assert torch.equal(model(ids).logits, original(ids).logits)


def test_equal_weights_give_equal_bytes(tiny_model: Path, tmp_path: Path) -> None:
    write_torch_weights(tiny_model, tmp_path / "first" / "pytorch_model.bin")
    write_torch_weights(tiny_model, tmp_path / "second" / "other_name.bin")

    first = (tmp_path / "first" / "pytorch_model.bin").read_bytes()
    assert first == (tmp_path / "second" / "other_name.bin").read_bytes()


def test_a_folder_that_is_not_normalised_is_refused(tmp_path: Path) -> None:
    checkpoint = make_tiny_model(tmp_path / "model", "llama", num_hidden_layers=3)
    config = checkpoint / "config.json"
    config.write_text(
        config.read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 2')
    )

    with pytest.raises(SnapbakeError, match=r"prepare_checkpoint\.py"):
        write_torch_weights(checkpoint, tmp_path / "out" / "pytorch_model.bin")

    assert not (tmp_path / "out").exists()
