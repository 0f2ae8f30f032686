"""Turn the chat template into plain strings and let PyTorch answer the prompts of the Genie gate.

The plain strings are proven by rendering: prefix + question + suffix is what the template writes.
"""

import argparse
from pathlib import Path

from snapbake.chat_preparation import prepare_chat
from snapbake.errors import run_program


def main() -> None:
    """Read the command line and prepare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the model")
    parser.add_argument("--questions", nargs="+", required=True, help="what a user asks")
    parser.add_argument("--count", type=int, required=True, help="most tokens of an answer")
    parser.add_argument(
        "--context", type=int, required=True, help="tokens, past and new, of the shortest build"
    )
    parser.add_argument(
        "--tokens", type=int, required=True, help="new tokens a run of the prefill graph"
    )
    parser.add_argument("--threads", type=int, default=1, help="processor cores to use")
    parser.add_argument("--template", type=Path, required=True, help="JSON file of the template")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON file of the answers")
    arguments = parser.parse_args()
    prepare_chat(
        arguments.checkpoint,
        arguments.questions,
        arguments.count,
        arguments.context,
        arguments.tokens,
        arguments.threads,
        arguments.template,
        arguments.prompts,
    )


if __name__ == "__main__":
    run_program(main)
