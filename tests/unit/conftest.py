"""Graphs of the tiny models, made once for all unit tests."""

from pathlib import Path

import pytest

from contract_graphs import CHUNK, CONTEXT, graphs_of, make_contract, quantize_tiny
from snapbake.export import export_checkpoint
from snapbake.fp16 import convert_fp16
from snapbake.freeze import freeze_shapes
from snapbake.simplify import simplify_graph

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


@pytest.fixture(scope="session")
def contract(
    tiny_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """One folder a family with prefill.onnx, decode.onnx, weights.data and weights.json: the fp32
    contract graphs, of the same chunk and context. Read them, never write into them.
    """
    folders = {}
    for family, checkpoint in tiny_models.items():
        folders[family] = tmp_path_factory.mktemp(f"htp-{family}")
        make_contract(checkpoint, folders[family], CHUNK, CONTEXT)
    return folders


@pytest.fixture(scope="session")
def fp16(contract: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One folder a family with the contract graphs in fp16 and encodings.json."""
    folders = {}
    for family, folder in contract.items():
        folders[family] = tmp_path_factory.mktemp(f"fp16-{family}")
        graphs = graphs_of(folder)
        convert_fp16(graphs["prefill"], graphs["decode"], folders[family])
    return folders


@pytest.fixture(scope="session")
def quantized(
    tiny_models: dict[str, Path],
    contract: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    """One folder a family with the contract graphs in w8a16 and encodings.json."""
    folders = {}
    for family, folder in contract.items():
        folders[family] = tmp_path_factory.mktemp(f"w8a16-{family}")
        quantize_tiny(tiny_models[family], graphs_of(folder), folders[family])
    return folders
