"""Make the folder that goes to the phone: binary, Genie's configuration, C++, tokenizer, manifest.

The folder is checked as verify_bundle.py does before this ends.
"""

import argparse
import json
from pathlib import Path

from snapbake.bundle import BundleParts, make_bundle
from snapbake.errors import run_program


def main() -> None:
    """Read the command line and make the bundle."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=Path, required=True, help="context.bin")
    parser.add_argument("--description", type=Path, required=True, help="its context.json")
    parser.add_argument(
        "--encodings", type=Path, required=True, help="encodings.json of the recipe's graphs"
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the model")
    parser.add_argument("--summary", type=Path, required=True, help="its checkpoint.json")
    parser.add_argument(
        "--template", type=Path, required=True, help="prompt template of prepare_chat.py"
    )
    parser.add_argument(
        "--calibration", type=Path, required=True, help="manifest.json of select_records.py"
    )
    parser.add_argument("--verdict", type=Path, required=True, help="verify.json")
    parser.add_argument("--genie", type=Path, required=True, help="genie.json of run_genie.py")
    parser.add_argument(
        "--requirements", type=Path, required=True, help="requirements.txt, for the versions"
    )
    parser.add_argument(
        "--android", type=Path, required=True, help="the folder android/ with CMakeLists.txt"
    )
    parser.add_argument(
        "--programs", type=Path, help="what build_android.py made of it with an NDK, if it did"
    )
    parser.add_argument("--model", required=True, help="the model's name")
    parser.add_argument("--recipe", required=True, help="the recipe's name")
    parser.add_argument("--context", type=int, required=True, help="tokens, past and new")
    parser.add_argument(
        "--tokens", type=int, required=True, help="new tokens a run of the prefill graph"
    )
    parser.add_argument("--part", required=True, help="the chip as the phone calls it: SM8650")
    parser.add_argument("--chip", required=True, help="the chip as a person knows it")
    parser.add_argument(
        "--settings", type=json.loads, required=True, help="the build's configuration as JSON"
    )
    parser.add_argument("--readme", type=Path, required=True, help="template of the README")
    parser.add_argument("--script", type=Path, required=True, help="template of run_on_phone.sh")
    parser.add_argument("--output-dir", type=Path, required=True, help="folder of the bundle")
    arguments = parser.parse_args()
    make_bundle(
        BundleParts(
            arguments.binary,
            arguments.description,
            arguments.encodings,
            arguments.checkpoint,
            arguments.summary,
            arguments.template,
            arguments.calibration,
            arguments.verdict,
            arguments.genie,
            arguments.requirements,
            arguments.android,
            arguments.programs,
        ),
        arguments.model,
        arguments.recipe,
        arguments.context,
        arguments.tokens,
        arguments.part,
        arguments.chip,
        arguments.settings,
        arguments.readme,
        arguments.script,
        arguments.output_dir,
    )


if __name__ == "__main__":
    run_program(main)
