"""The build for a phone: what is refused, and what is noted of the NDK.

No NDK can be had here. A stand-in has the files that name one, and a toolchain file that leaves the
compiler of this machine in place.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from android_programs import FOR_THIS_MACHINE, ROOT, SOURCES, make_ndk
from snapbake.android_build import build_android, ndk_revision
from snapbake.errors import SnapbakeError
from snapbake.files import sha256_file


def test_no_ndk_is_one_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, ROOT / "scripts/build_android.py"),
            *("--sources", SOURCES, "--output-dir", tmp_path / "out"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: the environment variable ANDROID_NDK_ROOT is not set; set it")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_no_ndk_is_named(tmp_path: Path) -> None:
    for content in (None, "Pkg.Desc = Android NDK\n"):
        if content is not None:
            (tmp_path / "source.properties").write_text(content)
        with pytest.raises(SnapbakeError, match=f"{tmp_path} is no Android NDK"):
            ndk_revision(tmp_path)


def test_cmake_refuses_a_folder_that_is_no_ndk(programs: Path, tmp_path: Path) -> None:
    assert programs.is_dir()
    done = subprocess.run(
        ["cmake", "-S", SOURCES, "-B", tmp_path, "-DANDROID_NDK_ROOT=/nowhere"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "ANDROID_NDK_ROOT, /nowhere, is no Android NDK" in done.stderr


def test_the_ndk_is_noted_with_what_it_built(programs: Path, tmp_path: Path) -> None:
    assert (programs / "libsnapbake_genie.so").exists()
    ndk = make_ndk(tmp_path / "ndk", FOR_THIS_MACHINE)
    build_android(SOURCES, ndk, tmp_path / "out")
    description = json.loads((tmp_path / "out/build.json").read_text())
    assert description["ndk"] == "26.2.11394342"
    assert (description["abi"], description["platform"]) == ("arm64-v8a", "android-26")
    assert sorted(description["sha256"]) == ["libsnapbake_genie.so", "qnn_runner"]
    for name, digest in description["sha256"].items():
        assert sha256_file(tmp_path / "out" / name) == digest
    subprocess.run([tmp_path / "out/qnn_runner", "--help"], check=True, capture_output=True)


def test_a_build_that_fails_says_why_and_leaves_nothing(programs: Path, tmp_path: Path) -> None:
    assert programs.is_dir()
    ndk = make_ndk(tmp_path / "ndk", 'message(FATAL_ERROR "no such error as this")\n')
    with pytest.raises(SnapbakeError, match="the NDK's build of android/ failed"):
        build_android(SOURCES, ndk, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
