"""android/ in a bundle: C++ and Kotlin to build on, runner.json, and the programs of an NDK."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from snapbake import bundle_manifest
from snapbake.android_build import ABI, FILES
from snapbake.android_sources import android_sources
from snapbake.bundle_files import copy_file
from snapbake.decoding import GraphPair
from snapbake.errors import SnapbakeError
from snapbake.files import read_json, sha256_file, write_json
from snapbake.runner_parameters import runner_parameters

_NOTED: Final = ("ndk", "abi", "platform")


def android_files(sources: Path, programs: Path | None) -> list[str]:
    """Return what `write_android` writes of these, as paths in the bundle."""
    names = [f"{bundle_manifest.ANDROID}/{name}" for name in android_sources(sources)]
    built = [] if programs is None else [f"{bundle_manifest.PROGRAMS}/{name}" for name in FILES]
    return [bundle_manifest.RUNNER, *names, *built]


def write_android(
    sources: Path, programs: Path | None, pair: GraphPair, stop: Sequence[int], bundle: Path
) -> dict[str, str] | None:
    """Write the folder android/ of a bundle anew; return what the manifest says of the NDK.

    `sources` is the folder with CMakeLists.txt, `programs` the one that build_android wrote, None
    where no NDK built them, and then None is returned; `stop` are the tokens that end an answer.
    """
    folder = bundle / bundle_manifest.ANDROID
    if folder.resolve() == sources.resolve():
        raise SnapbakeError(
            f"{bundle} has the sources of android/ in it and would lose them; give the bundle a "
            "folder of its own"
        )
    names = android_sources(sources)
    noted = None if programs is None else _read_build(programs)
    if folder.exists():  # an earlier bundle, perhaps with programs or with a source that is no more
        shutil.rmtree(folder)
    for name in names:
        copy_file(sources / name, folder / name)
    write_json(bundle / bundle_manifest.RUNNER, runner_parameters(pair, stop))
    if programs is not None:
        for name in FILES:
            copy_file(programs / name, bundle / bundle_manifest.PROGRAMS / name, executable=True)
    return noted


def _read_build(programs: Path) -> dict[str, str]:
    """Return NDK, ABI and platform out of build.json, whose programs have to be those beside it."""
    path = programs / "build.json"
    content = read_json(path)
    again = "build them again with `snakemake results/android/build.json`"
    try:
        noted = {name: str(content[name]) for name in _NOTED}
        hashes: dict[str, Any] = {name: content["sha256"][name] for name in FILES}
    except (KeyError, TypeError) as error:
        raise SnapbakeError(f"{path} does not describe the programs ({error}); {again}") from error
    if noted["abi"] != ABI:
        raise SnapbakeError(f"{path} is of programs for {noted['abi']} and not {ABI}; {again}")
    for name, sha256 in hashes.items():
        program = programs / name
        if not program.is_file():
            raise SnapbakeError(f"{program} does not exist; {again}")
        if sha256_file(program) != sha256:
            raise SnapbakeError(
                f"{program} is not the program that {path.name} beside it describes; {again}"
            )
    return noted
