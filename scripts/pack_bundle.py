"""Pack a bundle into one .tar.zst file, the same bytes for the same bundle."""

import argparse
from pathlib import Path

from snapbake.bundle_archive import pack_bundle
from snapbake.errors import run_program


def main() -> None:
    """Read the command line and pack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundle", type=Path, required=True, help="folder of the bundle")
    parser.add_argument("--output", type=Path, required=True, help=".tar.zst file to write")
    arguments = parser.parse_args()
    pack_bundle(arguments.bundle, arguments.output)


if __name__ == "__main__":
    run_program(main)
