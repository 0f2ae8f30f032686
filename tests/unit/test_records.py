"""Fine-tuning files in every layout, and what is said about the ones that cannot be used."""

import json
from pathlib import Path
from typing import Any

import pytest

from snapbake.errors import SnapbakeError
from snapbake.records import (
    Conversation,
    DataSet,
    Message,
    UnusableRecordError,
    find_data_files,
    read_data_set,
)

QUESTION = Message("user", "Why is the sky blue?")
ANSWER = Message("assistant", "Air scatters short wavelengths most.")

ALPACA = {"instruction": QUESTION.content, "input": "", "output": ANSWER.content}
SHAREGPT = {
    "conversations": [
        {"from": "human", "value": QUESTION.content},
        {"from": "gpt", "value": ANSWER.content},
    ]
}
OPENAI = {
    "messages": [
        {"role": "user", "content": QUESTION.content},
        {"role": "assistant", "content": ANSWER.content},
    ]
}
OPENAI_TAGS = {
    "role_tag": "role",
    "content_tag": "content",
    "user_tag": "user",
    "assistant_tag": "assistant",
    "system_tag": "system",
}


def write_json(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def describe(folder: Path, rows: Any, **entry: Any) -> DataSet:
    """Read rows through a dataset_info.json with one entry, `mine`."""
    write_json(folder / "rows.json", rows)
    info = write_json(folder / "dataset_info.json", {"mine": {"file_name": "rows.json"} | entry})
    return read_data_set(info, "mine")


def reason(data_set: DataSet, index: int = 0) -> str:
    with pytest.raises(UnusableRecordError) as caught:
        data_set.conversation(index)
    return str(caught.value)


class TestLayouts:
    @pytest.mark.parametrize("row", [ALPACA, SHAREGPT, OPENAI])
    @pytest.mark.parametrize("write", [write_json, write_lines])
    def test_bare_files_are_told_apart_by_their_keys(
        self, tmp_path: Path, row: dict[str, Any], write: Any
    ) -> None:
        # The suffix decides nothing: LLaMA-Factory reads JSON lines from .json too.
        for suffix in (".json", ".jsonl"):
            data_set = read_data_set(write(tmp_path / f"data{suffix}", [row, row]))
            assert len(data_set.rows) == 2
            assert data_set.conversation(1) == Conversation(1, (QUESTION, ANSWER))

    def test_a_single_record_may_span_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "one.json"
        path.write_text(json.dumps(ALPACA, indent=2))
        assert read_data_set(path).conversation(0).messages == (QUESTION, ANSWER)

    def test_alpaca_joins_instruction_and_input(self, tmp_path: Path) -> None:
        row = {"instruction": "Shorten.", "input": "A long text.", "output": "Text."}
        data_set = read_data_set(write_json(tmp_path / "a.json", [row]))
        assert data_set.conversation(0).messages[0] == Message("user", "Shorten.\nA long text.")

    def test_alpaca_system_and_history_come_first(self, tmp_path: Path) -> None:
        row = ALPACA | {"system": "Be brief.", "history": [["Hello", "Hi."]]}
        data_set = read_data_set(write_json(tmp_path / "a.json", [row]))
        assert data_set.conversation(0).messages == (
            Message("system", "Be brief."),
            Message("user", "Hello"),
            Message("assistant", "Hi."),
            QUESTION,
            ANSWER,
        )

    def test_sharegpt_system_turn_wins_over_the_column(self, tmp_path: Path) -> None:
        turns = [{"from": "system", "value": "Turn."}, *SHAREGPT["conversations"]]
        rows = [{"conversations": turns, "system": "Column."}, SHAREGPT | {"system": "Column."}]
        data_set = read_data_set(write_json(tmp_path / "s.json", rows))
        assert data_set.conversation(0).messages[0] == Message("system", "Turn.")
        assert data_set.conversation(1).messages[0] == Message("system", "Column.")

    def test_the_chosen_answer_of_ranking_data_is_taken(self, tmp_path: Path) -> None:
        alpaca = {
            "instruction": QUESTION.content,
            "chosen": ANSWER.content,
            "rejected": "No idea.",
        }
        sharegpt = {
            "conversations": SHAREGPT["conversations"][:1],
            "chosen": SHAREGPT["conversations"][1],
            "rejected": {"from": "gpt", "value": "No idea."},
        }
        for row in (alpaca, sharegpt):
            data_set = read_data_set(write_json(tmp_path / "r.json", [row]))
            assert data_set.layout.ranking
            assert data_set.conversation(0).messages == (QUESTION, ANSWER)

    def test_openai_parts_of_text_are_joined(self, tmp_path: Path) -> None:
        parts = [{"type": "text", "text": "Why is the "}, {"type": "text", "text": "sky blue?"}]
        row = {"messages": [{"role": "user", "content": parts}, OPENAI["messages"][1]]}
        data_set = read_data_set(write_json(tmp_path / "o.json", [row]))
        assert data_set.conversation(0).messages == (QUESTION, ANSWER)

    def test_line_separators_inside_a_string_do_not_split_records(self, tmp_path: Path) -> None:
        path = tmp_path / "lines.jsonl"
        row = ALPACA | {"output": "one\u2028two\x85three"}
        path.write_text(f"{json.dumps(row, ensure_ascii=False)}\n\n" * 2, encoding="utf-8")
        data_set = read_data_set(path)
        assert len(data_set.rows) == 2
        assert data_set.conversation(0).messages[1].content == "one\u2028two\x85three"

    def test_a_byte_order_mark_is_no_content(self, tmp_path: Path) -> None:
        path = tmp_path / "bom.json"
        path.write_bytes(b"\xef\xbb\xbf" + json.dumps([ALPACA]).encode())
        assert read_data_set(path).conversation(0).messages == (QUESTION, ANSWER)


class TestDatasetInfo:
    def test_defaults_are_those_of_alpaca(self, tmp_path: Path) -> None:
        data_set = describe(tmp_path, [ALPACA | {"system": "Not read."}])
        assert data_set.name == "mine"
        assert data_set.conversation(0).messages == (QUESTION, ANSWER)

    def test_columns_are_the_only_ones_that_are_read(self, tmp_path: Path) -> None:
        row = {
            "question": QUESTION.content,
            "reply": ANSWER.content,
            "rules": "Be kind.",
            "past": [["Hello", "Hi."]],
            "input": "not named, so not part of the training",
        }
        columns = {"prompt": "question", "response": "reply", "system": "rules", "history": "past"}
        data_set = describe(tmp_path, [row], columns=columns)
        assert data_set.conversation(0).messages == (
            Message("system", "Be kind."),
            Message("user", "Hello"),
            Message("assistant", "Hi."),
            QUESTION,
            ANSWER,
        )

    def test_tags_rename_keys_and_roles(self, tmp_path: Path) -> None:
        row = {
            "dialogue": [
                {"who": "customer", "said": QUESTION.content},
                {"who": "agent", "said": ANSWER.content},
            ]
        }
        tags = {
            "role_tag": "who",
            "content_tag": "said",
            "user_tag": "customer",
            "assistant_tag": "agent",
        }
        data_set = describe(
            tmp_path, [row], formatting="sharegpt", columns={"messages": "dialogue"}, tags=tags
        )
        assert data_set.conversation(0).messages == (QUESTION, ANSWER)

    def test_openai_layout_of_sharegpt(self, tmp_path: Path) -> None:
        data_set = describe(
            tmp_path,
            [OPENAI],
            formatting="sharegpt",
            columns={"messages": "messages"},
            tags=OPENAI_TAGS,
        )
        assert data_set.conversation(0).messages == (QUESTION, ANSWER)

    @pytest.mark.parametrize(
        ("system", "rendered"),
        [
            (None, "detailed thinking off"),
            ("Be brief.", "Be brief.\ndetailed thinking off"),
            ("detailed thinking on", "detailed thinking on"),
        ],
    )
    def test_openai_converter_adds_its_system_text(
        self, tmp_path: Path, system: str | None, rendered: str
    ) -> None:
        turns = OPENAI["messages"]
        if system is not None:
            turns = [{"role": "system", "content": system}, *turns]
        data_set = describe(
            tmp_path,
            [{"messages": turns}],
            formatting="openai",
            columns={"messages": "messages"},
            tags=OPENAI_TAGS,
        )
        assert data_set.conversation(0).messages[0] == Message("system", rendered)

    def test_ranking_takes_the_chosen_column(self, tmp_path: Path) -> None:
        row = {"instruction": QUESTION.content, "good": ANSWER.content, "bad": "No idea."}
        columns = {"prompt": "instruction", "chosen": "good", "rejected": "bad"}
        data_set = describe(tmp_path, [row], ranking=True, columns=columns)
        assert data_set.conversation(0).messages == (QUESTION, ANSWER)

    def test_a_folder_of_one_kind_is_read_in_the_order_of_names(self, tmp_path: Path) -> None:
        parts = tmp_path / "parts"
        parts.mkdir()
        for name in ("b", "a"):
            write_json(parts / f"{name}.json", [ALPACA | {"output": name}])
        (parts / ".hidden").touch()
        info = write_json(tmp_path / "dataset_info.json", {"mine": {"file_name": "parts"}})
        data_set = read_data_set(info, "mine")
        answers = [data_set.conversation(index).messages[1].content for index in (0, 1)]
        assert answers == ["a", "b"]
        assert find_data_files(info, "mine") == (info, parts / "a.json", parts / "b.json")

    def test_num_samples_is_kept_for_the_choice(self, tmp_path: Path) -> None:
        assert describe(tmp_path, [ALPACA] * 3, num_samples=2).num_samples == 2

    def test_the_files_of_a_bare_file_are_the_file(self, tmp_path: Path) -> None:
        assert find_data_files(tmp_path / "x.json") == (tmp_path / "x.json",)


class TestUnusableRecords:
    @pytest.mark.parametrize(
        ("row", "expected"),
        [
            ("a string", "is not a JSON object"),
            (ALPACA | {"output": ""}, "has an answer without text"),
            (ALPACA | {"output": " \n"}, "has an answer without text"),
            ({"instruction": "Why?"}, "has an answer without text"),
            (ALPACA | {"output": None}, "has an answer without text"),
            (ALPACA | {"instruction": ""}, "has a question without text"),
            (ALPACA | {"output": ["chosen", "rejected"]}, "has a part that is not text"),
            (ALPACA | {"input": 7}, "has a part that is not text"),
            (ALPACA | {"output": "half \ud83d"}, "has text that is not valid Unicode"),
            (ALPACA | {"images": ["cat.png"]}, "has images, video or audio"),
            (ALPACA | {"tools": '[{"name": "clock"}]'}, "uses tools"),
            (ALPACA | {"kto_tag": False}, "has an answer that is marked as undesirable"),
            (
                ALPACA | {"history": [["Hello"]]},
                "has a history that is not a list of question and answer pairs",
            ),
            (
                ALPACA | {"history": "Hello"},
                "has a history that is not a list of question and answer pairs",
            ),
        ],
    )
    def test_alpaca(self, tmp_path: Path, row: Any, expected: str) -> None:
        data_set = read_data_set(write_json(tmp_path / "a.json", [ALPACA, row]))
        assert reason(data_set, 1) == expected

    def test_alpaca_that_is_marked_as_desirable_is_used(self, tmp_path: Path) -> None:
        row = ALPACA | {"kto_tag": True, "tools": "[]", "images": [], "history": None}
        data_set = read_data_set(write_json(tmp_path / "a.json", [row]))
        assert data_set.conversation(0).messages == (QUESTION, ANSWER)

    @pytest.mark.parametrize(
        ("turns", "expected"),
        [
            ([], "has no list of turns"),
            (None, "has no list of turns"),
            (["Hello"], "has a turn without a role"),
            ([{"value": "Hello"}], "has a turn without a role"),
            ([{"from": "narrator", "value": "Once"}], "has a turn with an unknown role"),
            ([{"from": ["human"], "value": "Once"}], "has a turn with an unknown role"),
            ([{"from": "human", "value": "Hello"}], "does not end with an answer"),
            ([{"from": "system", "value": "Be brief."}], "does not end with an answer"),
            (
                [{"from": "gpt", "value": "Hi"}, {"from": "human", "value": "Hello"}],
                "has turns that are not user and assistant in turn",
            ),
            (
                [{"from": "human", "value": "Time?"}, {"from": "function_call", "value": "{}"}],
                "uses tools",
            ),
            (
                [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": ""}],
                "has an answer without text",
            ),
            (
                [{"from": "human", "value": 7}, {"from": "gpt", "value": "Hi"}],
                "has a part that is not text",
            ),
        ],
    )
    def test_sharegpt(self, tmp_path: Path, turns: Any, expected: str) -> None:
        rows = [SHAREGPT, {"conversations": turns}]
        assert reason(read_data_set(write_json(tmp_path / "s.json", rows)), 1) == expected

    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            ({"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, "uses tools"),
            (
                {"role": "assistant", "content": [{"type": "image_url", "image_url": "x"}]},
                "has images, video or audio",
            ),
        ],
    )
    def test_openai(self, tmp_path: Path, message: dict[str, Any], expected: str) -> None:
        rows = [{"messages": [OPENAI["messages"][0], message]}]
        assert reason(read_data_set(write_json(tmp_path / "o.json", rows))) == expected

    def test_ranking_without_a_chosen_turn(self, tmp_path: Path) -> None:
        columns = {"messages": "conversations", "chosen": "chosen"}
        data_set = describe(
            tmp_path, [SHAREGPT], formatting="sharegpt", ranking=True, columns=columns
        )
        assert reason(data_set) == "has no chosen answer"


class TestRefusals:
    """Each is one sentence that names the file, what is wrong and what to do."""

    def refuse(self, path: Path, name: str | None = None) -> str:
        with pytest.raises(SnapbakeError) as caught:
            read_data_set(path, name)
        message = str(caught.value)
        assert str(path.parent) in message
        assert "\n" not in message
        return message

    def test_a_missing_file(self, tmp_path: Path) -> None:
        assert "does not exist" in self.refuse(tmp_path / "none.json")

    def test_a_folder(self, tmp_path: Path) -> None:
        folder = tmp_path / "folder"
        folder.mkdir()
        assert "is a folder; give a file of records" in self.refuse(folder)
        assert "is a folder; give the path of the dataset_info.json" in self.refuse(folder, "x")

    def test_broken_json_is_placed_by_line_and_column(self, tmp_path: Path) -> None:
        path = tmp_path / "broken.json"
        path.write_text('[\n  {"instruction": "Why?", "output": "So."},\n  {"instruction" "x"}\n]')
        assert "line 3, column 18" in self.refuse(path)

    def test_a_file_that_was_cut_off(self, tmp_path: Path) -> None:
        path = tmp_path / "cut.json"
        path.write_text(json.dumps([ALPACA] * 3)[:-20])
        assert "is not valid JSON: Unterminated string" in self.refuse(path)

    def test_a_broken_line_of_json_lines_is_named(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "lines.jsonl", [ALPACA] * 4)
        lines = path.read_text().splitlines()
        path.write_text("\n".join([*lines[:2], "", lines[2][:30], lines[3]]))
        assert "at line 4, column 17" in self.refuse(path)

    def test_a_broken_first_line(self, tmp_path: Path) -> None:
        path = tmp_path / "lines.jsonl"
        path.write_text('{"instruction": }\n{"instruction": "Why?", "output": "So."}\n')
        assert "line 1, column 17" in self.refuse(path)

    def test_text_that_is_not_utf8(self, tmp_path: Path) -> None:
        path = tmp_path / "latin.json"
        path.write_bytes('[{"instruction": "Où?"}]'.encode("latin-1"))
        assert "is not UTF-8 text (byte 19); save it as UTF-8" in self.refuse(path)

    def test_absurd_nesting(self, tmp_path: Path) -> None:
        path = tmp_path / "deep.json"
        path.write_text("[" * 200_000)
        assert "nested too deeply" in self.refuse(path)

    @pytest.mark.parametrize("text", ["", " \n", "[]"])
    def test_an_empty_file(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "empty.json"
        path.write_text(text)
        assert "holds no records" in self.refuse(path)

    @pytest.mark.parametrize(
        ("name", "advice"),
        [
            ("train.csv", "pandas.read_csv"),
            ("train.parquet", "pandas.read_parquet"),
            ("train.arrow", "datasets.Dataset.from_file"),
            ("train.txt", "plain text has no questions and answers"),
            ("train.json.gz", "unpack it first"),
            ("train.xlsx", "convert it to a JSON list"),
            ("train", "a file without a suffix"),
        ],
    )
    def test_other_kinds_of_files(self, tmp_path: Path, name: str, advice: str) -> None:
        path = tmp_path / name
        path.touch()
        assert advice in self.refuse(path)

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (5, "holds a single value"),
            ([1, 2], "holds no JSON objects"),
            ([{"text": "A novel."}], "is pre-training text"),
            ([{"q": "Why?", "a": "So."}], "records with the keys 'q', 'a'"),
            ({"mine": {"file_name": "x.json"}}, "name one of its data sets as well: 'mine'"),
        ],
    )
    def test_content_that_is_no_list_of_records(
        self, tmp_path: Path, content: Any, expected: str
    ) -> None:
        assert expected in self.refuse(write_json(tmp_path / "x.json", content))

    def test_records_wrapped_in_an_object(self, tmp_path: Path) -> None:
        path = tmp_path / "x.json"
        path.write_text(json.dumps({"version": 1, "data": [ALPACA]}, indent=1))
        assert "one JSON object with the keys 'version', 'data'" in self.refuse(path)

    def test_a_name_without_dataset_info(self, tmp_path: Path) -> None:
        plain = write_json(tmp_path / "x.json", [ALPACA])
        assert "holds records and no data sets by name" in self.refuse(plain, "mine")
        lines = write_lines(tmp_path / "x.jsonl", [ALPACA])
        assert "is not a dataset_info.json" in self.refuse(lines, "mine")

    def test_an_unknown_name(self, tmp_path: Path) -> None:
        info = write_json(tmp_path / "dataset_info.json", {"identity": {}, "alpaca_demo": {}})
        assert "did you mean 'identity'?" in self.refuse(info, "idntity")
        assert "it names 'identity', 'alpaca_demo'" in self.refuse(info, "zzz")

    @pytest.mark.parametrize(
        ("entry", "expected"),
        [
            ("x.json", "is not an object with file_name"),
            ({}, "has no file_name"),
            ({"file_name": 3}, "has no file_name"),
            ({"hf_hub_url": "org/data"}, "is on the Hugging Face hub (hf_hub_url: org/data)"),
            ({"ms_hub_url": "org/data"}, "is on the ModelScope hub"),
            ({"om_hub_url": "org/data"}, "is on the Modelers hub"),
            ({"script_url": "belle"}, "is made by a loading script"),
            ({"cloud_file_name": "s3://x"}, "is in cloud storage"),
            ({"file_name": "none.json"}, "none.json does not exist"),
            ({"file_name": "rows.json", "formatting": "vicuna"}, "has the formatting 'vicuna'"),
            (
                {"file_name": "rows.json", "columns": {"prompt": "text"}},
                "does not say which column is response",
            ),
            (
                {"file_name": "rows.json", "formatting": "sharegpt", "columns": {"system": "s"}},
                "does not say which column is messages",
            ),
            (
                {"file_name": "rows.json", "ranking": True},
                "does not say which column is chosen",
            ),
            ({"file_name": "rows.json", "columns": ["a"]}, "has columns that are not an object"),
            ({"file_name": "rows.json", "columns": {"prompt": 1}}, "gives columns.prompt as 1"),
            ({"file_name": "rows.json", "num_samples": 0}, "has num_samples 0"),
            ({"file_name": "rows.json", "num_samples": True}, "has num_samples True"),
        ],
    )
    def test_entries(self, tmp_path: Path, entry: Any, expected: str) -> None:
        write_json(tmp_path / "rows.json", [ALPACA])
        info = write_json(tmp_path / "dataset_info.json", {"mine": entry})
        assert expected in self.refuse(info, "mine")

    def test_folders_that_hold_nothing_or_a_mixture(self, tmp_path: Path) -> None:
        parts = tmp_path / "parts"
        parts.mkdir()
        info = write_json(tmp_path / "dataset_info.json", {"mine": {"file_name": "parts"}})
        assert "is an empty folder" in self.refuse(info, "mine")
        write_json(parts / "a.json", [ALPACA])
        write_lines(parts / "b.jsonl", [ALPACA])
        assert "holds files of several kinds (.json, .jsonl)" in self.refuse(info, "mine")
