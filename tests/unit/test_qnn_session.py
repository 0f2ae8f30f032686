"""What is made of the provider's messages."""

from pathlib import Path

import pytest

from snapbake.errors import SnapbakeError
from snapbake.qnn_session import operators_outside, work_folder


def test_refused_operators_are_read_from_messages() -> None:
    messages = [
        "Unsupported nodes in QNN EP: { name: ac, type: Acosh }, ",
        "Unsupported nodes in QNN EP: { name: ac, type: Acosh }{ name: /c/Conv_token_12, type: Conv"
        " }{ name: , type: Det }{ name: , type: Mod }",
        "Failed to finalize { name: x, type: Y }",
    ]
    assert operators_outside(messages) == [
        ("ac", "Acosh"),
        ("/c/Conv", "Conv"),
        ("", "Det"),
        ("", "Mod"),
    ]


def test_the_work_folder_lies_beside_the_output_and_goes(tmp_path: Path) -> None:
    output = tmp_path / "new" / "x.bin"

    def fail_halfway() -> None:
        with work_folder(output, 10) as folder:
            assert folder.parent == output.parent
            (folder / "half").write_bytes(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        fail_halfway()
    assert not any(output.parent.iterdir())


def test_a_full_disk_is_found_before(tmp_path: Path) -> None:
    with (
        pytest.raises(SnapbakeError, match=r"needs 1250000.* GB of disk space"),
        work_folder(tmp_path / "x.bin", 10**15),
    ):
        pass
