"""The gate as people use it: check_checkpoint.py, Snakemake, and processes with limits."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from transformers import AutoTokenizer, Qwen2Tokenizer

from gate_tools import edit, prepare, run_script, shard, tree
from snapbake.checkpoint import check_checkpoint
from snapbake.errors import SnapbakeError
from snapbake.files import read_json
from snapbake.safetensors_file import stored_identity
from tiny_models import make_tiny_model

EXPORTS = Path(__file__).parent / "exports"
ROOT = Path(__file__).parents[2]


def check(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return run_script("check_checkpoint.py", *arguments)


def test_a_good_folder_is_described(tmp_path: Path) -> None:
    folder = shutil.copytree(EXPORTS / "transformers-5" / "qwen3-resized", tmp_path / "model")
    before = tree(tmp_path)
    summary = check_checkpoint(folder, None)

    done = check(folder)

    assert (done.returncode, done.stderr) == (0, "")
    for fact in (
        f"{folder}: Qwen3ForCausalLM, 0.2 million weights, BF16",
        "2 heads of 64 on 1 key/value heads, head tied",
        "vocabulary 320, tokenizer 290 tokens, rotary base 1e+06",
        f"SHA-256 of the weights {summary['sha256']}",
        f"SHA-256 of the model, for `sha256` in the configuration: {summary['model_sha256']}",
        "would be normalised:\n  config.json: rope_parameters of transformers 5 became",
    ):
        assert fact in done.stdout
    assert tree(tmp_path) == before


def test_what_is_checked_is_what_is_prepared(tmp_path: Path) -> None:
    folder = EXPORTS / "transformers-4" / "llama-sharded"
    summary = prepare(folder, tmp_path)

    done = check("--json", folder)

    assert json.loads(done.stdout) == {"accepted": True, **summary}
    assert summary["sha256"] == stored_identity(tmp_path / "checkpoint" / "model.safetensors")


def test_a_refusal_is_one_sentence(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "qwen2")
    edit(folder / "config.json", rms_norm_eps="x")
    before = tree(tmp_path)

    plain, machine, long = check(folder), check("--json", folder), check("--verbose", folder)

    sentence = f"{folder}/config.json: rms_norm_eps is 'x'; it must be a number above 0"
    assert (plain.returncode, plain.stdout, plain.stderr) == (1, "", f"error: {sentence}\n")
    assert json.loads(machine.stdout) == {"accepted": False, "error": sentence}
    assert machine.returncode == 1
    assert "Traceback" in long.stderr
    assert long.stderr.endswith(f"error: {sentence}\n")
    assert tree(tmp_path) == before


def test_the_base_of_an_adapter_is_an_option(tmp_path: Path) -> None:
    adapter = shutil.copytree(EXPORTS / "transformers-4" / "qwen2-adapter", tmp_path / "adapter")

    done = check(adapter, "--base", EXPORTS / "transformers-4" / "qwen2-full")

    assert done.returncode == 0
    assert f"{adapter}: LoRA adapter of rank 4 for it, would be merged in float32" in done.stdout
    # What is known before merging is the base's, and not to be asked for.
    assert "for `sha256` in the configuration: model_sha256 in checkpoint.json" in done.stdout


def test_snakemake_makes_the_checkpoint_alone(tmp_path: Path) -> None:
    folder = shutil.copytree(EXPORTS / "transformers-5" / "qwen2-full", tmp_path / "my-model")
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--snakefile", ROOT / "Snakefile"]
    command += ["--directory", tmp_path / "work", "results/my-model/checkpoint.json"]
    command += ["--config", f"model={folder}", f"data={ROOT / 'config/data/instructions.json'}"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    summary = read_json(tmp_path / "work" / "results" / "my-model" / "checkpoint.json")
    assert summary["family"] == "qwen2"


def test_weights_that_are_not_those_asked_for(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "llama")
    identity = check_checkpoint(folder, None)["model_sha256"]
    shard(folder)

    prepare(folder, tmp_path / "good", sha256=identity)
    path = folder / "model-00001-of-00003.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # another number, as good as the first to anything but a checksum
    path.write_bytes(data)
    with pytest.raises(SnapbakeError, match=f"SHA-256 .* and {identity} was expected"):
        prepare(folder, tmp_path / "bad", sha256=identity)

    assert list((tmp_path / "bad").iterdir()) == []


# ---------------------------------------------------------------------------------------------
# Templates and tokenizers in a process of their own


@pytest.mark.own_process
@pytest.mark.parametrize(
    ("template", "facts"),
    [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            ["chat template", "does not end within 2 seconds"],
        ),
        ("{{ ('a' * 1000000) * 100000 }}", ["chat template", "Memory"]),
        ("{{ ''.__class__.__mro__ }}", ["chat template", "unsafe"]),
    ],
    ids=["for ever", "out of memory", "out of the sandbox"],
)
def test_a_template_is_kept_within_limits(template: str, facts: list[str], tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "qwen3")
    (folder / "chat_template.jinja").write_text(template)
    started = time.monotonic()

    with pytest.raises(SnapbakeError) as caught:
        check_checkpoint(folder, None)

    assert all(fact in str(caught.value) for fact in facts), caught.value
    assert time.monotonic() - started < 60


def slow_tokenizer(folder: Path) -> None:
    """Leave only what a tokenizer without tokenizer.json is saved as."""
    assert (folder / "vocab.json").is_file()
    (folder / "tokenizer.json").unlink()


@pytest.mark.own_process
@pytest.mark.parametrize("writer", ["transformers-4", "transformers-5"])
def test_a_slow_tokenizer_gets_a_tokenizer_json(writer: str, tmp_path: Path) -> None:
    whole = EXPORTS / "transformers-4" / "qwen3-resized"
    folder = shutil.copytree(whole, tmp_path / "model")
    slow_tokenizer(folder)
    if writer == "transformers-5":
        extra = {"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]}
        edit(folder / "tokenizer_config.json", additional_special_tokens=..., **extra)

    summary = prepare(folder, tmp_path)

    assert any("made from vocab.json and merges.txt" in n for n in summary["normalisations"])
    made = AutoTokenizer.from_pretrained(tmp_path / "checkpoint")
    original, slow = AutoTokenizer.from_pretrained(whole), Qwen2Tokenizer.from_pretrained(whole)
    text = "<|im_start|>user\n20 + 24 = 44, 二十四 naïve <tool>  x</tool><|im_end|>\n"
    assert made(text).input_ids == original(text).input_ids == slow(text).input_ids


@pytest.mark.own_process
@pytest.mark.parametrize(
    ("damage", "facts"),
    [
        (lambda folder: (folder / "merges.txt").unlink(), ["no tokenizer.json"]),
        (
            lambda folder: (folder / "vocab.json").write_text("{"),
            ["vocab.json", "line 1, column 2"],
        ),
        (
            lambda folder: edit(folder / "tokenizer_config.json", tokenizer_class="MyTokenizer"),
            ["cannot be converted", "MyTokenizer"],
        ),
        (
            lambda folder: (
                (folder / "merges.txt").unlink(),
                (folder / "tokenizer.model").write_bytes(b"x"),
            ),
            ["tokenizer.model", "SentencePiece"],
        ),
    ],
    ids=["no merges", "broken vocabulary", "unknown class", "sentencepiece"],
)
def test_slow_tokenizers_that_are_refused(damage, facts: list[str], tmp_path: Path) -> None:
    folder = shutil.copytree(EXPORTS / "transformers-4" / "qwen3-full", tmp_path / "model")
    slow_tokenizer(folder)
    damage(folder)

    with pytest.raises(SnapbakeError) as caught:
        check_checkpoint(folder, None)

    assert all(fact in str(caught.value) for fact in facts), caught.value


# ---------------------------------------------------------------------------------------------
# Code that comes with a model

OTHER = """
from transformers import Qwen3ForCausalLM

