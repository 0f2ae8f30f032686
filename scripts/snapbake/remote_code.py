"""Code that comes with a model: run only on trust, and only to show that it is not needed.

snapbake builds the networks of its families, not what a modeling_*.py may compute. So a model with
code of its own is taken when that code computes what transformers' own class of the family does,
and is refused otherwise; the code is left out of what is handed on.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from snapbake.errors import SnapbakeError

_TOLERANCE = 1e-4  # of the range of the logits, which are computed in float32 by both
_TOKENS = 64


def code_of(config: Mapping[str, Any]) -> str | None:
    """Return the code that a config.json asks for, such as "modeling_x.XForCausalLM"."""
    auto_map = config.get("auto_map")
    if not auto_map:
        return None
    return str(auto_map.get("AutoModelForCausalLM") if isinstance(auto_map, Mapping) else auto_map)


def require_same_logits(folder: Path, normal: Path, code: str) -> None:
    """Run the code of `folder`, and raise unless it computes what the folder `normal` does."""
    import torch
    from transformers import AutoModelForCausalLM

    print(
        f"warning: running the code that comes with {folder} ({code}), because trust_remote_code "
        "is on",
        file=sys.stderr,
        flush=True,
    )
    found = []
    for path, trusted in ((folder, True), (normal, False)):
        try:
            model = AutoModelForCausalLM.from_pretrained(
                path, dtype=torch.float32, trust_remote_code=trusted, local_files_only=True
            ).eval()
            ids = torch.arange(min(_TOKENS, model.config.vocab_size))[None]
            with torch.no_grad():
                found.append(model(ids).logits)
        except Exception as error:  # anything, as it is anyone's code
            raise SnapbakeError(
                f"the code that comes with {folder} ({code}) does not run: "
                f"{(str(error).strip() or type(error).__name__).splitlines()[0][:200]}; give a "
                "model of a supported family without code of its own"
            ) from error
    own, family = found
    if own.shape != family.shape or not (
        (own - family).abs().max() <= _TOLERANCE * (family.max() - family.min())
    ):
        raise SnapbakeError(
            f"the code that comes with {folder} ({code}) computes other logits than the family "
            "that its config.json names, so it is another network, which snapbake does not build"
        )
