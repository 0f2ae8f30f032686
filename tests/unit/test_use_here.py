"""Using a built model on this machine: chat.py with Genie, and the example with ONNX Runtime."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from contract_graphs import CHUNK, CONTEXT
from genie_builds import ROOT, GenieBuild, make_genie_build, make_target
from snapbake.bundle_manifest import describe_file
from snapbake.chat import find_built_model
from snapbake.decoding import Decoder
from snapbake.errors import SnapbakeError
from snapbake.files import read_json
from snapbake.ort_bundle import make_ort_bundle, wrap
from snapbake.qnn_system import read_context_binary

pytestmark = pytest.mark.slow

QUESTION = "What is the capital of France?"
EXAMPLE = "run_with_onnxruntime.py"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> GenieBuild:
    return make_genie_build(tmp_path_factory.mktemp("build"), "qwen3", "w8a16", head_dim=128)


@pytest.fixture(scope="module")
def target(build: GenieBuild, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(build, tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def ort_bundle(build: GenieBuild, target: Path) -> Path:
    make_ort_bundle(
        build.binaries,
        target / "bundle" / "MANIFEST.json",
        build.checkpoint,
        build.graphs / "encodings.json",
        build.template,
        ROOT / "bundle" / EXAMPLE,
        CHUNK,
        CONTEXT,
        target / "bundle-ort",
    )
    return target / "bundle-ort"


def answer(build: GenieBuild, question: str, count: int) -> str:
    """Return what the CPU answers with the same graphs."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(build.checkpoint / "tokenizer.json"))
    ids = tokenizer.encode(build.plain.render(question)).ids
    tokens = Decoder(build.pair, build.cpu().run).generate(ids, count, build.plain.stop_ids)
    shown = [token for token in tokens if token not in build.plain.stop_ids]
    return "".join(tokenizer.decode([token]) for token in shown)


def run(*command: object) -> subprocess.CompletedProcess[str]:
    """Run a program; a line that QNN's thread library prints when it is loaded is left out."""
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, cwd="/"
    )
    done.stdout = re.sub(r"\s*# LIBNATIVE: .*\n", "", done.stdout)
    return done


def test_the_example_answers_as_the_cpu_does(build: GenieBuild, ort_bundle: Path) -> None:
    """A prompt of more than a chunk, from a copy in another folder, as on another machine."""
    moved = shutil.copytree(ort_bundle, ort_bundle.parent / "moved")
    done = run(moved / EXAMPLE, QUESTION, 5)
    assert done.returncode == 0, done.stderr
    assert done.stdout == answer(build, QUESTION, 5) + "\n"


def test_the_example_reads_a_prompt_beyond_the_last_whole_chunk(
    build: GenieBuild, ort_bundle: Path
) -> None:
    question = "the sea " * 20
    done = run(ort_bundle / EXAMPLE, question)
    assert done.returncode == 0, done.stderr
    assert done.stdout == answer(build, question, CONTEXT) + "\n"


def test_the_metadata_is_that_of_the_manifest(target: Path, ort_bundle: Path) -> None:
    metadata = read_json(ort_bundle / "metadata.json")
    manifest = read_json(target / "bundle" / "MANIFEST.json")
    assert {**metadata, "files": None} == {**manifest, "files": None}
    names = {path.name for path in ort_bundle.iterdir()} - {"metadata.json"}
    assert metadata["files"] == {name: describe_file(ort_bundle / name) for name in names}


def test_a_wrapper_has_the_graphs_borders(build: GenieBuild, ort_bundle: Path) -> None:
    model = onnx.load(ort_bundle / "decode.onnx")
    (node,) = model.graph.node
    (graph,) = read_context_binary(build.binaries["decode"]).graphs
    assert (node.op_type, node.domain, node.name) == ("EPContext", "com.microsoft", graph.name)
    assert list(node.input) == [tensor.name for tensor in graph.inputs]
    assert list(node.output) == [tensor.name for tensor in graph.outputs]


def test_a_binary_of_two_graphs_gets_no_wrapper(target: Path) -> None:
    with pytest.raises(SnapbakeError, match="holds 2 graphs and a wrapper takes one"):
        wrap(read_context_binary(target / "context.bin"), "context.bin")


@pytest.mark.parametrize("place", [".", "bundle"])
def test_chat_streams_genies_answer(target: Path, place: str) -> None:
    done = run(ROOT / "scripts" / "chat.py", target / place, QUESTION, "--tokens", 4)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "which is the emulator's speed" in done.stderr


def test_chat_asks_the_float_model_as_well(target: Path) -> None:
    done = run(ROOT / "scripts" / "chat.py", target, QUESTION, "--tokens", 3, "--reference")
    assert done.returncode == 0, done.stderr
    assert "The float model in PyTorch:" in done.stderr
    assert len(done.stdout.splitlines()) >= 2


def test_chat_says_what_a_bundle_alone_lacks(target: Path, tmp_path: Path) -> None:
    alone = shutil.copytree(target / "bundle", tmp_path / "somewhere")
    done = run(ROOT / "scripts" / "chat.py", alone, QUESTION)
    assert done.returncode == 1
    assert "what ships cannot run on a PC" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_built_model_is_found(target: Path, build: GenieBuild) -> None:
    model = find_built_model(target / "bundle")
    assert model.context == CONTEXT
    assert model.template == build.plain
    (target / "decode.bin").rename(target / "away")
    try:
        with pytest.raises(SnapbakeError, match=r"decode\.bin does not exist"):
            find_built_model(target)
    finally:
        (target / "away").rename(target / "decode.bin")
