"""libsnapbake_genie.so and SnapbakeGenie.kt in a real Java machine, over Genie on the emulator."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from android_programs import ROOT, SOURCES, TinyBuild, run_runner, tokens_of
from contract_graphs import token_ids
from snapbake.qnn_library import library_folder

PROMPT = token_ids(21, seed=21)
NEW = 12  # what GenieHost asks for
HERE = Path(__file__).parent
NATIVE = SOURCES / "java/org/snapbake/GenieNative.java"
# The Kotlin compiler of npm, which brings coroutines too, and Debian's copy of Android's org.json.
KOTLIN = ROOT / ".ci/kotlin/node_modules/kotlin-compiler/lib"
ANDROID_JSON = Path("/usr/share/java/json-android.jar")


@pytest.fixture(scope="module")
def library(programs: Path) -> Path:
    """The folder of the library, made for the JDK that the tests use."""
    if shutil.which("javac") is None:
        pytest.skip("there is no JDK: apt-get install default-jdk-headless")
    assert (programs / "libsnapbake_genie.so").exists()
    return programs


@pytest.fixture(scope="module")
def classes(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The class that ships and the one that calls it."""
    assert library.is_dir()
    folder = tmp_path_factory.mktemp("classes")
    subprocess.run(
        ["javac", "-Xlint:all", "-Werror", "-d", folder, NATIVE, HERE / "GenieHost.java"],
        check=True,
    )
    return folder


