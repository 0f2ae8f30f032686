"""The C++ programs of android/, built for a phone by an Android NDK."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from snapbake.errors import SnapbakeError
from snapbake.files import atomic_path, sha256_file, write_json

ABI: Final = "arm64-v8a"
PLATFORM: Final = "android-26"
FILES: Final = ("qnn_runner", "libsnapbake_genie.so")

_REVISION: Final = re.compile(r"^Pkg\.Revision\s*=\s*(\S+)", re.M)


def ndk_revision(ndk: Path) -> str:
    """Return an NDK's version, such as 26.2.11394342; raise SnapbakeError when it is none."""
    properties = ndk / "source.properties"
    if properties.is_file() and (found := _REVISION.search(properties.read_text())):
        return found[1]
    raise SnapbakeError(
        f"{ndk} is no Android NDK: it has no source.properties with a Pkg.Revision; set "
        "ANDROID_NDK_ROOT to the folder of an NDK"
    )


def build_android(sources: Path, ndk: Path | None, output: Path) -> None:
    """Build the programs and write them and build.json, which has the NDK's version, to `output`.

    `sources` is the folder with CMakeLists.txt. Raises SnapbakeError when the NDK or CMake is
    missing and when the build fails, with the compiler's first error.
    """
    if ndk is None:
        raise SnapbakeError(
            "the environment variable ANDROID_NDK_ROOT is not set; set it to the folder of an "
            "Android NDK, or build for this machine with cmake as docs/android.md says"
        )
    revision = ndk_revision(ndk)
    if shutil.which("cmake") is None:
        raise SnapbakeError("cmake is not installed; on Debian and Ubuntu: apt-get install cmake")
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="snapbake.") as folder:
        _run(
            *("cmake", "-S", str(sources), "-B", folder),
            f"-DANDROID_NDK_ROOT={ndk.resolve()}",
            f"-DANDROID_ABI={ABI}",
            f"-DANDROID_PLATFORM={PLATFORM}",
        )
        _run("cmake", "--build", folder)
        for name in FILES:
            with atomic_path(output / name) as path:
                shutil.copyfile(Path(folder) / name, path)
            (output / name).chmod(0o755)
    write_json(
        output / "build.json",
        {
            "ndk": revision,
            "abi": ABI,
            "platform": PLATFORM,
            "sha256": {name: sha256_file(output / name) for name in FILES},
        },
    )


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, file=sys.stderr, flush=True)
    if done.returncode != 0:
        lines = done.stdout.splitlines()
        first = next((line for line in lines if "error" in line.lower()), "see its words above")
        raise SnapbakeError(
            f"the NDK's build of android/ failed: {first.strip()}; the sources need an NDK with "
            "C++17, r23 or later"
        )
