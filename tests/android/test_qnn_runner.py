"""qnn_runner on the emulator: the tokens of the Python loop, sampling, and words for mistakes."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from android_programs import SOURCES, STOP, TinyBuild, run_runner, tokens_of
from contract_graphs import CONTEXT, token_ids
from snapbake.errors import SnapbakeError
from snapbake.families import RopeSpec
from snapbake.htp_target import HtpTarget
from snapbake.qnn_library import library_folder
from snapbake.runner_parameters import runner_parameters
from snapbake.weight_sharing import share_weights

NEW = 8
LLAMA3 = RopeSpec(10000.0, "llama3", 8.0, 32, 1.0, 4.0)
YARN = RopeSpec(10000.0, "yarn", 4.0, 16)
PROMPT = token_ids(21, seed=21)


@pytest.fixture(scope="session")
def runner(programs: Path) -> Path:
    """The program."""
    return programs / "qnn_runner"


def with_parameters(build: TinyBuild, folder: Path, **changes: Any) -> list[str]:
    """Return the option that gives other parameters than the build's; None leaves one out."""
    content = json.loads((build.folder / "runner.json").read_text()) | changes
    path = folder / "other.json"
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    return ["--parameters", str(path)]


def test_the_tokens_are_those_of_the_python_loop(
    runner: Path, tiny_build: TinyBuild, tmp_path: Path
) -> None:
    # Part of a chunk, whole chunks, one token more, almost the whole context.
    prompts = [token_ids(count, seed=count) for count in (3, 32, 33, 60)]
    expected = tiny_build.expected(prompts, NEW, tmp_path)
    for prompt, tokens in zip(prompts, expected, strict=True):
        assert tokens_of(run_runner(runner, tiny_build, prompt, "--count", str(NEW))) == tokens
    assert len(expected[-1]) == CONTEXT - 60


@pytest.mark.parametrize("rope", [LLAMA3, YARN], ids=lambda rope: rope.kind)
def test_scaled_positions_are_those_of_the_python_loop(
    runner: Path, tiny_builds: dict[str, TinyBuild], tmp_path: Path, rope: RopeSpec
) -> None:
    plain = tiny_builds["fp16"]
    scaled = replace(plain, pair=replace(plain.pair, spec=replace(plain.pair.spec, rope=rope)))
    (expected,) = scaled.expected([PROMPT], NEW, tmp_path)
    option = with_parameters(plain, tmp_path, **runner_parameters(scaled.pair, [STOP]))
    tokens = tokens_of(run_runner(runner, plain, PROMPT, *option, "--count", str(NEW)))
    assert tokens == expected
    assert tokens != tokens_of(run_runner(runner, plain, PROMPT, "--count", str(NEW)))


def test_dynamic_scaling_is_refused_where_it_changes() -> None:
    # A spec alone is enough, nothing is run.
    rope = RopeSpec(10000.0, "dynamic", 2.0, 32)
    spec = type("Spec", (), {"rope": rope, "head_dim": 64})
    pair = type("Pair", (), {"spec": spec, "context": 64, "mask_value": -100.0})
    with pytest.raises(SnapbakeError, match="at most 32 tokens"):
        runner_parameters(pair, [STOP])


def test_a_prompt_from_a_file_and_a_full_context(
    runner: Path, tiny_builds: dict[str, TinyBuild], tmp_path: Path
) -> None:
    build = tiny_builds["w8a16"]
    (tmp_path / "ids.txt").write_text("\n".join(map(str, PROMPT)))
    option = with_parameters(build, tmp_path, stop_tokens=[])
    done = run_runner(runner, build, "", "--tokens", str(tmp_path / "ids.txt"), *option)
    tokens = tokens_of(done)
    assert len(tokens) == CONTEXT - len(PROMPT)
    assert "the context of 64 tokens is full" in done.stderr
    whole = run_runner(runner, build, token_ids(CONTEXT), "--count", "1")
    assert tokens_of(whole) == []


