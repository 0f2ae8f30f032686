"""The checkpoint gate on tiny folders: what it normalises, and what it refuses.

Normalised folders must give transformers the same logits as the folder that they were made from.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from gate_tools import (
    Tensors,
    as_transformers_5,
    edit,
    edit_tensors,
    logits,
    prepare,
    run_script,
    shard,
    tree,
)
from snapbake.checkpoint import OUTPUT_FILES, inspect_checkpoint
from snapbake.errors import SnapbakeError
from snapbake.files import read_json
from tiny_models import CHAT_TEMPLATE, make_tiny_model

# ---------------------------------------------------------------------------------------------
# What is accepted


def test_a_plain_export_is_passed_on(tiny_model: Path, tmp_path: Path) -> None:
    before = tree(tiny_model)

    summary = prepare(tiny_model, tmp_path)

    checkpoint = tmp_path / "checkpoint"
    assert sorted(path.name for path in checkpoint.iterdir()) == sorted(OUTPUT_FILES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "checkpoint.json"]
    assert torch.equal(logits(checkpoint), logits(tiny_model))
    assert tree(tiny_model) == before
    tensors = load_file(tiny_model / "model.safetensors")
    assert summary["parameters"] == sum(tensor.numel() for tensor in tensors.values())
    assert summary["dtypes"] == {"F32": len(tensors)}
    assert summary["family"] == tiny_model.name
    assert summary["normalisations"] == []
    assert summary["source"] == {"kind": "folder", "location": str(tiny_model)}
    assert summary["licence"] is None


def test_a_normalised_folder_is_its_own_normal_form(tiny_model: Path, tmp_path: Path) -> None:
    as_transformers_5(folder := make_tiny_model(tmp_path / "model", tiny_model.name))

    first = prepare(folder, tmp_path / "1")
    second = prepare(tmp_path / "1" / "checkpoint", tmp_path / "2")

    assert first["normalisations"]
    assert second["normalisations"] == []
    assert first["sha256"] == second["sha256"]
    assert tree(tmp_path / "1" / "checkpoint") == tree(tmp_path / "2" / "checkpoint")


@pytest.mark.parametrize(
    "scaling",
    [None, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}],
    ids=["plain", "yarn"],
)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_transformers_5_is_read_as_what_it_means(
    family: str, scaling: dict[str, Any] | None, tmp_path: Path
) -> None:
    options = {"rope_theta": 1000000.0, "rope_scaling": scaling}
    folder = make_tiny_model(tmp_path / "model", family, **options)
    expected = logits(folder)
    as_transformers_5(folder)
    # transformers 4 on the folder as it is: another model, without a word.
    assert (logits(folder) - expected).abs().max() > 0.01

    summary = prepare(folder, tmp_path)

    checkpoint = tmp_path / "checkpoint"
    assert torch.equal(logits(checkpoint), expected)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.additional_special_tokens == ["<|im_start|>", "<|im_end|>"]
    config = read_json(checkpoint / "config.json")
    assert config["rope_theta"] == 1000000.0
    assert config["rope_scaling"] == scaling
    assert config["torch_dtype"] == "float32"
    assert not {"rope_parameters", "dtype"} & set(config)
    notes = " ".join(summary["normalisations"])
    assert all(
        fact in notes for fact in ("rope_parameters", "TokenizersBackend", "extra_special_tokens")
    )


def test_shards_become_one_file_with_the_same_identity(tiny_model: Path, tmp_path: Path) -> None:
    whole = prepare(tiny_model, tmp_path / "whole")
    shard(folder := make_tiny_model(tmp_path / "model", tiny_model.name))

    sharded = prepare(folder, tmp_path / "sharded")

    assert sharded["sha256"] == whole["sha256"]
    assert tree(tmp_path / "sharded" / "checkpoint") == tree(tmp_path / "whole" / "checkpoint")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_types_are_kept_and_written_out(tmp_path: Path, dtype: str) -> None:
    folder = make_tiny_model(tmp_path / "model", "qwen3", dtype=dtype)
    edit(folder / "config.json", torch_dtype="float32")

    summary = prepare(folder, tmp_path)

    saved = load_file(tmp_path / "checkpoint" / "model.safetensors")
    original = load_file(folder / "model.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in original.items())
    assert all(saved[name].dtype == tensor.dtype for name, tensor in original.items())
    assert read_json(tmp_path / "checkpoint" / "config.json")["torch_dtype"] == dtype
    assert any("torch_dtype" in note for note in summary["normalisations"])


def test_mixed_types_are_kept(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "llama", dtype="bfloat16")
    edit_tensors(folder, lambda t: t.update({"model.norm.weight": t["model.norm.weight"].float()}))

    summary = prepare(folder, tmp_path)

    assert summary["dtypes"] == {"BF16": 19, "F32": 1}
    assert torch.equal(logits(tmp_path / "checkpoint"), logits(folder))


def test_a_tied_head_that_repeats_the_embedding_is_left_out(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "qwen3")
    plain = prepare(folder, tmp_path / "plain")
    edit_tensors(
        folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()})
    )

    summary = prepare(folder, tmp_path / "with_head")

    assert summary["sha256"] == plain["sha256"]
    assert any("lm_head.weight" in note for note in summary["normalisations"])


def test_an_untied_head_is_kept(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "qwen2", tie=False)

    prepare(folder, tmp_path)

    assert torch.equal(logits(tmp_path / "checkpoint"), logits(folder))
    assert "lm_head.weight" in load_file(tmp_path / "checkpoint" / "model.safetensors")


def test_keys_that_were_left_out_are_written_out(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "llama", num_key_value_heads=2, tie=False)
    expected = logits(folder)
    edit(
        folder / "config.json",
        head_dim=...,
        num_key_value_heads=...,
        tie_word_embeddings=...,
        max_position_embeddings=2048.0,
    )

    summary = prepare(folder, tmp_path)

    config = read_json(tmp_path / "checkpoint" / "config.json")
    assert config["head_dim"] == 64
    assert config["num_key_value_heads"] == 2
    assert config["tie_word_embeddings"] is False
    assert config["max_position_embeddings"] == 2048
    assert any("head_dim" in note for note in summary["normalisations"])
    assert torch.equal(logits(tmp_path / "checkpoint"), expected)


def test_the_articles_architecture_for_qwen3_is_corrected(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "qwen3", architectures=["Qwen2ForCausalLM"])

    summary = prepare(folder, tmp_path)

    config = read_json(tmp_path / "checkpoint" / "config.json")
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert any("Qwen2ForCausalLM" in note for note in summary["normalisations"])


def test_rotary_buffers_of_old_exports_are_left_out(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "llama")
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_tensors(folder, lambda t: t.update({name: torch.ones(32)}))

    summary = prepare(folder, tmp_path)

    assert name not in load_file(tmp_path / "checkpoint" / "model.safetensors")
    assert any("inv_freq" in note for note in summary["normalisations"])


def template_in_config(folder: Path, template: Any) -> None:
    (folder / "chat_template.jinja").unlink()
    edit(folder / "tokenizer_config.json", chat_template=template)


@pytest.mark.parametrize(
    "template",
    [
        CHAT_TEMPLATE,
        [{"name": "tools", "template": "x"}, {"name": "default", "template": CHAT_TEMPLATE}],
    ],
    ids=["text", "named list"],
)
def test_the_template_of_tokenizer_config_is_moved(tmp_path: Path, template: Any) -> None:
    folder = make_tiny_model(tmp_path / "model", "qwen3")
    template_in_config(folder, template)

    summary = prepare(folder, tmp_path)

    checkpoint = tmp_path / "checkpoint"
    assert (checkpoint / "chat_template.jinja").read_text() == CHAT_TEMPLATE
    assert "chat_template" not in read_json(checkpoint / "tokenizer_config.json")
    assert any("chat template" in note for note in summary["normalisations"])
    rendered = AutoTokenizer.from_pretrained(checkpoint).apply_chat_template(
        [{"role": "user", "content": "hello"}], add_generation_prompt=True, tokenize=False
    )
    assert rendered == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def test_special_tokens_map_is_merged_where_it_would_win(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "qwen3")
    (folder / "special_tokens_map.json").write_text('{"eos_token": "<|endoftext|>"}')
    expected = AutoTokenizer.from_pretrained(folder).eos_token

    prepare(folder, tmp_path)

    assert AutoTokenizer.from_pretrained(tmp_path / "checkpoint").eos_token == expected
    assert expected == "<|endoftext|>"


def test_a_missing_generation_config_is_made(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "qwen3", bos_token_id=None, eos_token_id=None)
    (folder / "generation_config.json").unlink()

    prepare(folder, tmp_path)

    content = read_json(tmp_path / "checkpoint" / "generation_config.json")
    assert content == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def test_an_inspection_writes_nothing(tiny_model: Path) -> None:
    before = tree(tiny_model)

    inspection = inspect_checkpoint(tiny_model)

    assert inspection.spec.family == tiny_model.name
    assert tree(tiny_model) == before


def test_an_earlier_output_is_replaced(tmp_path: Path) -> None:
    prepare(make_tiny_model(tmp_path / "a", "qwen3", seed=1), tmp_path)
    prepare(folder := make_tiny_model(tmp_path / "b", "qwen3", seed=2), tmp_path)

    assert torch.equal(logits(tmp_path / "checkpoint"), logits(folder))


# ---------------------------------------------------------------------------------------------
# What is refused. Each entry damages a good qwen3 folder; the sentence must hold the facts.

Damage = Callable[[Path], Any]
FIRST_UP = "model.layers.0.mlp.up_proj.weight"


def config(**changes: Any) -> Damage:
    return lambda folder: edit(folder / "config.json", **changes)


def tensors(change: Callable[[Tensors], Any]) -> Damage:
    return lambda folder: edit_tensors(folder, change)


def renamed(prefix: str) -> Damage:
    def change(items: Tensors) -> None:
        for name in list(items):
            items[prefix + name] = items.pop(name)

    return tensors(change)


def added(name: str, value: torch.Tensor | None = None) -> Damage:
    return tensors(lambda items: items.update({name: torch.ones(2) if value is None else value}))


def poisoned(value: float) -> Damage:
    def change(items: Tensors) -> None:
        items[FIRST_UP][5, 6] = value

    return tensors(change)


def removed(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def written(name: str, content: str | bytes) -> Damage:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def both(*damages: Damage) -> Damage:
    return lambda folder: [damage(folder) for damage in damages]


def swapped(folder: Path) -> None:
    shard(folder)
    first, second = sorted(folder.glob("model-*"))[:2]
    first.rename(folder / "keep")
    second.rename(first)
    (folder / "keep").rename(second)


def untied(folder: Path) -> None:
    edit(folder / "config.json", tie_word_embeddings=False)


def adapter(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    written("adapter_config.json", '{"base_model_name_or_path": "Qwen/Qwen3-0.6B"}')(folder)
    save_file({"x": torch.ones(1)}, folder / "adapter_model.safetensors")


def index_entry(name: str, value: str) -> Damage:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        edit(path, weight_map=read_json(path)["weight_map"] | {name: value})

    return both(shard, change)


REFUSALS: dict[str, tuple[Damage, list[str]]] = {
    "no folder": (lambda folder: folder.rename(folder.parent / "gone"), ["does not exist"]),
    "adapter": (
        adapter,
        ["LoRA adapter", "Qwen/Qwen3-0.6B", "llamafactory-cli export", "--adapter_name_or_path"],
    ),
    "adapter beside weights": (written("adapter_config.json", "{}"), ["adapter_config.json"]),
    "no config": (removed("config.json"), ["config.json", "llamafactory-cli export"]),
    "broken config": (written("config.json", '{"a": 1,}'), ["config.json", "line 1, column"]),
    "config with a byte order mark": (
        written("config.json", b"\xef\xbb\xbf{}"),
        ["config.json", "BOM"],
    ),
    "config that is a list": (written("config.json", "[]"), ["config.json", "object"]),
    "unknown family": (
        config(model_type="gemma3_text"),
        ["model/config.json has", "gemma3_text", "qwen2", "llama"],
    ),
    "quantised by config": (
        config(quantization_config={"quant_method": "gptq"}),
        ["gptq", "unquantised"],
    ),
    "GPTQ tensors": (added("model.layers.0.mlp.up_proj.qweight"), ["qweight", "quantised"]),
    "bitsandbytes tensors": (added(f"{FIRST_UP}.absmax"), ["absmax", "bitsandbytes"]),
    "int8 weights": (
        tensors(lambda t: t.update({FIRST_UP: t[FIRST_UP].to(torch.int8)})),
        [FIRST_UP, "I8", "quantised"],
    ),
    "own code": (config(auto_map={"AutoModel": "modeling.X"}), ["auto_map"]),
    "classifier": (config(architectures=["Qwen3ForSequenceClassification"]), ["Classification"]),
    "classifier head": (added("score.weight"), ["score.weight", "classifier"]),
    "value head": (added("v_head.summary.weight"), ["v_head", "reward model"]),
    "value head file": (written("value_head.safetensors", b""), ["value_head", "reward model"]),
    "qwen3 said to be qwen2": (config(model_type="qwen2"), ["k_norm", "model_type qwen2"]),
    "peft wrapper": (renamed("base_model.model."), ["base_model.model.", "peft"]),
    "parallel wrapper": (renamed("module."), ["module.", "DataParallel"]),
    "compile wrapper": (renamed("_orig_mod."), ["_orig_mod.", "torch.compile"]),
    "unmerged LoRA": (added("model.layers.0.self_attn.q_proj.lora_A.weight"), ["lora_A"]),
    "an extra tensor": (added("model.extra"), ["model.extra"]),
    "an extra layer": (config(num_hidden_layers=1), ["model.layers.1.", "num_hidden_layers 1"]),
    "a missing layer": (
        config(num_hidden_layers=3, layer_types=...),
        ["model.layers.2.", "misses"],
    ),
    "a missing tensor": (tensors(lambda t: t.pop(FIRST_UP)), [FIRST_UP, "misses 1 of"]),
    "no head while not tied": (untied, ["lm_head.weight", "tie_word_embeddings"]),
    "no head and no word on tying": (
        config(tie_word_embeddings=...),
        ["lm_head.weight", "tie_word_embeddings"],
    ),
    "another head while tied": (
        added("lm_head.weight", torch.ones(512, 128)),
        ["lm_head.weight", "differs", "tie_word_embeddings"],
    ),
    "a wrong shape": (
        tensors(lambda t: t.update({FIRST_UP: t[FIRST_UP][:, :64].clone()})),
        [FIRST_UP, "[256, 64]", "[256, 128]"],
    ),
    "an embedding that was resized": (
        config(vocab_size=576),
        ["embed_tokens", "[512, 128]", "vocab_size 576", "resize_vocab"],
    ),
    "NaN": (poisoned(float("nan")), [FIRST_UP, "NaN", "[5, 6]"]),
    "infinity": (poisoned(float("inf")), [FIRST_UP, "[5, 6]"]),
    "no weights": (removed("model.safetensors"), ["no weights"]),
    "empty weights": (written("model.safetensors", b""), ["model.safetensors", "is empty"]),
    "Git LFS pointer": (
        written("model.safetensors", "version https://git-lfs.github.com/spec/v1\n"),
        ["Git LFS", "git lfs pull"],
    ),
    "truncated weights": (
        lambda folder: written(
            "model.safetensors", (folder / "model.safetensors").read_bytes()[:-100]
        )(folder),
        ["model.safetensors", "truncated"],
    ),
    "stale single file beside shards": (
        lambda folder: (shard(folder), written("model.safetensors", b"x")(folder)),
        ["stale", "model.safetensors"],
    ),
    "missing shard": (
        both(shard, removed("model-00002-of-00003.safetensors")),
        ["model-00002-of-00003.safetensors"],
    ),
    "swapped shards": (swapped, ["model-00001-of-00003.safetensors", "not of one export"]),
    "no index": (both(shard, removed("model.safetensors.index.json")), ["index.json"]),
    "empty index": (
        both(shard, written("model.safetensors.index.json", "{}")),
        ["index.json", "weight_map"],
    ),
    "index with one tensor more": (
        index_entry("more", "model-00001-of-00003.safetensors"),
        ["more", "model-00001-of-00003.safetensors"],
    ),
    "index outside of the folder": (index_entry("more", "../x.safetensors"), ["../x.safetensors"]),
    "a stale shard": (
        lambda folder: (
            shard(folder),
            save_file({"x": torch.ones(1)}, folder / "model-00004-of-00004.safetensors"),
        ),
        ["model-00004-of-00004.safetensors", "earlier export"],
    ),
    "no tokenizer": (removed("tokenizer.json"), ["tokenizer.json", "base model"]),
    "no tokenizer config": (removed("tokenizer_config.json"), ["tokenizer_config.json"]),
    "broken tokenizer": (written("tokenizer.json", "{"), ["tokenizer.json", "line 1"]),
    "not a tokenizer": (written("tokenizer.json", "{}"), ["tokenizer.json", "base model"]),
    "tokens beyond the embedding": (
        both(
            config(vocab_size=480),
            tensors(
                lambda t: t.update(
                    {"model.embed_tokens.weight": t["model.embed_tokens.weight"][:480].clone()}
                )
            ),
        ),
        ["tokenizer.json", "479", "resize_vocab"],
    ),
    "no chat template": (removed("chat_template.jinja"), ["chat template", "base model"]),
    "an empty chat template": (written("chat_template.jinja", " \n"), ["chat template"]),
    "several templates, none the default": (
        lambda folder: template_in_config(folder, [{"name": "tools", "template": "x"}]),
        ["tools", "'default'"],
    ),
    "an unknown tokenizer class": (
        lambda folder: edit(folder / "tokenizer_config.json", tokenizer_class="MyTokenizer"),
        ["transformers cannot load", "MyTokenizer"],
    ),
    "a tokenizer class that encodes otherwise": (
        lambda folder: edit(
            folder / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer", add_prefix_space=True
        ),
        ["tokenizer_config.json", "otherwise", "GPT2Tokenizer"],
    ),
    "a template with a syntax error": (
        written("chat_template.jinja", "{% for m in messages %}"),
        ["chat template", "cannot be rendered"],
    ),
    "a template that raises": (
        written("chat_template.jinja", "{{ raise_exception('no roles') }}"),
        ["chat template", "no roles"],
    ),
    "a template that drops the answer": (
        written("chat_template.jinja", "{{ messages[0]['content'] }}"),
        ["chat template", "drops messages"],
    ),
    "Infinity in a number": (config(max_window_layers=float("inf")), ["config.json", "Infinity"]),
    "architectures that is no list": (config(architectures={}), ["architectures", "{}"]),
    "nested rope parameters": (
        config(rope_parameters={"full_attention": {"rope_theta": 1e6}}),
        ["rope_parameters", "full_attention"],
    ),
    "no rope base": (config(rope_theta=...), ["rope_theta"]),
    "an end token beyond the embedding": (
        lambda folder: edit(folder / "generation_config.json", eos_token_id=[2, 512]),
        ["generation_config.json", "eos_token_id", "[2, 512]", "0 to 511"],
    ),
    "a token id that is text": (config(bos_token_id="1"), ["config.json", "bos_token_id is '1'"]),
    "settings that are none": (
        lambda folder: edit(folder / "generation_config.json", max_new_tokens="many"),
        ["generation_config.json", "str"],
    ),
    "overlong weights": (
        lambda folder: written(
            "model.safetensors", (folder / "model.safetensors").read_bytes() + b"x"
        )(folder),
        ["model.safetensors", "longer than its header says"],
    ),
    "a header that is none": (
        written("model.safetensors", (2).to_bytes(8, "little") + b"[]"),
        ["model.safetensors", "header is not an object"],
    ),
    "AWQ by config": (config(quantization_config={"quant_method": "awq"}), ["awq", "unquantised"]),
    "AWQ tensors": (added("model.layers.0.mlp.up_proj.qzeros"), ["qzeros", "quantised"]),
    "bitsandbytes by config": (
        config(quantization_config={"load_in_4bit": True}),
        ["quantised already", "unquantised"],
    ),
    "4-bit tensors": (added(f"{FIRST_UP}.quant_map"), ["quant_map", "bitsandbytes"]),
    "fp8 scales": (added("model.layers.0.mlp.up_proj.weight_scale_inv"), ["weight_scale", "quant"]),
    "a classifier's second head": (added("classifier.weight"), ["classifier"]),
    "value head in a pickle": (written("value_head.bin", b""), ["value_head", "reward model"]),
    "two prefixes": (renamed("base_model.model.module."), ["base_model.model.module."]),
    "broken generation config": (written("generation_config.json", "{"), ["generation_config"]),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_name_the_fact_and_leave_nothing_behind(name: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "qwen3")
    damage, facts = REFUSALS[name]
    damage(folder)
    before = tree(tmp_path)

    with pytest.raises(SnapbakeError) as caught:
        prepare(folder, tmp_path)

    message = str(caught.value)
    assert [fact for fact in facts if fact not in message] == [], message
    assert "\n" not in message
    assert tree(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("model", "gone")] == []


def test_a_refusal_keeps_the_earlier_output(tmp_path: Path) -> None:
    prepare(folder := make_tiny_model(tmp_path / "model", "qwen3"), tmp_path)
    before = {name: data for name, data in tree(tmp_path).items() if name[:5] == "check"}
    poisoned(float("nan"))(folder)

    with pytest.raises(SnapbakeError):
        prepare(folder, tmp_path)

    assert {name: data for name, data in tree(tmp_path).items() if name[:5] == "check"} == before


def test_a_file_instead_of_a_folder(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "qwen3")

    with pytest.raises(SnapbakeError, match="is a file"):
        prepare(folder / "model.safetensors", tmp_path)


def test_the_program_succeeds_and_refuses(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", "llama")
    options = ["--output-dir", str(tmp_path / "checkpoint"), "--summary", str(tmp_path / "s.json")]

    good = run_script("prepare_checkpoint.py", "--source", str(folder), *options)
    bad = run_script("prepare_checkpoint.py", "--source", str(tmp_path / "none"), *options)

    assert (good.returncode, good.stderr) == (0, "")
    assert read_json(tmp_path / "s.json")["family"] == "llama"
    assert bad.returncode == 1
    assert bad.stderr == f"error: {tmp_path / 'none'} does not exist; check the path of the model\n"
