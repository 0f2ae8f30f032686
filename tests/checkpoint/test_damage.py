"""Random damage: the gate refuses the folder, or hands on a model that computes the same.

Every damaged folder is judged with the identity of the good one asked for (`sha256` in the
configuration). Then there are two outcomes only: the same logits, or a refusal. Most are judged
without it as well, because three things are beyond what a folder can prove by itself:
- Two numbers of config.json, the epsilon of the norms and what the rotary positions are computed
  from, can be replaced by other possible ones: no tensor knows them. Where heads have no norms of
  their own, neither does one know how the width is split into heads.
- Safetensors have no checksums, so other bytes of a weight are another weight.
- The same holds for the names of two tensors of one shape that are exchanged.
"""

import contextlib
import copy
import json
import shutil
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gate_tools import as_transformers_5, edit, logits, prepare, tree
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
SCALINGS: dict[str, dict[str, Any] | None] = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0},
}

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


@dataclass(frozen=True)
class Good:
    """A good folder, the logits of its model and the identity of that."""

    folder: Path
    logits: torch.Tensor
    identity: str


def make_good(folder: Path, family: str, **options: Any) -> Good:
    model = make_tiny_model(
        folder / "model", family, layers=1, vocab=320, tie=family != "llama", **options
    )
    return Good(model, logits(model), prepare(model, folder / "out")["model_sha256"])


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Good]:
    """A good folder a family; one head is not tied."""
    return {family: make_good(tmp_path_factory.mktemp(family), family) for family in FAMILIES}


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Good]:
    """A good folder a kind of rotary positions, the families in turn."""
    return {
        kind: make_good(tmp_path_factory.mktemp(kind), FAMILIES[n % 3], rope_scaling=scaling)
        for n, (kind, scaling) in enumerate(SCALINGS.items())
    }


def attempt(folder: Path, output: Path, identity: str | None) -> Path | None:
    """Return the folder that the gate hands on; None for a refusal, which leaves nothing."""
    try:
        prepare(folder, output, sha256=identity)
    except SnapbakeError:
        # Not even a temporary file.
        assert not output.exists() or list(output.iterdir()) == []
        return None
    return output / "checkpoint"


def require_same_or_refused(
    good: Good, damage: Any, unprovable: set[str] | None = UNPROVABLE
) -> None:
    """Damage a copy of a good folder, and fail when the gate hands on another model.

    It may do so when it is not asked for the good one, and all that differs are `unprovable` parts
    of the specification; with None it is always asked.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        shutil.copytree(good.folder, folder)
        damage(folder)
        pinned = attempt(folder, Path(name) / "pinned", good.identity)
        if pinned is not None:
            assert torch.equal(logits(pinned), good.logits)
        event(f"asked for the good one: {'same logits' if pinned else 'refused'}")
        if unprovable is None:
            return
        found = attempt(folder, Path(name) / "found", None)
        if pinned is not None or found is None:
            assert (found is None) == (pinned is None)
            assert found is None or tree(found) == tree(pinned)
            event("same logits" if found else "refused")
            return
        if torch.equal(logits(found), good.logits):
            event("same logits, by other numbers")
            return
        before, after = (
            asdict(read_spec(read_json(path / "config.json"))) for path in (good.folder, found)
        )
        differing = {key for key in before if before[key] != after[key]}
        assert differing, "another model from the same specification"
        assert differing <= unprovable, differing
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


def other_scaling(draw: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Return the rotary positions scaled by another number, or in another way."""
    scaling = config["rope_scaling"]
    if scaling is None or draw(st.booleans()):
        return {"rope_scaling": draw(st.sampled_from(list(SCALINGS.values())))}
    key = draw(st.sampled_from([*sorted(set(scaling) - {"rope_type"}), "beta_fast", "truncate"]))
    value = draw(st.booleans()) if key == "truncate" else draw(st.sampled_from([0.7, 2, 32, 96]))
    return {"rope_scaling": scaling | {key: value}}


# Each returns the keys of config.json that it changes.
NUMBERS: dict[str, Any] = {
    "epsilon": lambda draw, _: {"rms_norm_eps": draw(st.floats(1e-8, 1e-2))},
    "base": lambda draw, _: {"rope_theta": draw(st.sampled_from([500, 1e4, 10000.001, 1e6]))},
    "scaling": other_scaling,
    "positions": lambda draw, _: {"max_position_embeddings": draw(st.integers(16, 4096))},
    "heads": lambda *_: {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32},
}


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


@examples(120)
@given(data=st.data())
def test_bytes_of_weights(good: Any, data: st.DataObject) -> None:
    def damage(folder: Path) -> None:
        path = folder / "model.safetensors"
        start = 8 + int.from_bytes(path.read_bytes()[:8], "little")
        change_bytes(path, data.draw, start, path.stat().st_size)

    family = data.draw(st.sampled_from(FAMILIES))
    require_same_or_refused(good[family], damage, None)


@examples(60)
@given(data=st.data())
def test_exchanged_names_of_tensors(good: Any, data: st.DataObject) -> None:
    def damage(folder: Path) -> None:
        path = folder / "model.safetensors"
        header, tensors = header_of(path)
        alike = defaultdict(list)
        for name in sorted(set(header) - {"__metadata__"}):
            alike[tuple(header[name]["shape"])].append(name)
        names = data.draw(st.sampled_from([names for names in alike.values() if len(names) > 1]))
        first, second = data.draw(st.permutations(names))[:2]
        header[first], header[second] = header[second], header[first]
        write_header(path, header, tensors)

    require_same_or_refused(good[data.draw(st.sampled_from(FAMILIES))], damage, None)


@examples(160)
@given(data=st.data())
def test_possible_numbers_of_the_configuration(scaled: Any, data: st.DataObject) -> None:
    """Another number where each would do, in the form of transformers 4 or 5."""

    def damage(folder: Path) -> None:
        path = folder / "config.json"
        for key in data.draw(st.lists(st.sampled_from(list(NUMBERS)), min_size=1, max_size=2)):
            edit(path, **NUMBERS[key](data.draw, read_json(path)))
        if data.draw(st.booleans()):
            as_transformers_5(folder)

    unprovable = {*UNPROVABLE, "head_dim", "heads", "kv_heads", "max_position_embeddings"}
    kind = data.draw(st.sampled_from(list(SCALINGS)))
    require_same_or_refused(scaled[kind], damage, unprovable)


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
