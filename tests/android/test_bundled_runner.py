"""A bundle's C++ program, built of its own sources and run with its own files, beside Genie."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from android_programs import FOR_THIS_MACHINE, make_ndk, tokens_of
from genie_builds import TOKENS, bundle_target, gate, make_genie_build, make_target
from snapbake.android_build import build_android
from snapbake.bundle_archive import pack_bundle
from snapbake.bundle_check import verify_bundle
from snapbake.bundle_manifest import NAME, PROGRAMS
from snapbake.files import read_json
from snapbake.qnn_library import library_folder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build whose genie.json is what Genie says, and whose bundle has no programs yet."""
    build = make_genie_build(tmp_path_factory.mktemp("build"), "qwen2", "w8a16")
    target = make_target(build, tmp_path_factory.mktemp("results"))
    assert gate(build, target / "emulator" / "genie.json")["verdict"]["passed"]
    bundle_target(target)
    return target


def readme_ids(bundle: Path, folder: Path) -> Path:
    """Let the README's command make the file of token ids of its question."""
    (command,) = re.findall(
        r"^```bash\n(python - .*?)^```", (bundle / "README.md").read_text(), re.M | re.S
    )
    for name in ("tokenizer.json", "prompt_template.json"):
        shutil.copy(bundle / name, folder)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-ec", command], cwd=folder, env={**os.environ, "PATH": path}, check=True
    )
    return folder / "ids.txt"


def test_a_bundle_builds_and_runs_what_answers_as_genie(
    programs: Path, target: Path, tmp_path: Path
) -> None:
    assert programs.is_dir()
    bundle = target / "bundle"
    ndk = make_ndk(tmp_path / "ndk", FOR_THIS_MACHINE)
    build_android(bundle / "android", ndk, tmp_path / "built")
    bundle_target(target, programs=tmp_path / "built")
    assert verify_bundle(bundle).ndk == "26.2.11394342"
    assert read_json(bundle / NAME)["android"] == {
        "ndk": "26.2.11394342",
        "abi": "arm64-v8a",
        "platform": "android-26",
    }
    # From the archive, as somebody else gets it.
    pack_bundle(bundle, tmp_path / "bundle.tar.zst")
    subprocess.run(["tar", "--zstd", "-xf", "bundle.tar.zst"], cwd=tmp_path, check=True)
    unpacked = tmp_path / "bundle"
    answer = read_json(target / "emulator" / "genie.json")["prompts"][0]
    ids = readme_ids(unpacked, tmp_path)
    assert len(ids.read_text().split()) == answer["prompt_tokens"]
    done = subprocess.run(
        [
            unpacked / PROGRAMS / "qnn_runner",
            *("--parameters", unpacked / "android" / "runner.json", "--tokens", ids),
            *("--binary", target / "prefill.bin", "--binary", target / "decode.bin"),
            *("--libraries", library_folder(), "--count", str(TOKENS)),
        ],
        capture_output=True,
        text=True,
    )
    assert tokens_of(done) == answer["genie"]["tokens"]
