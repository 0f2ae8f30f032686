"""pytorch_model.bin: the weights of a normalised folder as a PyTorch state dictionary."""

from pathlib import Path

from snapbake.errors import SnapbakeError
from snapbake.families import expected_tensors, read_spec
from snapbake.files import atomic_path, read_json, require_disk_space, require_file


def write_torch_weights(checkpoint: Path, output: Path) -> None:
    """Write the tensors of `checkpoint` (a normalised folder) to `output`, types unchanged.

    A tied head shares the storage of the embedding, as it does in the model, so it is stored once.
    The file loads with `torch.load(weights_only=True)`, and equal weights give equal bytes.
    Raises SnapbakeError when the folder is not normalised or the disk is too small.
    """
    import torch
    from safetensors import safe_open

    spec = read_spec(read_json(checkpoint / "config.json"))
    weights = checkpoint / "model.safetensors"
    require_file(weights)
    require_disk_space(output.parent, weights.stat().st_size + (1 << 20))
    state = {}
    with safe_open(weights, framework="pt") as tensors:
        names = expected_tensors(spec)
        if set(tensors.keys()) != set(names):
            raise SnapbakeError(
                f"{weights} does not have the tensors that config.json asks for; make the folder "
                "with prepare_checkpoint.py"
            )
        for name in names:
            state[name] = tensors.get_tensor(name)
    if spec.tied_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    # To a stream: given a path, torch writes the (temporary) file name into the archive.
    with atomic_path(output) as temporary, temporary.open("wb") as stream:
        torch.save(state, stream)
