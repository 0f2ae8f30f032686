"""Graphs that agree with PyTorch pass; the first one that does not is named with the place."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from safetensors.torch import load_file, save_file

from snapbake.errors import SnapbakeError
from snapbake.export import export_checkpoint
from snapbake.external_data import place_of
from snapbake.families import read_spec
from snapbake.files import read_json
from snapbake.freeze import freeze_shapes
from snapbake.htp_graph import write_decoder
from snapbake.htp_weights import write_htp_weights
from snapbake.onnx_check import (
    LIMIT,
    Stage,
    Step,
    check_graphs,
    check_structure,
    choose_prompts,
    plan_steps,
)
from snapbake.token_records import TokenRecord, write_token_records
from snapbake.torch_reference import torch_references
from tiny_models import make_tiny_model

LAST_TOKEN = 500  # stands at the last position of the long prompt and nowhere else


def record(index: int, length: int) -> TokenRecord:
    ids = np.random.default_rng(index).integers(3, LAST_TOKEN, length)
    return TokenRecord(index, tuple(ids.tolist()), 2, "prompt", "answer")


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Two records: 34 tokens are two chunks of 16 but for a row and 3 decode steps; 9 are one."""
    long, short = record(0, 33), record(1, 9)
    long = TokenRecord(0, (*long.ids, LAST_TOKEN), 2, "prompt", "answer")
    path = tmp_path / "calibration.json"
    write_token_records(path, 64, [long, short])
    return path


def stage(name, folder: Path, pattern: str) -> Stage:
    return Stage(name, *(folder / pattern.format(graph) for graph in ("prefill", "decode")))


def check(checkpoint: Path, records: Path, stages: list[Stage], output: Path) -> dict:
    check_graphs(checkpoint, records, stages, 16, 64, 2, output)
    return json.loads(output.read_text())


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_all_stages_agree(
    tiny_models: dict[str, Path],
    tiny_onnx: dict[str, Path],
    records: Path,
    tmp_path: Path,
    family: str,
) -> None:
    checkpoint, folder, adapted = tiny_models[family], tiny_onnx[family], tmp_path / "htp"
    adapted.mkdir()
    spec = read_spec(read_json(checkpoint / "config.json"))
    write_htp_weights(spec, checkpoint, adapted / "weights.data", adapted / "weights.json")
    for graph, tokens in (("prefill", 16), ("decode", 1)):
        output = adapted / f"c64.{graph}.onnx"
        write_decoder(spec, tokens, 64, adapted / "weights.json", output)
    stages = [
        stage("exported", folder, "model.onnx"),
        stage("static", folder, "c64.static.{}.onnx"),
        stage("simplified", folder, "c64.simplified.{}.onnx"),
        stage("adapted", adapted, "c64.{}.onnx"),
    ]
    report = check(checkpoint, records, stages, tmp_path / "onnx_check.json")
    assert [(p["prefill_steps"], p["decode_steps"]) for p in report["prompts"]] == [(2, 3), (1, 3)]
    assert list(report["stages"]) == ["adapted", "exported", "simplified", "static"]
    for result in report["stages"].values():
        for graph in ("prefill", "decode"):
            logits, cache = result[graph]["logits"], result[graph]["cache"]
            assert 0 <= logits["fraction"] < 1e-4 < LIMIT
            assert 0 <= cache["fraction"] < 1e-4
            assert {"records", "position", "token"} <= logits.keys()
            assert re.fullmatch(r"past_(key|value)_[01]", cache["tensor"])


@pytest.fixture
def untied(tmp_path: Path) -> tuple[Path, Path]:
    """A model with a head of its own and its frozen graphs, to change at will."""
    checkpoint = make_tiny_model(tmp_path / "checkpoint", "qwen3", tie=False)
    folder = tmp_path / "onnx"
    export_checkpoint(checkpoint, 18, folder)
    for graph, tokens in (("prefill", 16), ("decode", 1)):
        freeze_shapes(folder / "model.onnx", tokens, 64, folder / f"{graph}.onnx")
    return checkpoint, folder


