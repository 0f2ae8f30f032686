"""Ask a built model a question on this machine: Genie, the phone's runtime, on the HTP emulator.

The emulator takes half a minute for the question and some seconds for each word.
"""

import argparse
import os
from pathlib import Path

from snapbake.chat import chat, chat_with_reference, find_built_model
from snapbake.errors import run_program


def main() -> None:
    """Read the command line and ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "build", type=Path, help="a bundle in results/, or the folder of the chip that it is in"
    )
    parser.add_argument("question", help="what to ask; the chat template is put around it")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of the answer")
    parser.add_argument(
        "--reference", action="store_true", help="let the float model answer as well, in PyTorch"
    )
    arguments = parser.parse_args()
    model = find_built_model(arguments.build)
    chat(model, arguments.question, arguments.tokens)
    if arguments.reference:
        chat_with_reference(model, arguments.question, arguments.tokens, os.cpu_count() or 1)


if __name__ == "__main__":
    run_program(main)
