"""A bundle is whole or refused in one sentence, whatever was done to it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from genie_builds import ROOT, GenieBuild, bundle_target, make_genie_build, make_target
from snapbake.android_sources import android_sources
from snapbake.bundle_archive import pack_bundle
from snapbake.bundle_check import verify_bundle
from snapbake.bundle_manifest import NAME, PROGRAMS, RUNNER, describe_file
from snapbake.errors import SnapbakeError
from snapbake.files import read_json, sha256_file, write_json
from snapbake.runner_parameters import runner_parameters

pytestmark = pytest.mark.slow

SOURCES = ROOT / "android"
VERIFY = ROOT / "scripts" / "verify_bundle.py"


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> GenieBuild:
    return make_genie_build(tmp_path_factory.mktemp("build"), "llama", "fp16")


@pytest.fixture(scope="module")
def target(build: GenieBuild, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(build, tmp_path_factory.mktemp("results"))


@pytest.fixture
def bundle(target: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(target / "bundle", tmp_path / "bundle")


@pytest.fixture
def other_target(target: Path, tmp_path: Path) -> Path:
    """A copy of the whole build, to bundle anew."""
    model = shutil.copytree(target.parents[2], tmp_path / "tiny")
    return model / target.relative_to(target.parents[2])


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder as build_android leaves it."""
    folder = tmp_path / "programs"
    folder.mkdir()
    names = ("qnn_runner", "libsnapbake_genie.so")
    for name in names:
        (folder / name).write_text(f"the bytes of {name}")
    hashes = {name: sha256_file(folder / name) for name in names}
    build = {"ndk": "26.2.11394342", "abi": "arm64-v8a", "platform": "android-26", "sha256": hashes}
    write_json(folder / "build.json", build)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by their paths in it."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_bundle_is_whole(target: Path) -> None:
    manifest = verify_bundle(target / "bundle", "sm8650")
    assert verify_bundle(target / "bundle", "SM8650") == manifest
    assert contents(target / "bundle").keys() == {NAME, *manifest.files}
    content = read_json(target / "bundle" / NAME)
    assert content["tools"]["packages"]["onnxruntime-qnn"] == "2.7.0"
    assert content["made_from"] == read_json(target / "context.json")["made_from"]
    assert str(target) not in json.dumps(content), "no paths of this machine"
    assert content["checkpoint"]["source"]["location"] == "exported"
    for name in ("README.md", "LICENSES"):
        text = (target / "bundle" / name).read_text()
        assert "exported" in text
        assert "path/to/exported" not in text
    readme = (target / "bundle" / "README.md").read_text()
    assert "@" not in readme
    assert "It \\| is so." in readme
    assert "V75Skel" in readme
    assert PROGRAMS not in (target / "bundle" / "LICENSES").read_text()


def test_the_sources_and_the_runners_parameters_are_in_it(target: Path, build: GenieBuild) -> None:
    listed = subprocess.run(
        ["git", "-C", SOURCES, "ls-files"], check=True, capture_output=True, text=True
    )
    files = contents(target / "bundle" / "android")
    parameters = json.loads(files.pop("runner.json"))
    assert parameters == runner_parameters(build.pair, build.plain.stop_ids)
    assert sorted(files) == android_sources(SOURCES) == sorted(listed.stdout.split())
    assert files == {name: (SOURCES / name).read_bytes() for name in files}
    assert read_json(target / "bundle" / NAME)["android"] is None
    assert verify_bundle(target / "bundle").ndk is None


def test_what_an_ndk_built_comes_and_goes(other_target: Path, programs: Path) -> None:
    bundle = other_target / "bundle"
    before = contents(bundle)
    bundle_target(other_target, programs=programs)
    assert verify_bundle(bundle).ndk == "26.2.11394342"
    assert contents(bundle).keys() - before.keys() == {
        f"{PROGRAMS}/qnn_runner",
        f"{PROGRAMS}/libsnapbake_genie.so",
    }
    assert os.access(bundle / PROGRAMS / "qnn_runner", os.X_OK)
    assert read_json(bundle / NAME)["android"] == {
        "ndk": "26.2.11394342",
        "abi": "arm64-v8a",
        "platform": "android-26",
    }
    assert "Android NDK 26.2.11394342" in (bundle / "README.md").read_text()
    assert PROGRAMS in (bundle / "LICENSES").read_text()
    (bundle / PROGRAMS / "qnn_runner").write_bytes(
        (bundle / PROGRAMS / "libsnapbake_genie.so").read_bytes()
    )
    with pytest.raises(SnapbakeError, match=r"arm64-v8a/qnn_runner has 33 bytes instead of 23"):
        verify_bundle(bundle)
    bundle_target(other_target)
    assert contents(bundle) == before


