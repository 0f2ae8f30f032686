"""Plain strings for a chat template: found, proven, and refused where they cannot be."""

import json
import shutil
from pathlib import Path

import pytest

from snapbake.calibration import ChatTokenizer
from snapbake.errors import SnapbakeError
from snapbake.files import write_json
from snapbake.prompt_template import read_prompt_template, write_prompt_template
from snapbake.template_proof import find_prompt_template
from tiny_models import CHAT_TEMPLATE

SYSTEM = "{{ '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}"


def tokenizer(source: Path, folder: Path, template: str) -> ChatTokenizer:
    """Return the tokenizer of a copy of a checkpoint with another chat template."""
    folder.mkdir()
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, folder)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return ChatTokenizer(folder)


def test_prefix_and_suffix_are_what_the_template_renders(
    tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    found = find_prompt_template(
        tokenizer(tiny_models["qwen2"], tmp_path / "c", SYSTEM + CHAT_TEMPLATE), [0]
    )
    assert found.prefix == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"
    assert found.suffix == "<|im_end|>\n<|im_start|>assistant\n"
    assert not found.strip
    # 0 is what the configuration names, 2 is how the template ends a turn.
    assert found.stop_ids == (0, 2)
    assert found.stop == ("<|endoftext|>", "<|im_end|>")
    assert found.render(" a ") == found.prefix + " a " + found.suffix
    write_prompt_template(tmp_path / "t.json", found)
    assert read_prompt_template(tmp_path / "t.json") == found


def test_a_template_that_strips_is_found_out(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    template = CHAT_TEMPLATE.replace("message['content']", "message['content'] | trim")
    found = find_prompt_template(tokenizer(tiny_models["llama"], tmp_path / "c", template), [2])
    assert found.strip
    assert found.render(" a\n") == found.prefix + "a" + found.suffix


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("message['content'] | upper", "writes a question 0 times"),
        ("message['content'] + message['content']", "writes a question 2 times"),
        ("message['content'] | replace('\\n', ' ')", "changes the question"),
        ("message['content'] | e", "changes the question"),
    ],
)
def test_a_template_that_does_more_is_refused(
    tiny_models: dict[str, Path], tmp_path: Path, change: str, words: str
) -> None:
    template = CHAT_TEMPLATE.replace("message['content']", f"({change})")
    with pytest.raises(SnapbakeError, match=words):
        find_prompt_template(tokenizer(tiny_models["llama"], tmp_path / "c", template), [2])


def test_a_model_that_never_stops_is_refused(tiny_models: dict[str, Path], tmp_path: Path) -> None:
    template = CHAT_TEMPLATE.replace("<|im_end|>", "")
    with pytest.raises(SnapbakeError, match="nothing ends an answer"):
        find_prompt_template(tokenizer(tiny_models["llama"], tmp_path / "c", template), [])


@pytest.mark.parametrize("content", [{}, [], {"prefix": "a"}])
def test_another_file_is_no_template(tmp_path: Path, content: object) -> None:
    write_json(tmp_path / "t.json", content)
    with pytest.raises(SnapbakeError, match="is no prompt template"):
        read_prompt_template(tmp_path / "t.json")


def test_the_file_is_json_that_any_program_reads(
    tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    write_prompt_template(
        tmp_path / "t.json", find_prompt_template(ChatTokenizer(tiny_models["qwen3"]), [2])
    )
    content = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    assert content.keys() == {"prefix", "suffix", "strip", "stop", "stop_ids"}