class Mine(Qwen3ForCausalLM):
    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * 1.01
        return output
"""


def with_code(folder: Path, code: str) -> Path:
    make_tiny_model(folder, "qwen3", auto_map={"AutoModelForCausalLM": "modeling_mine.Mine"})
    (folder / "modeling_mine.py").write_text(code)
    return folder


def test_code_is_not_run_unless_trusted(tmp_path: Path) -> None:
    folder = with_code(tmp_path / "model", f"open({str(tmp_path / 'ran')!r}, 'w')")

    with pytest.raises(SnapbakeError) as caught:
        prepare(folder, tmp_path)

    for fact in ("auto_map", "modeling_mine.Mine", "not run", "`trust_remote_code`"):
        assert fact in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_trusted_code_that_computes_the_same_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    code = "from transformers import Qwen3ForCausalLM\n\nclass Mine(Qwen3ForCausalLM):\n    pass\n"
    folder = with_code(tmp_path / "model", code)

    summary = prepare(folder, tmp_path, trust=True)

    assert f"warning: running the code that comes with {folder}" in capsys.readouterr().err
    assert any("auto_map" in note for note in summary["normalisations"])
    assert "auto_map" not in read_json(tmp_path / "checkpoint" / "config.json")


@pytest.mark.parametrize(
    ("code", "fact"),
    [(OTHER, "computes other logits"), ("raise ValueError('no')", "does not run: no")],
    ids=["another network", "a mistake"],
)
def test_trusted_code_that_is_not_the_family(
    code: str, fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    folder = with_code(tmp_path / "model", code)

    with pytest.raises(SnapbakeError, match=fact):
        prepare(folder, tmp_path / "out", trust=True)

    assert list((tmp_path / "out").iterdir()) == []


def test_code_of_a_tokenizer_is_not_run(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "qwen3")
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["x.Y", None]})

    with pytest.raises(SnapbakeError, match=r"tokenizer_config\.json: auto_map .* not run"):
        prepare(folder, tmp_path, trust=True)