def test_only_sources_are_taken_and_none_is_kept(other_target: Path, tmp_path: Path) -> None:
    sources = shutil.copytree(SOURCES, tmp_path / "android")
    (sources / "more.h").touch()
    for name in ("build/qnn_runner.cpp", "decoder.cpp~", "java/.Genie.swp", "local.properties"):
        (sources / name).parent.mkdir(exist_ok=True)
        (sources / name).touch()
    before = contents(other_target / "bundle")
    bundle_target(other_target, sources)
    assert contents(other_target / "bundle").keys() - before.keys() == {"android/more.h"}
    (sources / "more.h").unlink()
    bundle_target(other_target, sources)
    assert contents(other_target / "bundle") == before


def test_sources_that_are_none_are_refused(other_target: Path, tmp_path: Path) -> None:
    with pytest.raises(SnapbakeError, match=r"programs has no CMakeLists\.txt; give the folder"):
        bundle_target(other_target, tmp_path / "programs")
    own = other_target / "bundle" / "android"
    with pytest.raises(SnapbakeError, match="has the sources of android/ in it and would lose"):
        bundle_target(other_target, own)
    assert (own / "CMakeLists.txt").exists()


def other_platform(programs: Path) -> None:
    content = read_json(programs / "build.json")
    write_json(programs / "build.json", {**content, "abi": "x86_64"})


PROGRAM_DAMAGE = {
    "no build.json": (lambda p: (p / "build.json").unlink(), r"build\.json"),
    "another build.json": (
        lambda p: (p / "build.json").write_text("{}"),
        r"build\.json does not describe the programs \('ndk'\); build them again",
    ),
    "another ABI": (other_platform, "is of programs for x86_64 and not arm64-v8a"),
    "a missing program": (
        lambda p: (p / "libsnapbake_genie.so").unlink(),
        r"libsnapbake_genie\.so does not exist; build them again",
    ),
    "another program": (
        lambda p: (p / "qnn_runner").write_text("another"),
        r"qnn_runner is not the program that build\.json beside it describes",
    ),
}


@pytest.mark.parametrize("name", PROGRAM_DAMAGE)
def test_programs_of_another_build_are_refused(
    other_target: Path, programs: Path, name: str
) -> None:
    damage, words = PROGRAM_DAMAGE[name]
    damage(programs)
    with pytest.raises(SnapbakeError, match=words):
        bundle_target(other_target, programs=programs)
    with pytest.raises(SnapbakeError, match=f"has no {NAME}"):
        verify_bundle(other_target / "bundle")


def change_json(name: str, change: Callable[[dict], None]) -> Callable[[Path], None]:
    """Return a damage: a JSON file is edited and the manifest made to fit, or is it itself."""

    def damage(bundle: Path) -> None:
        content = read_json(bundle / name)
        change(content)
        write_json(bundle / name, content)
        if name != NAME:
            refresh(bundle, name)

    return damage


def refresh(bundle: Path, name: str) -> None:
    """Write the hash of a changed file into the manifest, as a forger would."""
    manifest = read_json(bundle / NAME)
    manifest["files"][name] = describe_file(bundle / name)
    write_json(bundle / NAME, manifest)


