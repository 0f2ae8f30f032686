"""The gate in one process, for the tests that are not about its processes."""

from pathlib import Path
from typing import Any

import pytest

from snapbake import tokenizer_process


@pytest.fixture(autouse=True)
def _tokenizer_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use tokenizers by the same functions without a process of their own, which costs seconds.

    Tests marked with `own_process` use the process.
    """
    if request.node.get_closest_marker("own_process"):
        return

    def run(task: str, folder: Path, argument: Any) -> Any:
        return getattr(tokenizer_process, task)(folder, *([] if argument is None else [argument]))

    monkeypatch.setattr(tokenizer_process, "_run", run)