def test_a_stop_token_ends_the_answer_and_is_printed(
    runner: Path, tiny_builds: dict[str, TinyBuild], tmp_path: Path
) -> None:
    build = tiny_builds["w8a16"]
    tokens = tokens_of(run_runner(runner, build, PROMPT, "--count", str(NEW)))
    option = with_parameters(build, tmp_path, stop_tokens=[511, tokens[2]])
    stopped = tokens_of(run_runner(runner, build, PROMPT, *option))
    assert stopped == tokens[: tokens.index(tokens[2]) + 1]


def test_sampling_is_repeatable_and_follows_its_limits(
    runner: Path, tiny_builds: dict[str, TinyBuild], tmp_path: Path
) -> None:
    build = tiny_builds["fp16"]
    anywhere = with_parameters(build, tmp_path, stop_tokens=[])

    def sample(*options: str) -> list[int]:
        done = run_runner(runner, build, PROMPT, *anywhere, "--count", "24", *options)
        return tokens_of(done)

    greedy = sample()
    assert sample("--temperature", "2", "--top-k", "1") == greedy
    assert sample("--temperature", "2", "--top-p", "1e-6") == greedy
    seeded = sample("--temperature", "2", "--seed", "7")
    assert sample("--temperature", "2", "--seed", "7") == seeded
    assert sample("--temperature", "2", "--seed", "8") != seeded
    assert seeded != greedy


