"""Graphs of the tiny models, made once for all unit tests."""

from pathlib import Path

import pytest

from snapbake.export import export_checkpoint
from snapbake.freeze import freeze_shapes
from snapbake.simplify import simplify_graph

CHUNK = 16
CONTEXT = 64
GRAPHS = {"prefill": CHUNK, "decode": 1}


@pytest.fixture(scope="session")
def tiny_onnx(
    tiny_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """One folder a family with model.onnx and, for chunks of 16 in a context of 64 tokens,
    c64.static.{graph}.onnx and c64.simplified.{graph}.onnx. Read them, never write into them.
    """
    folders = {}
    for family, checkpoint in tiny_models.items():
        folder = folders[family] = tmp_path_factory.mktemp(f"onnx-{family}")
        export_checkpoint(checkpoint, 18, folder)
        for graph, tokens in GRAPHS.items():
            static = folder / f"c{CONTEXT}.static.{graph}.onnx"
            freeze_shapes(folder / "model.onnx", tokens, CONTEXT, static)
            simplify_graph(static, folder / f"c{CONTEXT}.simplified.{graph}.onnx")
    return folders


@pytest.fixture(params=("llama", "qwen2", "qwen3"))
def tiny_graphs(request: pytest.FixtureRequest, tiny_onnx: dict[str, Path]) -> Path:
    """The folder of one family's graphs, one test run a family."""
    return tiny_onnx[request.param]
