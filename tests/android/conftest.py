"""The C++ programs of android/, built with all warnings as errors, and tiny models for them."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from android_programs import SOURCES, STOP, TinyBuild
from contract_graphs import CHUNK, CONTEXT, make_contract, quantize_tiny
from snapbake.context_binary import compile_graph
from snapbake.decoding import read_pair
from snapbake.families import read_spec
from snapbake.files import read_json
from snapbake.fp16 import convert_fp16
from snapbake.genie_config import genie_config
from snapbake.htp_target import HtpTarget
from snapbake.runner_parameters import runner_parameters

SM8650 = HtpTarget(soc_model=57, arch=75, vtcm_mb=8)
# fp16 with biases; w8a16 with norms of queries and keys.
FAMILY = {"fp16": "qwen2", "w8a16": "qwen3"}


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with qnn_runner and libsnapbake_genie.so, built as docs/android.md says."""
    for tool in ("cmake", "g++"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    folder = tmp_path_factory.mktemp("programs")
    environment = {key: value for key, value in os.environ.items() if key != "ANDROID_NDK_ROOT"}
    for command in (
        ["cmake", "-S", SOURCES, "-B", folder, "-DCMAKE_CXX_FLAGS=-Werror"],
        ["cmake", "--build", folder, "--parallel", "2"],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="session")
def tiny_builds(
    tiny_models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, TinyBuild]:
    """One build a recipe: read them, never write into them."""
    builds = {}
    for recipe, family in FAMILY.items():
        folder = tmp_path_factory.mktemp(f"android-{recipe}")
        graphs = make_contract(tiny_models[family], folder / "htp")
        if recipe == "fp16":
            convert_fp16(graphs["prefill"], graphs["decode"], folder)
        else:
            quantize_tiny(tiny_models[family], graphs, folder)
        for graph in graphs:
            compile_graph(folder / f"{graph}.onnx", graph, SM8650, folder / f"{graph}.bin")
        spec = read_spec(read_json(tiny_models[family] / "config.json"))
        pair = read_pair(spec, CHUNK, CONTEXT, folder / "encodings.json")
        shutil.copy(tiny_models[family] / "tokenizer.json", folder)
        (folder / "runner.json").write_text(json.dumps(runner_parameters(pair, [STOP])))
        config = genie_config(spec, CONTEXT, [STOP], ["prefill.bin", "decode.bin"])
        # The extensions set the chip's clocks, which the emulator has not.
        del config["dialog"]["engine"]["backend"]["extensions"]
        (folder / "genie_config.json").write_text(json.dumps(config))
        builds[recipe] = TinyBuild(folder, pair)
    return builds


@pytest.fixture(params=tuple(FAMILY))
def tiny_build(request: pytest.FixtureRequest, tiny_builds: dict[str, TinyBuild]) -> TinyBuild:
    """One build, one test run a recipe."""
    return tiny_builds[request.param]
