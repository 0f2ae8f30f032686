"""The data set of the default build: usable whole, varied, and what its README says."""

import re
from pathlib import Path

from snapbake.records import Conversation, read_data_set

FOLDER = Path(__file__).parents[2] / "config" / "data"


def conversations() -> list[Conversation]:
    data_set = read_data_set(FOLDER / "instructions.json")
    return [data_set.conversation(index) for index in range(len(data_set.rows))]


def test_every_record_is_usable_by_file_and_by_name() -> None:
    by_name = read_data_set(FOLDER / "dataset_info.json", "instructions")
    described = [by_name.conversation(index) for index in range(len(by_name.rows))]
    assert described == conversations()
    assert f"holds {len(described)} questions" in (FOLDER / "README.md").read_text("utf-8")


def test_no_two_records_are_alike() -> None:
    words = [
        frozenset(re.findall(r"\w+", " ".join(part.content for part in item.messages).lower()))
        for item in conversations()
    ]
    for place, first in enumerate(words):
        for second in words[:place]:
            assert len(first & second) / len(first | second) < 0.4


def test_lengths_vary() -> None:
    lengths = sorted(
        sum(len(part.content.split()) for part in item.messages) for item in conversations()
    )
    assert lengths[0] < 25
    assert lengths[len(lengths) // 10] < 60 < lengths[len(lengths) * 9 // 10]
    assert lengths[-1] > 200
