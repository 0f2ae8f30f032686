"""Tiny builds for the C++ programs of android/, and how the tests call these."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from snapbake.decoding import Decoder, GraphPair
from snapbake.emulator_run import EmulatorRunner
from snapbake.qnn_library import library_folder

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "android"
STOP = 2
# A toolchain file that leaves the compiler of this machine in place.
FOR_THIS_MACHINE = 'set(CMAKE_BUILD_TYPE Debug CACHE STRING "")\n'


@dataclass(frozen=True)
class TinyBuild:
    """The binaries of one recipe beside runner.json, genie_config.json and tokenizer.json."""

    folder: Path
    pair: GraphPair

    @property
    def binaries(self) -> dict[str, Path]:
        return {graph: self.folder / f"{graph}.bin" for graph in ("prefill", "decode")}

    def expected(self, prompts: Sequence[list[int]], count: int, folder: Path) -> list[list[int]]:
        """Return what the Python loop over the emulator answers."""
        with EmulatorRunner(self.binaries, self.pair.borders, folder) as runner:
            return [Decoder(self.pair, runner.run).generate(ids, count, {STOP}) for ids in prompts]


def run_runner(
    program: Path,
    build: TinyBuild,
    prompt: Sequence[int] | str,
    *options: str,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run qnn_runner with the prompt on standard input; later options replace earlier ones."""
    return subprocess.run(
        [
            program,
            *("--parameters", build.folder / "runner.json"),
            *("--binary", build.binaries["prefill"], "--binary", build.binaries["decode"]),
            *("--libraries", library_folder()),
            *options,
        ],
        input=prompt if isinstance(prompt, str) else " ".join(map(str, prompt)),
        capture_output=True,
        text=True,
        env=None if environment is None else {**os.environ, **environment},
    )


def tokens_of(done: subprocess.CompletedProcess[str]) -> list[int]:
    """Return the tokens that qnn_runner printed."""
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.splitlines()]


def make_ndk(folder: Path, toolchain: str) -> Path:
    """Write the files that name an NDK; `toolchain` is the content of its toolchain file."""
    place = folder / "build/cmake/android.toolchain.cmake"
    place.parent.mkdir(parents=True)
    place.write_text(toolchain)
    (folder / "source.properties").write_text(
        "Pkg.Desc = Android NDK\nPkg.Revision = 26.2.11394342\n"
    )
    return folder