def java(library: Path, path: Sequence[Path], *words: object, folder: Path) -> dict[str, list[str]]:
    """Run a Java program with JNI's checks; return what it said, by name."""
    done = subprocess.run(
        [
            *("java", "-Xcheck:jni", f"-Djava.library.path={library}"),
            *("-cp", os.pathsep.join(map(str, path)), *map(str, words)),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING in native method" not in done.stdout
    said: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, colon, value = line.partition(": ")
        if colon:
            said.setdefault(name, []).append(value)
    return said


def host(
    library: Path, classes: Path, build: TinyBuild, scenario: str, *words: object
) -> dict[str, list[str]]:
    """Run a scenario of GenieHost, with the folder of the build as the working folder."""
    config = build.folder / "genie_config.json"
    said = java(
        library,
        [classes],
        *("GenieHost", library_folder(), config, scenario, *words),
        folder=build.folder,
    )
    assert said["end"] == ["reached"]
    return said


def listed(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids))


def test_genie_and_qnn_runner_give_the_same_tokens(
    library: Path, classes: Path, tiny_build: TinyBuild
) -> None:
    for count in (16, 40):
        prompt = token_ids(count, seed=count)
        said = host(library, classes, tiny_build, "tokens", listed(prompt))
        done = run_runner(library / "qnn_runner", tiny_build, prompt, "--count", str(NEW))
        answer = json.loads(said["tokens"][0])
        assert answer == tokens_of(done)
        assert said["ending"] == ["0"]


def test_text_of_all_planes_goes_in_and_out(
    library: Path, classes: Path, tiny_builds: dict[str, TinyBuild], tmp_path: Path
) -> None:
    build = tiny_builds["w8a16"]
    tokenizer = Tokenizer.from_file(str(build.folder / "tokenizer.json"))
    lengths = []
    for question in ("😀 und 水?", "What is 𝄞", "é 中文 \U0010ffff"):
        (tmp_path / "prompt.txt").write_text(question, encoding="utf-8")
        answer = tmp_path / "answer.txt"
        said = host(library, classes, build, "text", tmp_path / "prompt.txt", answer)
        assert set(said.get("whole", [])) <= {"true"}
        # The same question as tokens: what Genie was given must have been the same text.
        ids = tokenizer.encode(question, add_special_tokens=False).ids
        tokens = json.loads(host(library, classes, build, "tokens", listed(ids))["tokens"][0])
        text = answer.read_text(encoding="utf-8")
        # Genie keeps back what follows bytes that are no character.
        assert text == tokenizer.decode(tokens).partition("\ufffd")[0]
        lengths.append(len(text))
    assert max(lengths) > 3


def test_a_query_can_be_stopped_and_leaves_nothing_behind(
    library: Path, classes: Path, tiny_builds: dict[str, TinyBuild]
) -> None:
    said = host(library, classes, tiny_builds["w8a16"], "stops", listed(PROMPT))
    assert said["refused piece"] == said["other thread"] == ["1"]
    assert said["pieces before it"] == ["3"]
    assert int(said["pieces of it"][0]) < NEW
    assert said["again"] == ["0"]
    assert said["same"] == ["true"]


def test_mistakes_become_java_exceptions(
    library: Path, classes: Path, tiny_builds: dict[str, TinyBuild]
) -> None:
    build = tiny_builds["fp16"]
    said = host(library, classes, build, "mistakes", listed(PROMPT))
    assert said["listener"] == ["the listener's own 😀"]
    assert said["null prompt"] == ["the prompt is null"]
    assert said["null listener"] == ["the listener is null"]
    assert "NUL character" in said["NUL"][0]
    assert said["limit"] == ["the limit of tokens is not above 0"]
    assert said["never opened"] == ["the dialog is closed; open it again"]
    done = run_runner(library / "qnn_runner", build, PROMPT, "--count", str(NEW))
    assert json.loads(said["tokens"][0]) == tokens_of(done)


def test_closing_ends_a_query_that_runs(
    library: Path, classes: Path, tiny_builds: dict[str, TinyBuild]
) -> None:
    said = host(library, classes, tiny_builds["w8a16"], "closes", listed(PROMPT))
    assert said["endings"] == ["[1]"]
    assert said["closed"] == ["the dialog is closed; open it again"]


def test_what_cannot_be_loaded_is_said(
    library: Path, classes: Path, tiny_builds: dict[str, TinyBuild], tmp_path: Path
) -> None:
    build = tiny_builds["w8a16"]
    config = json.loads((build.folder / "genie_config.json").read_text())
    config["dialog"]["context"]["size"] = 4096
    for content, libraries, words in (
        ("{", library_folder(), "the configuration is no JSON"),
        ('{"dialog": 1}', library_folder(), "a key or type that Genie does not know"),
        (json.dumps(config), library_folder(), "GenieDialog_create returned -1"),
        ("{}", tmp_path, "libQnnHtp.so cannot be loaded"),
    ):
        path = tmp_path / "config.json"
        path.write_text(content)
        words_of_java = ("GenieHost", libraries, path, "tokens", "5")
        said = java(library, [classes], *words_of_java, folder=build.folder)
        assert words in said["refused"][0]


def test_kotlin_hands_out_a_flow_that_can_be_cancelled(
    library: Path, tiny_builds: dict[str, TinyBuild], tmp_path: Path
) -> None:
    if not KOTLIN.is_dir() or not ANDROID_JSON.exists():
        pytest.skip("Kotlin's compiler or org.json is not installed; .ci/run says how")
    build = tiny_builds["w8a16"]
    needed = [KOTLIN / "kotlin-stdlib.jar", KOTLIN / "kotlinx-coroutines-core-jvm.jar"]
    path = [tmp_path, *needed, ANDROID_JSON]
    subprocess.run(["javac", "-d", tmp_path, NATIVE], check=True)
    subprocess.run(
        [
            *("java", "-cp", f"{KOTLIN}/*", "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler"),
            *("-Werror", "-no-stdlib", "-no-reflect", "-cp", os.pathsep.join(map(str, path))),
            *("-d", tmp_path, SOURCES / "kotlin/org/snapbake/SnapbakeGenie.kt"),
            HERE / "FlowHost.kt",
        ],
        check=True,
    )
    # Another working folder than the bundle's: the paths in the configuration become absolute.
    long_prompt = listed(token_ids(60))
    words = ("FlowHostKt", build.folder, library_folder(), listed(PROMPT), long_prompt)
    said = java(library, path, *words, folder=tmp_path)
    done = run_runner(library / "qnn_runner", build, PROMPT, "--count", str(NEW))
    tokens = tokens_of(done)
    assert json.loads(said["tokens"][0]) == tokens
    assert json.loads(said["taken"][0]) == tokens[:3]
    assert said["cancelled"] == ["true true"]
    assert said["same"] == ["true"]
    assert "the context is full" in said["full"][0]
    assert said["closed"] == ["the dialog is closed; open it again"]
