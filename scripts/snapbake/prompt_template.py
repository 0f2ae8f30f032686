"""The chat template of a model as plain strings, for programs that have no template engine.

A phone's program writes prefix + what the user said + suffix and lets the model go on until one of
the stop tokens. template_proof.py finds the strings and proves them.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

from snapbake.errors import SnapbakeError
from snapbake.files import read_json, write_json


@dataclass(frozen=True)
class PromptTemplate:
    """How to ask: `prefix` + text + `suffix`, the text without space around it if `strip`.

    The answer ends before one of the tokens `stop_ids`, whose texts are `stop`.
    """

    prefix: str
    suffix: str
    strip: bool
    stop: tuple[str, ...]
    stop_ids: tuple[int, ...]

    def render(self, text: str) -> str:
        """Return the prompt for what a user said."""
        return self.prefix + (text.strip() if self.strip else text) + self.suffix


def read_prompt_template(path: Path) -> PromptTemplate:
    """Read what `write_prompt_template` wrote."""
    content = read_json(path)
    try:
        return PromptTemplate(
            content["prefix"],
            content["suffix"],
            content["strip"],
            tuple(content["stop"]),
            tuple(content["stop_ids"]),
        )
    except (KeyError, TypeError) as error:
        raise SnapbakeError(f"{path} is no prompt template ({error}); make it again") from error


def write_prompt_template(path: Path, template: PromptTemplate) -> None:
    """Write a template as JSON."""
    write_json(path, asdict(template))
