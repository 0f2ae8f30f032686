"""The table of chips and what it refuses."""

import dataclasses
import re
from pathlib import Path

import pytest

from snapbake.errors import SnapbakeError
from snapbake.socs import Soc, load_socs, why_refused

TABLE = Path(__file__).parents[2] / "config" / "socs.yaml"
ROW = """\
sm8650:
  part: SM8650
  marketing_name: Snapdragon 8 Gen 3
  soc_model: 57
  arch: 75
  vtcm_mb: 8
  fp16: true
  matmul_16x16: true
  graph_limit_mb: 3584
"""


@pytest.fixture(scope="module")
def socs() -> dict[str, Soc]:
    return load_socs(TABLE)


def test_the_default_target(socs: dict[str, Soc]) -> None:
    soc = socs["sm8650"]
    assert soc == Soc("sm8650", "SM8650", "Snapdragon 8 Gen 3", 57, 75, 8, True, True, 3584)
    assert soc.title == "SM8650 (Snapdragon 8 Gen 3, v75)"
    assert socs["qcm6690"].title == "QCM6690 (v73)"


def test_names_are_parts_in_lower_case_and_numbers_are_unique(socs: dict[str, Soc]) -> None:
    assert len(socs) == 70
    assert all(name == soc.name == soc.part.lower() for name, soc in socs.items())
    assert len({soc.soc_model for soc in socs.values()}) == len(socs)


@pytest.mark.parametrize(
    ("name", "needs_fp16", "needs_matmul", "reason"),
    [
        ("sm8650", True, True, None),
        ("sm8735", False, True, None),
        ("sm8735", True, False, "does not compute in floating point; choose a quantized recipe"),
        ("sm8350", False, False, r"SM8350 \(Snapdragon 888/888\+, v68\) .* needs v73 or later"),
        ("sm8450", True, False, r"share their weights, which needs v73 or later"),
        ("cpn3050", False, False, r"QAIRT 2.51 cannot compile for CPN3050 \(v89\)"),
        # Nothing is known of its 16-bit products, so nothing is claimed.
        ("sm8950", False, True, None),
    ],
)
def test_refusals_give_the_reason(
    socs: dict[str, Soc], name: str, needs_fp16: bool, needs_matmul: bool, reason: str | None
) -> None:
    found = why_refused(socs[name], needs_fp16, needs_matmul)
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert re.search(reason, found)


def test_a_chip_without_16_bit_products_refuses_a_16_bit_cache(socs: dict[str, Soc]) -> None:
    soc = dataclasses.replace(socs["sm8650"], matmul_16x16=False)
    assert why_refused(soc, False, False) is None
    found = why_refused(soc, False, True)
    assert found is not None
    assert "choose a recipe with an 8-bit KV cache" in found


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  arch: 75\n", "", "sm8650 has no arch; add it"),
        ("arch: 75", "arch: v75", "sm8650 has arch: 'v75', which must be a whole number"),
        ("arch: 75", "arch: true", "sm8650 has arch: True, which must be a whole number"),
        ("fp16: true", "fp16: 1", "sm8650 has fp16: 1, which must be true or false"),
        ("arch: 75", "arch: 75\n  colour: red", "sm8650 has the unknown key colour; remove it"),
        (ROW, "sm8650: 57\n", "sm8650 must map part, marketing_name, "),
        (ROW, "[sm8650]\n", "must map names of targets to their properties"),
        (ROW, "sm8650: {\n", "is not valid YAML: "),
    ],
)
def test_mistakes_in_the_table_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    table = tmp_path / "socs.yaml"
    table.write_text(ROW)
    assert list(load_socs(table)) == ["sm8650"]
    assert old in ROW
    table.write_text(ROW.replace(old, new))
    with pytest.raises(SnapbakeError, match=re.escape(message)):
        load_socs(table)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(SnapbakeError, match=r"socs.yaml cannot be read: No such file"):
        load_socs(tmp_path / "socs.yaml")
