"""Build the C++ programs of android/ for a phone with an Android NDK, and note its version."""

import argparse
from pathlib import Path

from snapbake.android_build import build_android
from snapbake.errors import run_program


def main() -> None:
    """Read the command line and build."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--sources", type=Path, required=True, help="the folder android/ with CMakeLists.txt"
    )
    parser.add_argument("--ndk", type=Path, help="folder of an Android NDK, r23 or later")
    parser.add_argument(
        "--output-dir", type=Path, required=True, help="folder for the programs and build.json"
    )
    arguments = parser.parse_args()
    build_android(arguments.sources, arguments.ndk, arguments.output_dir)


if __name__ == "__main__":
    run_program(main)