def flip_byte(bundle: Path) -> None:
    content = bytearray((bundle / "context.bin").read_bytes())
    content[len(content) // 2] ^= 1
    (bundle / "context.bin").write_bytes(content)


def cut_off(bundle: Path) -> None:
    path = bundle / "context.bin"
    path.write_bytes(path.read_bytes()[:-100])
    refresh(bundle, "context.bin")


def rename_file(bundle: Path) -> None:
    (bundle / "context.bin").rename(bundle / "model.bin")


def link(bundle: Path) -> None:
    (bundle / "tokenizer.json").rename(bundle.parent / "tokenizer.json")
    (bundle / "tokenizer.json").symlink_to(bundle.parent / "tokenizer.json")


def add_program(bundle: Path) -> None:
    (bundle / PROGRAMS).mkdir()
    (bundle / PROGRAMS / "qnn_runner").touch()
    refresh(bundle, f"{PROGRAMS}/qnn_runner")


def name_outside(content: dict) -> None:
    content["files"]["../secret"] = {"bytes": 0, "sha256": ""}


DAMAGE = {
    "no manifest": (lambda b: (b / NAME).unlink(), "has no MANIFEST.json"),
    "manifest cut off": (lambda b: (b / NAME).write_text('{"format": 1'), "not valid JSON"),
    "manifest of another format": (
        change_json(NAME, lambda c: c.update(format=2)),
        "has the format 2",
    ),
    "manifest without a chip": (change_json(NAME, lambda c: c.pop("target")), "is not whole"),
    "manifest is a list": (lambda b: (b / NAME).write_text("[]"), "is not whole"),
    "flipped byte": (flip_byte, r"context\.bin was changed or damaged"),
    "binary cut off": (cut_off, r"context\.bin"),
    "missing file": (lambda b: (b / "genie_config.json").unlink(), "lacks the file genie_config"),
    "renamed file": (rename_file, r"lacks the file context\.bin"),
    "file of no one": (lambda b: (b / "extra.so").write_text("x"), r"has the file extra\.so"),
    "swapped tokenizer": (
        lambda b: (b / "tokenizer.json").write_text("{}"),
        r"tokenizer\.json has 2 bytes",
    ),
    "file behind a link": (link, "lacks the file tokenizer"),
    "name outside": (change_json(NAME, name_outside), "outside of it"),
    "file not in the manifest": (
        change_json(NAME, lambda c: c["files"].pop("tokenizer.json")),
        "the manifest of .* lacks tokenizer",
    ),
    "edited script": (
        lambda b: (b / "run_on_phone.sh").write_text("rm -rf /"),
        r"run_on_phone\.sh has",
    ),
    "another soc_model": (
        change_json(NAME, lambda c: c["target"].update(soc_model=69)),
        "has the soc_model 57 and the manifest says 69",
    ),
    "another arch": (
        change_json(NAME, lambda c: c["target"].update(arch=79)),
        "has the arch 75 and the manifest says 79",
    ),
    "another SDK": (
        change_json(NAME, lambda c: c["qairt"].update(build="v2.40.0.1")),
        "has the QAIRT build v2.51",
    ),
    "another VTCM": (
        change_json(NAME, lambda c: c["target"].update(vtcm_mb=4)),
        "has the VTCM of .* 8 and the manifest says 4",
    ),
    "another encoding": (
        change_json(NAME, lambda c: c["graphs"]["decode"]["inputs"][1].update(scale=2.0)),
        "disagree about the tensors of the graph decode",
    ),
    "larger context": (
        change_json("genie_config.json", lambda c: c["dialog"]["context"].update(size=128)),
        r"context\.size 128 is above the 64 tokens",
    ),
    "smaller context": (
        change_json("genie_config.json", lambda c: c["dialog"]["context"].update(size=32)),
        r"context\.size of 32 and the manifest says 64",
    ),
    "another binary in the config": (
        change_json(
            "genie_config.json",
            lambda c: c["dialog"]["engine"]["model"]["binary"].update({"ctx-bins": ["x.bin"]}),
        ),
        r"names the binaries x\.bin",
    ),
    "another tokenizer in the config": (
        change_json("genie_config.json", lambda c: c["dialog"]["tokenizer"].update(path="t")),
        "names the file t, which is not",
    ),
    "another stop token": (
        change_json("prompt_template.json", lambda c: c.update(stop_ids=[7])),
        "end an answer at different tokens",
    ),
    "edited runner.json": (
        lambda b: (b / RUNNER).write_text("{}\n"),
        r"android/runner\.json has 3 bytes",
    ),
    "runner.json of another model": (
        change_json(RUNNER, lambda c: c["inverse_frequencies"].pop()),
        r"has 31 inverse_frequencies and the graphs of context\.bin take 32",
    ),
    "runner.json with another stop token": (
        change_json(RUNNER, lambda c: c.update(stop_tokens=[7])),
        "runner.json and genie_config.json end an answer at different tokens",
    ),
    "runner.json without a list": (
        change_json(RUNNER, lambda c: c.update(inverse_frequencies=1.0)),
        r"runner\.json is not whole",
    ),
    "no runner.json": (
        change_json(NAME, lambda c: c["files"].pop(RUNNER)),
        "the manifest of .* lacks android/runner",
    ),
    "missing source": (
        lambda b: (b / "android" / "decoder.cpp").unlink(),
        r"lacks the file android/decoder\.cpp",
    ),
    "edited source": (
        lambda b: (b / "android" / "decoder.cpp").write_text("int main() {}"),
        r"android/decoder\.cpp has 13 bytes",
    ),
    "program of no one": (add_program, "names 1 programs in android/arm64-v8a and no NDK"),
    "NDK without programs": (
        change_json(NAME, lambda c: c.update(android={"ndk": "26.2"})),
        "names 0 programs in android/arm64-v8a and the NDK 26.2",
    ),
    "manifest that says nothing of an NDK": (
        change_json(NAME, lambda c: c.pop("android")),
        "is not whole",
    ),
    "settings of another chip": (
        change_json("htp_backend_ext_config.json", lambda c: c["devices"][0].update(soc_model=69)),
        "is for soc_model 69",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_refused(bundle: Path, name: str) -> None:
    damage, words = DAMAGE[name]
    damage(bundle)
    with pytest.raises(SnapbakeError, match=words):
        verify_bundle(bundle)


def test_another_chip_is_refused_by_name(target: Path) -> None:
    with pytest.raises(SnapbakeError, match="is for sm8650 and not for sm8750"):
        verify_bundle(target / "bundle", "sm8750")


def test_what_somebody_left_in_the_folder_is_no_part_of_a_bundle(target: Path) -> None:
    stray = target / "bundle" / "answer.txt"
    stray.write_text("Paris.")
    try:
        with pytest.raises(SnapbakeError, match=r"has the file answer\.txt"):
            bundle_target(target)
        assert "answer.txt" not in read_json(target / "bundle" / NAME)["files"]
    finally:
        stray.unlink()
    assert verify_bundle(target / "bundle")


@pytest.mark.parametrize("name", ["context.json", "emulator/verify.json", "calibration"])
def test_parts_of_two_models_are_refused(target: Path, name: str) -> None:
    path = target / name
    if name == "calibration":
        path = target.parents[1] / "calibration" / "manifest.json"
    content = read_json(path)
    write_json(path, {**content, "weights_sha256": "ab" * 32})
    try:
        with pytest.raises(
            SnapbakeError, match=rf"{path.name} was made of weights with SHA-256 ab"
        ):
            bundle_target(target)
    finally:
        write_json(path, content)
    assert verify_bundle(target / "bundle"), "the bundle of before is whole"


def test_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SnapbakeError, match="is not a folder"):
        verify_bundle(tmp_path / "nothing")


def test_the_verifier_needs_neither_torch_nor_onnx(bundle: Path) -> None:
    blocked = (
        "import sys, runpy\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'onnx', 'onnxruntime', 'transformers'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        f"sys.argv = sys.argv[1:]; sys.path.insert(0, {str(VERIFY.parent)!r})\n"
        f"runpy.run_path({str(VERIFY)!r}, run_name='__main__')\n"
    )
    command = [sys.executable, "-c", blocked, "verify_bundle.py", str(bundle)]
    good = subprocess.run(command, capture_output=True, text=True)
    assert good.returncode == 0, good.stderr
    assert f"is whole: {len(contents(bundle)) - 1} files, for sm8650" in good.stdout
    flip_byte(bundle)
    bad = subprocess.run(command, capture_output=True, text=True)
    assert bad.returncode == 1
    assert bad.stderr.startswith("error: ")
    assert bad.stderr.count("\n") == 1


def test_equal_parts_give_equal_bytes(target: Path, tmp_path: Path) -> None:
    before = contents(target / "bundle")
    pack_bundle(target / "bundle", tmp_path / "one.tar.zst")
    shutil.rmtree(target / "bundle")
    bundle_target(target)
    for path in (target / "bundle").iterdir():
        os.utime(path, (1, 1))
    assert contents(target / "bundle") == before
    pack_bundle(target / "bundle", tmp_path / "two.tar.zst")
    assert (tmp_path / "one.tar.zst").read_bytes() == (tmp_path / "two.tar.zst").read_bytes()
    subprocess.run(
        ["tar", "--zstd", "-xf", str(tmp_path / "one.tar.zst"), "-C", str(tmp_path)], check=True
    )
    verify_bundle(tmp_path / "bundle")
    assert os.access(tmp_path / "bundle" / "run_on_phone.sh", os.X_OK)