def change_weight(path: Path, name: str, change: Callable[[np.ndarray], None]) -> None:
    """Give one graph its own, changed copy of a weight; graphs beside it keep the old one."""
    model = onnx.load(path, load_external_data=False)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    place = place_of(tensor)
    assert place
    value = np.fromfile(
        path.with_name(place.location), np.float32, place.length // 4, offset=place.offset
    ).reshape(tuple(tensor.dims))
    change(value)
    tensor.CopyFrom(numpy_helper.from_array(value, name))
    onnx.save(model, path)


def test_a_changed_weight_is_named_with_graph_and_position(
    untied: tuple[Path, Path], records: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    checkpoint, folder = untied

    def swap_embedding(value: np.ndarray) -> None:
        value[LAST_TOKEN] = value[7]

    change_weight(folder / "decode.onnx", "model.embed_tokens.weight", swap_embedding)
    stages = [stage("exported", folder, "model.onnx"), stage("static", folder, "{}.onnx")]
    output = tmp_path / "out" / "onnx_check.json"
    with pytest.raises(SnapbakeError) as caught:
        check(checkpoint, records, stages, output)
    assert re.match(
        r"the static decode graph differs from PyTorch by \S+ of the range of \S+ at record 0, "
        r"position 33, ",
        str(caught.value),
    )
    assert not output.parent.exists()
    log = capsys.readouterr().err
    figures = json.loads(log[log.index("{") :])
    assert figures["stages"]["static"]["decode"]["logits"]["fraction"] > LIMIT
    assert figures["stages"]["static"]["prefill"]["logits"]["fraction"] < LIMIT
    assert figures["stages"]["exported"]["decode"]["logits"]["fraction"] < LIMIT


def test_a_cache_that_is_handed_on_wrong_is_found(
    untied: tuple[Path, Path], records: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Within a run the values are right; only what leaves the decode graph is doubled."""
    checkpoint, folder = untied
    model = onnx.load(folder / "decode.onnx", load_external_data=False)
    for node in model.graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name == "present.1.value":
                    names[place] = "right"
    model.graph.node.append(onnx.helper.make_node("Add", ["right", "right"], ["present.1.value"]))
    onnx.save(model, folder / "decode.onnx")
    with pytest.raises(SnapbakeError, match="static decode graph differs"):
        check(checkpoint, records, [stage("static", folder, "{}.onnx")], tmp_path / "out.json")
    log = capsys.readouterr().err
    figures = json.loads(log[log.index("{") :])["stages"]["static"]
    assert figures["decode"]["cache"]["tensor"] == "past_value_1"
    assert figures["decode"]["logits"]["position"] in (32, 33, 7, 8)  # not the first decode step
    assert figures["prefill"]["cache"]["fraction"] < LIMIT


def test_a_weight_that_is_not_a_number_is_found(
    untied: tuple[Path, Path], records: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    checkpoint, folder = untied

    def spoil(value: np.ndarray) -> None:
        value[3] = np.nan

    change_weight(folder / "prefill.onnx", "model.norm.weight", spoil)
    with pytest.raises(SnapbakeError, match=r"static prefill graph differs from PyTorch by inf"):
        check(checkpoint, records, [stage("static", folder, "{}.onnx")], tmp_path / "out.json")
    log = capsys.readouterr().err
    figures = json.loads(log[log.index("{") :])
    assert figures["stages"]["static"]["prefill"]["logits"]["fraction"] is None


def test_missing_data_is_refused(tiny_onnx: dict[str, Path], tmp_path: Path) -> None:
    shutil.copy(tiny_onnx["llama"] / "c64.static.decode.onnx", tmp_path)
    with pytest.raises(SnapbakeError, match=r"model\.onnx_data does not exist"):
        check_structure(tmp_path / "c64.static.decode.onnx")


def test_a_graph_against_the_rules_is_refused(tmp_path: Path) -> None:
    value = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    node = onnx.helper.make_node("Relu", ["nowhere"], ["y"])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "broken", [], [value]))
    onnx.save(model, tmp_path / "broken.onnx")
    with pytest.raises(SnapbakeError, match=r"onnx\.checker refuses"):
        check_structure(tmp_path / "broken.onnx")


def test_a_context_not_above_the_chunk_is_refused(
    tiny_models: dict[str, Path], records: Path, tmp_path: Path
) -> None:
    with pytest.raises(SnapbakeError, match="leaves no past"):
        check_graphs(tiny_models["llama"], records, [], 64, 64, 2, tmp_path / "out.json")


def test_tokens_that_the_model_does_not_have_are_refused(
    tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "calibration.json"
    write_token_records(path, 64, [TokenRecord(4, (1, 2, 512), 2, "prompt", "answer")])
    with pytest.raises(SnapbakeError, match="record 4 has the token 512 and the model has 512"):
        check_graphs(tiny_models["llama"], path, [], 16, 64, 2, tmp_path / "out.json")


def test_a_reference_with_made_up_tensors_is_refused(
    tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    checkpoint = Path(shutil.copytree(tiny_models["llama"], tmp_path / "checkpoint"))
    tensors = load_file(checkpoint / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SnapbakeError, match=r"missing keys in .*: model\.norm\.weight"):
        list(torch_references(checkpoint, [(1, 2, 3)], 2))


def test_prompts_are_a_long_record_and_the_shortest() -> None:
    records = [record(0, 20), record(1, 500), record(2, 300), record(3, 12)]
    long, short = choose_prompts(records, 128, 512)
    assert (long.records, len(long.ids)) == ((1,), 2 * 128 - 1 + 3)
    assert (short.records, len(short.ids)) == ((3,), 12)


def test_short_records_are_joined() -> None:
    records = [record(index, 20) for index in range(30)]
    long, short = choose_prompts(records, 128, 512)
    assert long.records == (0, 1, 2, 3, 4, 5, 6)
    assert len(long.ids) == 140
    assert long.ids[20:40] == records[1].ids
    assert short.records == (7,)


def test_too_little_text_is_refused() -> None:
    with pytest.raises(SnapbakeError, match=r"hold 40 tokens in all .* needs 132"):
        choose_prompts([record(0, 20), record(1, 20)], 128, 512)


@pytest.mark.parametrize(
    ("length", "tokens", "context", "steps"),
    [
        (
            258,
            128,
            512,
            ["prefill 0+128", "prefill 128+127", *(f"decode {p}+1" for p in (255, 256, 257))],
        ),
        (9, 16, 64, ["prefill 0+6", "decode 6+1", "decode 7+1", "decode 8+1"]),
        (2, 16, 64, ["prefill 0+1", "decode 1+1"]),
        (22, 16, 24, ["prefill 0+16", *(f"decode {p}+1" for p in range(16, 22))]),
    ],
)
def test_steps_fit_the_context(length: int, tokens: int, context: int, steps: list[str]) -> None:
    plan = plan_steps(length, tokens, context)
    assert [f"{step.graph} {step.past}+{step.count}" for step in plan] == steps


@pytest.mark.parametrize(("tokens", "context"), [(128, 129), (128, 200), (128, 256), (1, 2)])
def test_prompts_fit_a_tight_context(tokens: int, context: int) -> None:
    records = [record(0, context), record(1, min(context, 6))]
    for prompt in choose_prompts(records, tokens, context):
        for step in plan_steps(len(prompt.ids), tokens, context):
            room = context - (tokens if step.graph == "prefill" else 1)
            assert isinstance(step, Step)
            assert step.past <= room
            assert step.past + step.count <= context
