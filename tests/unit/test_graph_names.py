"""Names of graphs: padding and replacing them in files."""

from pathlib import Path

import pytest

from snapbake.errors import SnapbakeError
from snapbake.graph_names import padded_name, plain_name, rename_in_file, require_graph_name


@pytest.mark.parametrize(
    ("name", "length", "padded"),
    [
        ("decode", 6, "decode"),
        ("decode", 10, "decode____"),
        ("prefill_ar128", 16, "prefill_ar128___"),
        ("llm_1_of_2", 14, "llm_____1_of_2"),
    ],
)
def test_padding_and_back(name: str, length: int, padded: str) -> None:
    assert padded_name(name, length) == padded
    assert len(padded) == length
    assert plain_name(padded) == name


def test_a_name_that_does_not_fit_is_refused() -> None:
    with pytest.raises(SnapbakeError, match="has 6 characters and 5 fit; shorten it"):
        padded_name("decode", 5)


@pytest.mark.parametrize("name", ["", "1st", "de code", "decode_", "é", "a-b", "_a"])
def test_names_that_no_graph_can_have(name: str) -> None:
    with pytest.raises(SnapbakeError, match="cannot name a graph"):
        require_graph_name(name)


@pytest.mark.parametrize("name", ["decode", "prefill_ar128_cl512", "llm_1_of_2"])
def test_names_that_a_graph_can_have(name: str) -> None:
    require_graph_name(name)


def test_every_occurrence_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"\x05aaaa1\0PICKLE/aaaa1aaaa1 aaaa2 aaaa")
    rename_in_file(path, {"aaaa1": "one__", "aaaa2": "two__"})
    assert path.read_bytes() == b"\x05one__\0PICKLE/one__one__ two__ aaaa"


def test_a_name_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"nothing")
    with pytest.raises(SnapbakeError, match=r"x.bin does not contain the graph name aaaa"):
        rename_in_file(path, {"aaaa": "bbbb"})
