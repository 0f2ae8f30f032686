"""The choice of calibration and held-out records, with real tokenizers and templates."""

import hashlib
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from snapbake.calibration import (
    ANSWER_ROOM,
    ChatTokenizer,
    RenderedRecord,
    select,
    write_selection,
)
from snapbake.errors import SnapbakeError
from snapbake.records import (
    Conversation,
    DataSet,
    Message,
    UnusableRecordError,
    read_data_set,
)
from snapbake.token_records import TokenRecord, read_token_records, write_token_records

SCRIPT = Path(__file__).parents[2] / "scripts" / "select_records.py"
CONTEXT = 160
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
)


def rows(count: int) -> list[dict[str, str]]:
    """Records that are all different, of different lengths."""
    return [
        {
            "instruction": f"What is {number} plus one?",
            "output": f"{number} plus one is {number + 1}. " + "It is so. " * (number % 5),
        }
        for number in range(count)
    ]


def write_data(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def data_set(folder: Path, content: Any) -> DataSet:
    return read_data_set(write_data(folder / "data.json", content))


@pytest.fixture(scope="module")
def checkpoint(tiny_models: dict[str, Path]) -> Path:
    return tiny_models["llama"]


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> ChatTokenizer:
    return ChatTokenizer(checkpoint)


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    """The files of the checkpoint that are read here, to be changed."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(checkpoint / name, folder / name)
    return folder


def with_template(folder: Path, template: str) -> ChatTokenizer:
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return ChatTokenizer(folder)


def conversation(*turns: str) -> Conversation:
    roles = ("user", "assistant")
    return Conversation(
        0, tuple(Message(roles[place % 2], turn) for place, turn in enumerate(turns))
    )


class TestRendering:
    def test_the_prompt_is_the_beginning_of_the_conversation(
        self, tokenizer: ChatTokenizer
    ) -> None:
        rendered = tokenizer.record(conversation("Why?", "Because of the sea."), CONTEXT)
        record = rendered.record
        assert rendered.exact
        assert not rendered.truncated
        prompt = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
        assert list(record.ids[: record.prompt_length]) == tokenizer.encode(prompt)
        answer = "Because of the sea.<|im_end|>\n"
        assert list(record.ids[record.prompt_length :]) == tokenizer.encode(answer)
        assert (record.prompt, record.answer) == ("Why?", "Because of the sea.")

    def test_the_last_answer_is_the_answer(self, tokenizer: ChatTokenizer) -> None:
        record = tokenizer.record(conversation("One?", "Two.", "Three?", "Four."), CONTEXT).record
        assert (record.prompt, record.answer) == ("Three?", "Four.")
        assert list(record.ids[record.prompt_length :]) == tokenizer.encode("Four.<|im_end|>\n")

    def test_a_long_answer_is_cut_off_at_the_context(self, tokenizer: ChatTokenizer) -> None:
        rendered = tokenizer.record(conversation("Why?", "Water. " * 200), CONTEXT)
        assert rendered.truncated
        assert len(rendered.record.ids) == CONTEXT

    def test_a_prompt_leaves_room_for_an_answer(self, tokenizer: ChatTokenizer) -> None:
        talk = conversation("Why?", "Water. " * 200)
        prompt_length = tokenizer.record(talk, CONTEXT).record.prompt_length
        rendered = tokenizer.record(talk, prompt_length + ANSWER_ROOM)
        assert len(rendered.record.ids) == prompt_length + ANSWER_ROOM
        with pytest.raises(UnusableRecordError, match="has a prompt that leaves fewer than 16"):
            tokenizer.record(talk, prompt_length + ANSWER_ROOM - 1)

    def test_a_template_that_opens_thinking_only_in_the_prompt(self, copy: Path) -> None:
        """DeepSeek's distilled models: <think> is in the prompt and not in the conversation."""
        tokenizer = with_template(
            copy,
            CHATML + "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}",
        )
        rendered = tokenizer.record(conversation("Why?", "Because."), CONTEXT)
        assert not rendered.exact
        start = tokenizer.encode("<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n")
        assert list(rendered.record.ids[: rendered.record.prompt_length]) == start

    def test_a_template_that_strips_thinking(self, copy: Path) -> None:
        """Qwen3 and others drop the thoughts of every answer but the last."""
        tokenizer = with_template(
            copy,
            "{% for message in messages %}{% set text = message['content'] %}"
            "{% if not loop.last and message['role'] == 'assistant' %}"
            "{% set text = text.split('</think>')[-1] %}{% endif %}"
            "{{ '<|im_start|>' + message['role'] + '\\n' + text + '<|im_end|>\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        )
        talk = conversation("One?", "<think>hm</think>Two.", "Three?", "<think>so</think>Four.")
        rendered = tokenizer.record(talk, CONTEXT)
        assert rendered.exact
        answer = rendered.record.ids[rendered.record.prompt_length :]
        assert list(answer) == tokenizer.encode("<think>so</think>Four.<|im_end|>\n")

    def test_a_template_whose_user_turn_ends_with_the_header(self, copy: Path) -> None:
        """LLaMA-Factory writes such templates: add_generation_prompt changes nothing."""
        tokenizer = with_template(
            copy,
            "{% for message in messages %}{% if message['role'] == 'user' %}"
            "{{ 'Human: ' + message['content'] + '\\nAssistant: ' }}"
            "{% else %}{{ message['content'] + '<|im_end|>\\n' }}{% endif %}{% endfor %}",
        )
        rendered = tokenizer.record(conversation("Why?", "Because."), CONTEXT)
        # The space before the answer may belong to the answer's first token.
        kept = tokenizer.encode("Human: Why?\nAssistant:")
        assert list(rendered.record.ids[: len(kept)]) == kept
        assert rendered.record.prompt_length - len(kept) in (0, 1)

    def test_a_token_that_spans_the_border_belongs_to_the_answer(self, copy: Path) -> None:
        tokenizer = with_template(
            copy,
            "{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}",
        )
        rendered = tokenizer.record(conversation("Name the", "ocean"), CONTEXT)
        assert tokenizer.encode("Name the ocean ") == list(rendered.record.ids)
        assert len(tokenizer.encode(" ocean")) < len(tokenizer.encode(" ")) + len(
            tokenizer.encode("ocean")
        ), "the tiny tokenizer no longer joins a space and a word; choose another word"
        assert not rendered.exact
        assert list(rendered.record.ids[: rendered.record.prompt_length]) == tokenizer.encode(
            "Name the"
        )

    def test_a_question_that_changes_with_its_answer_is_left_out(self, copy: Path) -> None:
        tokenizer = with_template(
            copy,
            "{{ messages | length }}"
            "{% for message in messages %}{{ message['content'] }}{% endfor %}",
        )
        with pytest.raises(UnusableRecordError, match="is rendered differently without its"):
            tokenizer.record(conversation("Why?", "Because."), CONTEXT)

    def test_an_answer_that_the_template_drops_is_left_out(self, copy: Path) -> None:
        tokenizer = with_template(
            copy,
            "{% for message in messages %}{% if message['role'] == 'user' %}"
            "{{ message['content'] }}{% endif %}{% endfor %}",
        )
        with pytest.raises(UnusableRecordError, match="is rendered without its answer"):
            tokenizer.record(conversation("Why?", "Because."), CONTEXT)

    def test_the_day_does_not_matter(self, copy: Path) -> None:
        tokenizer = with_template(copy, "{{ strftime_now('%d %b %Y') }}" + CHATML)
        text = tokenizer.render([Message("user", "Why?")], add_generation_prompt=False)
        assert text.startswith("26 Jul 2024<|im_start|>user")

    def test_what_the_template_raises_is_the_reason(self, copy: Path) -> None:
        tokenizer = with_template(copy, "{{ raise_exception('Roles must alternate') }}")
        with pytest.raises(UnusableRecordError) as caught:
            tokenizer.record(conversation("Why?", "Because."), CONTEXT)
        expected = "is refused by the chat template (TemplateError: Roles must alternate)"
        assert str(caught.value) == expected

    def test_what_the_templates_program_does_wrong_is_the_reason(self, copy: Path) -> None:
        tokenizer = with_template(copy, "{{ messages[0]['content'] + 1 }}")
        with pytest.raises(UnusableRecordError, match=r"chat template \(TypeError: "):
            tokenizer.record(conversation("Why?", "Because."), CONTEXT)

    def test_a_template_runs_in_a_sandbox(self, copy: Path) -> None:
        tokenizer = with_template(copy, "{{ ''.__class__.__mro__[1].__subclasses__() }}")
        with pytest.raises(UnusableRecordError, match="SecurityError"):
            tokenizer.record(conversation("Why?", "Because."), CONTEXT)


class TestBrokenCheckpoints:
    def test_a_template_with_a_mistake(self, copy: Path) -> None:
        tokenizer = with_template(copy, "{# first line #}\n{% for message in messages %}")
        with pytest.raises(SnapbakeError, match="has a mistake in line 2: Unexpected end"):
            tokenizer.record(conversation("Why?", "Because."), CONTEXT)

    def test_a_template_without_end(self, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("snapbake.calibration._RENDER_SECONDS", 0.2)
        endless = "{% for i in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}"
        tokenizer = with_template(copy, endless)
        start = time.monotonic()
        with pytest.raises(SnapbakeError, match="rendered for more than"):
            tokenizer.record(conversation("Why?", "Because."), CONTEXT)
        assert time.monotonic() - start < 5

    def test_no_template(self, copy: Path) -> None:
        (copy / "chat_template.jinja").unlink()
        with pytest.raises(SnapbakeError, match="has no chat template"):
            ChatTokenizer(copy)

    def test_a_template_in_tokenizer_config(self, copy: Path) -> None:
        (copy / "chat_template.jinja").unlink()
        config = json.loads((copy / "tokenizer_config.json").read_text())
        write_data(copy / "tokenizer_config.json", config | {"chat_template": CHATML})
        assert ChatTokenizer(copy).template == CHATML

    def test_named_templates(self, copy: Path) -> None:
        (copy / "chat_template.jinja").unlink()
        config = json.loads((copy / "tokenizer_config.json").read_text())
        named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}]
        write_data(copy / "tokenizer_config.json", config | {"chat_template": named})
        assert ChatTokenizer(copy).template == CHATML
        write_data(copy / "tokenizer_config.json", config | {"chat_template": named[:1]})
        with pytest.raises(SnapbakeError, match="templates named tool_use and none named default"):
            ChatTokenizer(copy)

    def test_no_tokenizer(self, copy: Path) -> None:
        (copy / "tokenizer.json").unlink()
        with pytest.raises(SnapbakeError, match=r"tokenizer\.json does not exist"):
            ChatTokenizer(copy)

    def test_a_tokenizer_that_cannot_be_loaded(self, copy: Path) -> None:
        write_data(copy / "tokenizer.json", {"model": {"type": "unheard of"}})
        with pytest.raises(SnapbakeError, match="cannot be loaded") as caught:
            ChatTokenizer(copy)
        assert "\n" not in str(caught.value)

    def test_no_vocabulary_size(self, copy: Path) -> None:
        write_data(copy / "config.json", {"model_type": "llama"})
        with pytest.raises(SnapbakeError, match="has no vocab_size"):
            ChatTokenizer(copy)

    def test_the_tokenizer_of_a_larger_model(self, copy: Path) -> None:
        config = json.loads((copy / "config.json").read_text())
        write_data(copy / "config.json", config | {"vocab_size": 100})
        with pytest.raises(SnapbakeError, match="has a vocab_size of 100"):
            ChatTokenizer(copy).record(conversation("Why?", "Because."), CONTEXT)


class CountingTokenizer(ChatTokenizer):
    """Counts the records that are rendered."""

    count = 0

    def record(self, conversation: Conversation, context: int) -> RenderedRecord:
        self.count += 1
        return super().record(conversation, context)


def texts(chosen: list[RenderedRecord]) -> set[tuple[int, ...]]:
    return {item.record.ids for item in chosen}


def indices(chosen: list[RenderedRecord]) -> list[int]:
    return [item.record.index for item in chosen]


class TestChoice:
    @pytest.mark.parametrize("seed", range(12))
    def test_calibration_never_sees_what_is_held_out(
        self, tokenizer: ChatTokenizer, tmp_path: Path, seed: int
    ) -> None:
        # Every record stands there three times, and some differ only beyond the context.
        long = [
            {"instruction": "Tell me more.", "output": "Water. " * 200 + str(number)}
            for number in range(10)
        ]
        data = data_set(tmp_path, rows(30) * 3 + long)
        selection = select(data, tokenizer, CONTEXT, records=20, held_out=10, seed=seed)
        calibration, held_out = selection.calibration, selection.held_out
        assert len(texts(calibration)) == 20
        assert len(texts(held_out)) == 10
        assert not texts(calibration) & texts(held_out)
        assert not set(indices(calibration)) & set(indices(held_out))
        for item in calibration + held_out:
            assert 0 < item.record.prompt_length < len(item.record.ids) <= CONTEXT

    def test_a_seed_gives_the_same_choice_and_another_a_different_one(
        self, tokenizer: ChatTokenizer, tmp_path: Path
    ) -> None:
        data = data_set(tmp_path, rows(60))
        choices = [select(data, tokenizer, CONTEXT, 20, 10, seed) for seed in (7, 7, 8)]
        assert choices[0] == choices[1]
        assert indices(choices[0].calibration) != indices(choices[2].calibration)

    def test_the_choice_of_a_seed_stays_the_same_between_versions(
        self, tokenizer: ChatTokenizer, tmp_path: Path
    ) -> None:
        selection = select(data_set(tmp_path, rows(40)), tokenizer, CONTEXT, 8, 4, seed=0)
        assert indices(selection.held_out) == [0, 27, 12, 21]

    def test_what_is_held_out_does_not_depend_on_the_number_of_records(
        self, tokenizer: ChatTokenizer, tmp_path: Path
    ) -> None:
        data = data_set(tmp_path, rows(60))
        few, many = (select(data, tokenizer, CONTEXT, count, 10, 1) for count in (10, 40))
        assert few.held_out == many.held_out
        assert few.calibration == many.calibration[:10]

    def test_unusable_records_are_replaced_and_named(
        self, tokenizer: ChatTokenizer, tmp_path: Path
    ) -> None:
        good = rows(30)
        bad = [{"instruction": "Why?", "output": ""}, {"instruction": "x " * 200, "output": "y"}]
        data = data_set(tmp_path, good + bad)
        selection = select(data, tokenizer, CONTEXT, 20, 10, seed=3)
        assert set(indices(selection.calibration + selection.held_out)) == set(range(30))
        looked_at = {index for found in selection.skipped.values() for index in found}
        assert looked_at <= {30, 31}

    def test_only_what_is_needed_is_rendered(self, checkpoint: Path, tmp_path: Path) -> None:
        data = data_set(tmp_path, rows(100_000))
        tokenizer = CountingTokenizer(checkpoint)
        start = time.monotonic()
        selection = select(data, tokenizer, CONTEXT, records=100, held_out=32, seed=0)
        assert time.monotonic() - start < 5
        assert tokenizer.count == 132
        assert selection.skipped == {}

    def test_num_samples_limits_the_data_set(
        self, tokenizer: ChatTokenizer, tmp_path: Path
    ) -> None:
        data = data_set(tmp_path, rows(60))
        limited = DataSet(data.files, data.layout, data.rows, "mine", num_samples=12)
        chosen = select(limited, tokenizer, CONTEXT, 8, 4, seed=0)
        assert indices(chosen.calibration) == indices(
            select(data, tokenizer, CONTEXT, 8, 4, seed=0).calibration
        )
        with pytest.raises(SnapbakeError) as caught:
            select(limited, tokenizer, CONTEXT, 9, 4, seed=0)
        expected = "data set 'mine' has 12 usable of 60 records (num_samples takes 12), and 13 are"
        assert str(caught.value).startswith(expected)

    def test_too_few_records(self, tokenizer: ChatTokenizer, tmp_path: Path) -> None:
        empty = [{"instruction": "Why?", "output": ""}] * 4
        rest = [
            {"instruction": "x " * 200, "output": "y"},
            "text",
            {"instruction": "Why?", "output": 5},
        ]
        data = data_set(tmp_path, rows(10) * 2 + empty + rest)
        with pytest.raises(SnapbakeError) as caught:
            select(data, tokenizer, CONTEXT, records=20, held_out=5, seed=0)
        assert str(caught.value) == (
            f"{tmp_path / 'data.json'} has 10 usable of 27 records, and 25 are needed (20 for "
            "calibration, 5 held out); left out were 10 (repeats another record), 4 (has an answer "
            "without text), 1 (has a part that is not text), 2 for other reasons; give more data, "
            "or ask for fewer records"
        )

    def test_a_template_that_refuses_everything(self, copy: Path, tmp_path: Path) -> None:
        tokenizer = with_template(copy, "{{ raise_exception('No such role') }}")
        with pytest.raises(SnapbakeError, match=r"0 usable .*TemplateError: No such role"):
            select(data_set(tmp_path, rows(10)), tokenizer, CONTEXT, 4, 4, seed=0)

    def test_answers_too_short_to_calibrate_decode(
        self, tokenizer: ChatTokenizer, tmp_path: Path
    ) -> None:
        data = data_set(tmp_path, [{"instruction": f"Is it {n}?", "output": "y"} for n in range(9)])
        with pytest.raises(SnapbakeError, match="calibrating the decode graph takes 64"):
            select(data, tokenizer, CONTEXT, records=4, held_out=2, seed=0)


class TestFiles:
    def write(self, checkpoint: Path, data: Path, output: Path, context: int = CONTEXT) -> None:
        write_selection(data, None, checkpoint, context, 12, 6, 5, output)

    def test_the_files_say_what_was_chosen(self, checkpoint: Path, tmp_path: Path) -> None:
        bad = [{"instruction": f"{number}?", "output": ""} for number in range(300)]
        data = write_data(tmp_path / "train.json", rows(40) + bad)
        self.write(checkpoint, data, tmp_path / "out")
        context, calibration = read_token_records(tmp_path / "out/calibration.json")
        _, held_out = read_token_records(tmp_path / "out/heldout.json")
        assert (context, len(calibration), len(held_out)) == (CONTEXT, 12, 6)
        assert calibration[0].prompt == rows(40)[calibration[0].index]["instruction"]

        manifest = json.loads((tmp_path / "out/manifest.json").read_text())
        assert manifest["calibration"]["indices"] == [record.index for record in calibration]
        assert manifest["held_out"]["count"] == 6
        assert manifest["calibration"]["answer_tokens"] == sum(
            len(record.ids) - record.prompt_length for record in calibration
        )
        assert manifest["data"] == {
            "files": [{"name": "train.json", "sha256": sha256(data)}],
            "layout": "alpaca",
            "name": None,
            "records": 340,
        }
        assert manifest["tokenizer_sha256"] == sha256(checkpoint / "tokenizer.json")
        assert manifest["chat_template_sha256"] == sha256(checkpoint / "chat_template.jinja")
        assert manifest["prompt_end"]["common_prefix"] == []
        assert (manifest["seed"], manifest["context"]) == (5, CONTEXT)
        skipped = manifest["skipped"]["has an answer without text"]
        assert skipped["count"] > len(skipped["indices"]) == 20

    def test_the_same_bytes_in_another_folder(self, checkpoint: Path, tmp_path: Path) -> None:
        for name in ("one", "two"):
            folder = tmp_path / name
            folder.mkdir()
            data = write_data(folder / "train.json", rows(40))
            self.write(checkpoint, data, folder / "out")
        for name in ("calibration.json", "heldout.json", "manifest.json"):
            written = [(tmp_path / folder / "out" / name).read_bytes() for folder in ("one", "two")]
            assert written[0] == written[1], name

    def test_nothing_is_written_when_something_is_wrong(
        self, checkpoint: Path, tmp_path: Path
    ) -> None:
        data = write_data(tmp_path / "train.json", rows(5))
        with pytest.raises(SnapbakeError):
            self.write(checkpoint, data, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_prompts_that_end_otherwise_are_listed(self, copy: Path, tmp_path: Path) -> None:
        template = (
            CHATML + "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
        )
        (copy / "chat_template.jinja").write_text(template)
        self.write(copy, write_data(tmp_path / "train.json", rows(18)), tmp_path / "out")
        manifest = json.loads((tmp_path / "out/manifest.json").read_text())
        assert manifest["prompt_end"]["common_prefix"] == list(range(18))

    @pytest.mark.parametrize(
        "content",
        [
            [],
            {"context": 4},
            {"context": 4, "records": [{"index": 0}]},
            {"context": "four", "records": []},
        ],
    )
    def test_other_json_is_no_file_of_records(self, tmp_path: Path, content: Any) -> None:
        with pytest.raises(SnapbakeError, match="is not a file of tokenised records"):
            read_token_records(write_data(tmp_path / "x.json", content))

    @pytest.mark.parametrize(("prompt_length", "context"), [(0, 4), (3, 4), (2, 2)])
    def test_records_that_do_not_fit(
        self, tmp_path: Path, prompt_length: int, context: int
    ) -> None:
        record = TokenRecord(7, (1, 2, 3), prompt_length, "a", "b")
        write_token_records(tmp_path / "x.json", context, [record])
        with pytest.raises(SnapbakeError, match="has a record 7"):
            read_token_records(tmp_path / "x.json")


class TestProgram:
    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False
        )

    def test_a_data_set_by_name(self, checkpoint: Path, tmp_path: Path) -> None:
        write_data(tmp_path / "train.json", rows(40))
        info = write_data(tmp_path / "dataset_info.json", {"mine": {"file_name": "train.json"}})
        result = self.run(
            *("--data", info, "--dataset", "mine", "--checkpoint", checkpoint),
            *("--context", "160", "--records", "12", "--held-out", "6", "--seed", "5"),
            *("--output-dir", tmp_path / "out"),
        )
        assert result.returncode == 0, result.stderr
        assert "12 records for calibration and 6 held out, of 40; 0 left out" in result.stderr
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
            "calibration.json",
            "heldout.json",
            "manifest.json",
        ]

    def test_a_mistake_is_one_line(self, checkpoint: Path, tmp_path: Path) -> None:
        result = self.run(
            *("--data", tmp_path / "none.json", "--checkpoint", checkpoint),
            *("--context", "160", "--output-dir", tmp_path / "out"),
        )
        assert result.returncode == 1
        assert result.stderr == f"error: {tmp_path}/none.json does not exist; check the path\n"

    def test_numbers_below_one(self) -> None:
        result = self.run("--records", "0")
        assert result.returncode == 2
        assert "argument --records: '0' is not a whole number from 1" in result.stderr


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