def test_a_sanitised_build_finds_no_leak_and_no_misuse(
    runner: Path, tiny_builds: dict[str, TinyBuild], tmp_path: Path
) -> None:
    """The address and leak sanitizers, and that of undefined behaviour."""
    sanitised = tmp_path / runner.name
    sources = [
        *("qnn_runner.cpp", "decoder.cpp", "qnn_context.cpp"),
        *("runner_parameters.cpp", "sampler.cpp", "stored_form.cpp"),
    ]
    flags = ["-std=c++17", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run(
        ["g++", *flags, *(SOURCES / name for name in sources), "-o", sanitised, "-ldl"],
        check=True,
    )
    options = ["--count", "3", "--temperature", "1", "--top-k", "9", "--top-p", "0.9"]
    leaks = {"ASAN_OPTIONS": "detect_leaks=1"}
    for build in tiny_builds.values():
        done = run_runner(sanitised, build, PROMPT, *options, environment=leaks)
        assert len(tokens_of(done)) == 3
        assert "Sanitizer" not in done.stderr
    refused = run_runner(sanitised, build, [511, 512], environment=leaks)
    assert refused.returncode == 1
    assert "Sanitizer" not in refused.stderr


MISTAKES: dict[str, tuple[str, list[str], str]] = {
    "no tokens": ("", [], "there are no tokens"),
    "no numbers": ("5 six", [], "standard input has something that is no token id behind 1 ids"),
    "an unknown token": ("512", [], "the token 512 is outside of the vocabulary of 512"),
    "a negative token": ("-1", [], "the token -1 is outside"),
    "a long prompt": ("5 " * 65, [], "the prompt has 65 tokens and 64 of the context of 64"),
    "no file of tokens": ("", ["--tokens", "/nowhere"], "/nowhere cannot be opened: No such file"),
    "no parameters": ("5", ["--parameters", "/nowhere"], "/nowhere cannot be opened"),
    "no binary": ("5", ["--binary", "/nowhere"], "/nowhere cannot be opened"),
    "no libraries": ("5", ["--libraries", "/nowhere"], "/nowhere/libQnnSystem.so cannot be loaded"),
    "an unknown option": ("5", ["--top_k", "3"], "--top_k is no option; see --help"),
    "no value": ("5", ["--seed"], "--seed has no value"),
    "no number": ("5", ["--count", "many"], "--count many is no number"),
    "below zero": ("5", ["--top-k", "-3"], "--top-k -3 is below 0"),
    "a cold temperature": ("5", ["--temperature", "-1"], "the temperature is not a number from 0"),
    "a wrong top-p": ("5", ["--top-p", "1.5"], "top-p is not above 0 and at most 1"),
}


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the message of a run that failed as it should, in one last line."""
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    *_, last = done.stderr.splitlines()
    assert last.startswith("error: ")
    return last


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(runner: Path, tiny_builds: dict[str, TinyBuild], mistake: str) -> None:
    prompt, options, words = MISTAKES[mistake]
    assert words in error_of(run_runner(runner, tiny_builds["w8a16"], prompt, *options))


PARAMETERS: dict[str, tuple[Mapping[str, Any], str]] = {
    "frequencies of another model": (
        {"inverse_frequencies": [1.0]},
        "the parameters have 1 inverse frequencies and the graphs take 32",
    ),
    "a missing number": ({"mask_value": None}, "has no number mask_value"),
    "a missing list": ({"stop_tokens": None}, "has no list stop_tokens"),
    "a number for a list": ({"stop_tokens": 2}, "has no list stop_tokens"),
    "another key": ({"more": 1}, "has keys that this program does not know"),
    "text": ({"mask_value": "low"}, "is no flat JSON object: no finite number"),
}


@pytest.mark.parametrize("mistake", PARAMETERS)
def test_wrong_parameters_are_named(
    runner: Path, tiny_builds: dict[str, TinyBuild], tmp_path: Path, mistake: str
) -> None:
    changes, words = PARAMETERS[mistake]
    build = tiny_builds["w8a16"]
    options = with_parameters(build, tmp_path, **changes)
    assert words in error_of(run_runner(runner, build, "5", *options))


def run_binaries(
    runner: Path, build: TinyBuild, *binaries: Path
) -> subprocess.CompletedProcess[str]:
    """Run with other binaries than those of the build."""
    other = replace(build, folder=binaries[0].parent)
    (other.folder / "runner.json").write_bytes((build.folder / "runner.json").read_bytes())
    for graph, binary in zip(("prefill", "decode"), binaries, strict=True):
        if binary != other.binaries[graph]:
            shutil.copy(binary, other.binaries[graph])
    return run_runner(runner, other, "5")


def test_binaries_that_are_no_pair_are_named(
    runner: Path, tiny_builds: dict[str, TinyBuild], tmp_path: Path
) -> None:
    fp16, w8a16 = (tiny_builds[recipe].binaries for recipe in ("fp16", "w8a16"))
    (tmp_path / "cut").mkdir()
    cut = tmp_path / "cut" / "prefill.bin"
    cut.write_bytes(w8a16["prefill"].read_bytes()[:100_000])
    (tmp_path / "empty").mkdir()
    empty = tmp_path / "empty" / "prefill.bin"
    empty.touch()
    mixed = shutil.copy(fp16["prefill"], tmp_path / "prefill.bin")
    twice = Path(shutil.copytree(tiny_builds["w8a16"].folder, tmp_path / "twice")) / "prefill.bin"
    build = tiny_builds["w8a16"]
    for binaries, words in (
        ((cut, w8a16["decode"]), ""),
        ((empty, w8a16["decode"]), "is empty or no file"),
        ((mixed, w8a16["decode"]), "are not of one model; take both graphs out of one build"),
        ((twice, twice), "are not of one model; take both graphs out of one build"),
    ):
        assert words in error_of(run_binaries(runner, build, *binaries))


def test_one_graph_and_shared_weights_are_refused_in_words(
    runner: Path, tiny_builds: dict[str, TinyBuild], tmp_path: Path
) -> None:
    build = tiny_builds["w8a16"]
    share_weights(
        build.folder / "prefill.onnx",
        build.folder / "decode.onnx",
        list(build.binaries.values()),
        "sm8650",
        HtpTarget(soc_model=57, arch=75, vtcm_mb=8),
        [],
        tmp_path / "context.bin",
        tmp_path / "context.json",
    )
    common = ["--parameters", build.folder / "runner.json"]
    libraries = ["--libraries", library_folder()]
    for binary, words in (
        (build.binaries["decode"], "hold 1 graphs and a prefill and a decode graph are needed"),
        (tmp_path / "context.bin", "holds 2 graphs with shared weights"),
    ):
        done = subprocess.run(
            [runner, *common, "--binary", binary, *libraries],
            input="5",
            capture_output=True,
            text=True,
        )
        assert words in error_of(done)
