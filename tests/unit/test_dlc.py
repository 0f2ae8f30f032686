"""DLC files of real graphs."""

from pathlib import Path

import pytest

from htp_graphs import WIDTH, make_float_graphs, make_quantized_graphs
from snapbake.dlc import write_dlc
from snapbake.errors import SnapbakeError


@pytest.mark.parametrize("make", [make_float_graphs, make_quantized_graphs])
def test_two_folders_and_times_give_the_same_bytes(tmp_path: Path, make: type) -> None:
    outputs = []
    for name in ("one", "quite_another_place"):
        graphs = make(tmp_path / name)
        outputs.append(tmp_path / name / "out" / "decode.dlc")
        write_dlc(graphs["decode"], "decode", outputs[-1])
        assert list(outputs[-1].parent.iterdir()) == [outputs[-1]]
    content = outputs[0].read_bytes()
    assert content == outputs[1].read_bytes()
    # Stored, not compressed: the name and the weights are to be seen.
    assert content.count(b"decode____") == 4
    assert content.count(b'"timestamp": "1970-01-01 00:00:00 UTC"') == 3
    assert len(content) > WIDTH * WIDTH


def test_an_operator_left_outside_is_named(tmp_path: Path) -> None:
    graphs = make_float_graphs(tmp_path / "graphs", odd_operator="Acosh")
    with pytest.raises(SnapbakeError, match=r"decode.onnx .* QNN refuses odd_one \(Acosh\); "):
        write_dlc(graphs["decode"], "decode", tmp_path / "out" / "decode.dlc")
    assert not any((tmp_path / "out").iterdir())
