"""Writing files whole or not at all, and what is said about a disk."""

import errno
import os
from pathlib import Path

import pytest

from snapbake.errors import SnapbakeError, run_program
from snapbake.files import atomic_path, read_json, require_disk_space, require_file, write_json


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    with atomic_path(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    assert [child.name for child in path.parent.iterdir()] == ["file.txt"]


def test_a_failure_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "old"
    assert [child.name for child in tmp_path.iterdir()] == ["file.txt"]


def test_a_file_has_the_mode_that_the_umask_asks_for(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "file.json", {})
    finally:
        os.umask(before)
    assert (tmp_path / "file.json").stat().st_mode & 0o777 == 0o640


def test_equal_content_is_equal_bytes(tmp_path: Path) -> None:
    write_json(tmp_path / "1.json", {"b": "é", "a": [1, 2.5]})
    write_json(tmp_path / "2.json", {"a": [1, 2.5], "b": "é"})
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()
    assert read_json(tmp_path / "1.json") == {"a": [1, 2.5], "b": "é"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "3.json", float("nan"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"a": 1', "is not valid JSON: .* at line 1, column 8; mend or replace the file"),
        (b"\xff\xfe", "is not UTF-8 text; save it as UTF-8"),
    ],
)
def test_broken_json_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(SnapbakeError, match=f"file.json {words}"):
        read_json(path)


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SnapbakeError, match="absent does not exist; check the path"):
        require_file(tmp_path / "absent")
    with pytest.raises(SnapbakeError, match="is not a file; give the path of a file"):
        require_file(tmp_path)


@pytest.mark.parametrize(("needed", "words"), [(10**18, r"1000000000\.0 GB"), (1, None)])
def test_a_small_disk_is_refused(tmp_path: Path, needed: int, words: str | None) -> None:
    if words is None:
        require_disk_space(tmp_path / "to" / "be" / "made", needed)
        return
    with pytest.raises(SnapbakeError, match=f"made needs {words} of disk space and .* is free; "):
        require_disk_space(tmp_path / "to" / "be" / "made", needed)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "No space left on device (a/file); free some space or move the results"),
        (errno.EACCES, "Permission denied (a/file)\n"),
    ],
)
def test_the_system_s_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], number: int, words: str
) -> None:
    def main() -> None:
        raise OSError(number, os.strerror(number), "a/file")

    with pytest.raises(SystemExit) as ended:
        run_program(main)
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert told.startswith(f"error: {words}")
    assert told.count("\n") == 1
