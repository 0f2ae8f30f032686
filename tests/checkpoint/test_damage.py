"""Random damage: the gate refuses the folder, or hands on a model that computes the same.

Three things are beyond what a folder can prove, and the tests say so where they meet them:
- Two numbers of config.json, the epsilon of the norms and what the rotary positions are computed
  from, can be replaced by other possible ones: no tensor knows them.
- Safetensors have no checksums, so other bytes of a weight are another weight. They are found when
  the identity of the weights is asked for (`sha256` in the configuration).
- The same holds for the names of two tensors of one shape that are exchanged.
"""

import contextlib
import copy
import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gate_tools import logits, prepare
from snapbake.errors import SnapbakeError
from snapbake.families import read_spec
from snapbake.files import read_json
from tiny_models import make_tiny_model

FAMILIES = ("llama", "qwen2", "qwen3")
FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)
UNPROVABLE = {"rms_norm_eps", "rope"}

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 600)
    | st.floats(allow_nan=True)
    | st.sampled_from(["", "x", "1", "qwen2", "qwen3", "llama", "yarn", "F16", "I8", "U8"])
)
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=3), SCALARS)


def examples(number: int) -> Any:
    """Return settings for a number of examples that are the same in every run."""
    return settings(
        max_examples=number,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, torch.Tensor, str]]:
    """A good folder a family, its logits and its identity; one head is not tied."""
    found = {}
    for family in FAMILIES:
        folder = tmp_path_factory.mktemp(family)
        make_tiny_model(folder / "model", family, layers=1, vocab=320, tie=family != "llama")
        identity = prepare(folder / "model", folder / "out")["sha256"]
        found[family] = (folder / "model", logits(folder / "model"), identity)
    return found


def require_same_or_refused(
    good: tuple[Path, torch.Tensor, str], damage: Any, *, pinned: bool = False
) -> None:
    """Damage a copy of a good folder, and fail when the gate hands on another model."""
    original, expected, identity = good
    with tempfile.TemporaryDirectory() as name:
        folder, output = Path(name) / "model", Path(name) / "output"
        shutil.copytree(original, folder)
        damage(folder)
        try:
            prepare(folder, output, sha256=identity if pinned else None)
        except SnapbakeError:
            # Nothing is left, not even a temporary file.
            assert not output.exists() or list(output.iterdir()) == []
            event("refused")
            return
        found = logits(output / "checkpoint")
        if torch.equal(found, expected):
            event("same logits")
            return
        before = asdict(read_spec(read_json(original / "config.json")))
        after = asdict(read_spec(read_json(output / "checkpoint" / "config.json")))
        differing = {key for key in before if before[key] != after[key]}
        assert differing, "another model from the same specification"
        assert differing <= UNPROVABLE, differing
        event("a number that no tensor can prove")


def change_bytes(path: Path, draw: Any, start: int, end: int) -> None:
    """Overwrite, remove, insert, zero or exchange bytes between two places, or cut the file off."""
    data = bytearray(path.read_bytes())
    place = draw(st.integers(start, end - 1))
    length = draw(st.integers(1, 24))
    kind = draw(st.sampled_from(["overwrite", "remove", "insert", "zero", "exchange", "cut"]))
    stop = min(place + length, end)
    if kind == "overwrite":
        data[place:stop] = draw(st.binary(min_size=stop - place, max_size=stop - place))
    elif kind == "remove":
        del data[place:stop]
    elif kind == "insert":
        data[place:place] = draw(st.binary(min_size=1, max_size=24))
    elif kind == "zero":
        data[place:stop] = bytes(stop - place)
    elif kind == "exchange":
        other = draw(st.integers(start, end - 1))
        data[place], data[other] = data[other], data[place]
    else:
        del data[place:]
    path.write_bytes(data)


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write_header(path: Path, header: Any, tensors: bytes) -> None:
    content = json.dumps(header).encode()
    path.write_bytes(len(content).to_bytes(8, "little") + content + tensors)


