"""Fixtures that every test may use."""

from pathlib import Path

import pytest

from tiny_models import make_tiny_model

FAMILY_NAMES = ("llama", "qwen2", "qwen3")


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One folder a family: read them, never write into them."""
    folder = tmp_path_factory.mktemp("tiny")
    return {name: make_tiny_model(folder / name, name) for name in FAMILY_NAMES}


@pytest.fixture(params=FAMILY_NAMES)
def tiny_model(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> Path:
    """The folder of a tiny model, one test run a family."""
    return tiny_models[request.param]
