"""Check a bundle: every SHA-256, and that the manifest is what context.bin says about itself.

Exit code 0 when it is whole; otherwise 1 and one sentence.
"""

import argparse
from pathlib import Path

from snapbake.bundle_check import verify_bundle
from snapbake.errors import run_program


def main() -> None:
    """Read the command line and check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.add_argument("--soc", help="the chip that it is wanted for, as sm8650")
    arguments = parser.parse_args()
    manifest = verify_bundle(arguments.bundle, arguments.soc)
    print(
        f"{arguments.bundle} is whole: {len(manifest.files)} files, for {manifest.soc}, compiled "
        f"by QAIRT {manifest.qairt_build}"
    )


if __name__ == "__main__":
    run_program(main)