def change_json(content: Any, draw: Any) -> Any:
    """Remove, replace, rename or double something at a random place of a JSON document."""
    content = copy.deepcopy(content)
    node = content
    while True:
        keys = sorted(node) if isinstance(node, dict) else range(len(node))
        if not keys:
            return draw(VALUES)
        key = draw(st.sampled_from(list(keys)))
        if isinstance(node[key], dict | list) and node[key] and draw(st.booleans()):
            node = node[key]
            continue
        break
    kind = draw(st.sampled_from(["remove", "replace", "rename", "copy"]))
    if kind == "remove":
        del node[key]
    elif kind == "replace":
        node[key] = draw(VALUES)
    elif isinstance(node, list):
        node.append(node[key])
    elif kind == "copy":
        node[draw(st.sampled_from(sorted(node)))] = copy.deepcopy(node[key])
    else:
        node[draw(st.sampled_from([key + "x", "rope_parameters", "dtype", "x"]))] = node.pop(key)
    return content


@examples(240)
@given(data=st.data())
def test_bytes_of_everything_but_weights(good: Any, data: st.DataObject) -> None:
    family, name = data.draw(st.sampled_from(FAMILIES)), data.draw(st.sampled_from(FILES))

    def damage(folder: Path) -> None:
        path = folder / name
        end = path.stat().st_size
        if name == "model.safetensors":
            end = 8 + int.from_bytes(path.read_bytes()[:8], "little")
        change_bytes(path, data.draw, 0, end)

    require_same_or_refused(good[family], damage)


@examples(60)
@given(data=st.data())
def test_bytes_of_weights_whose_identity_is_known(good: Any, data: st.DataObject) -> None:
    def damage(folder: Path) -> None:
        path = folder / "model.safetensors"
        change_bytes(path, data.draw, 0, path.stat().st_size)

    family = data.draw(st.sampled_from(FAMILIES))
    require_same_or_refused(good[family], damage, pinned=True)


@examples(240)
@given(data=st.data())
def test_keys_and_values_of_json(good: Any, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([name for name in FILES if name.endswith(".json")]))

    def damage(folder: Path) -> None:
        content = read_json(folder / name)
        for _ in range(data.draw(st.integers(1, 2))):
            content = change_json(content, data.draw)
            if not isinstance(content, dict):
                break
        (folder / name).write_text(json.dumps(content))

    require_same_or_refused(good[data.draw(st.sampled_from(FAMILIES))], damage)


@examples(240)
@given(data=st.data())
def test_names_shapes_and_types_of_tensors(good: Any, data: st.DataObject) -> None:
    def damage(folder: Path) -> None:
        path = folder / "model.safetensors"
        header, tensors = header_of(path)
        names = sorted(set(header) - {"__metadata__"})
        name = data.draw(st.sampled_from(names))
        kind = data.draw(st.sampled_from(["json", "shape", "type", "rename", "drop", "add"]))
        entry = header[name]
        if kind == "json":
            with contextlib.suppress(TypeError):
                header = change_json(header, data.draw)
        elif kind == "shape":
            entry["shape"] = data.draw(
                st.permutations(entry["shape"])
                | st.just([*entry["shape"], 1])
                | st.just([entry["shape"][0] // 2, *entry["shape"][1:]])
            )
        elif kind == "type":
            entry["dtype"] = data.draw(st.sampled_from(["F16", "BF16", "F64", "I32", "U8", "F4"]))
        elif kind == "rename":
            prefix = data.draw(st.sampled_from(["module.", "base_model.model.", "x", ""]))
            header[prefix + name.replace("proj", data.draw(st.sampled_from(["proj", "p"])))] = (
                header.pop(name)
            )
        elif kind == "drop":
            write_without(path, header, tensors, name)
            return
        else:
            size = len(tensors)
            header["extra"] = {"dtype": "F32", "shape": [1], "data_offsets": [size, size + 4]}
            tensors += bytes(4)
        write_header(path, header, tensors)

    require_same_or_refused(good[data.draw(st.sampled_from(FAMILIES))], damage)


def write_without(path: Path, header: dict[str, Any], tensors: bytes, name: str) -> None:
    """Write a file that is whole but for one tensor."""
    kept, data = {}, b""
    for other, entry in header.items():
        if other not in (name, "__metadata__"):
            begin, end = entry["data_offsets"]
            places = [len(data), len(data) + end - begin]
            kept[other] = {**entry, "data_offsets": places}
            data += tensors[begin:end]
    write_header(path, kept, data)
