"""run_on_phone.sh with a phone that is a folder: what it checks, copies, asks and fetches."""

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from genie_builds import ROOT
from snapbake.bundle import fill, stripped_spaces
from snapbake.bundle_files import write_text
from snapbake.prompt_template import PromptTemplate

TEMPLATE = PromptTemplate(
    "<|im_start|>user\n", "<|im_end|>\n<|im_start|>it's me\n", False, ("<|im_end|>",), (2,)
)
STRIPPING = replace(TEMPLATE, strip=True)
# adb for a folder: files are copied, commands run with the folder in place of /data/local/tmp.
ADB = """\
#!/bin/sh
root=$(dirname "$0")/phone
echo "$*" >>"$root/calls"
case $1 in
get-state) cat "$root/state" ;;
push)
    shift
    for last in "$@"; do :; done
    place=$root/tmp${last#/data/local/tmp}
    while [ $# -gt 1 ]; do cp "$1" "$place"; shift; done
    ;;
pull) cp "$root/tmp${2#/data/local/tmp}" "$3" ;;
shell)
    case $2 in
    "getprop ro.soc.model" | getprop) cat "$root/model" ;;
    *) PATH=/usr/bin:/bin sh -c "$(printf '%s' "$2" | sed "s#/data/local/tmp#$root/tmp#g")" ;;
    esac
    ;;
esac
"""
GENIE = """\
#!/bin/sh
[ -f libQnnHtpV75Skel.so ] && [ -f context.bin ] && [ -f tokenizer.json ] || exit 1
printf '[BEGIN]: '
cat "$4"
printf '[END]\\n'
"""
# Says how it was called and what it was given.
RUNNER = """\
#!/bin/sh
[ -f libQnnHtpV75Skel.so ] && [ -f context.bin ] && [ "$LD_LIBRARY_PATH" = "$PWD" ] || exit 1
echo "$@"
cat runner.json prompt.txt
"""


@dataclass
class Phone:
    """A bundle's script, an SDK and a phone, all of them folders."""

    bundle: Path
    sdk: Path
    folder: Path
    where: Path

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {
            "PATH": f"{self.folder.parent}:{os.environ['PATH']}",
            "QNN_SDK_ROOT": str(self.sdk),
            **environment,
        }
        return subprocess.run(
            [str(self.bundle / "run_on_phone.sh"), *arguments],
            cwd=self.where,
            env=variables,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )


@pytest.fixture
def phone(tmp_path: Path) -> Phone:
    bundle, tools = tmp_path / "my bundle", tmp_path / "tools"
    sdk, folder = tmp_path / "qairt" / "2.51.0.260929", tools / "phone"
    for path in (bundle, folder / "tmp", tmp_path / "where"):
        path.mkdir(parents=True)
    for name in ("context.bin", "genie_config.json", "htp_backend_ext_config.json"):
        (bundle / name).write_text(name)
    (bundle / "tokenizer.json").write_text("tokens")
    (bundle / "android").mkdir()
    (bundle / "android" / "runner.json").write_text("parameters\n")
    (tmp_path / "where" / "ids.txt").write_text("1 20\n300\n")
    make_script(bundle / "run_on_phone.sh")
    for name in (
        "bin/aarch64-android/genie-t2t-run",
        *(
            f"lib/aarch64-android/lib{library}.so"
            for library in (
                "Genie",
                "QnnHtp",
                "QnnSystem",
                "QnnHtpNetRunExtensions",
                "QnnHtpV75Stub",
            )
        ),
        "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so",
    ):
        (sdk / name).parent.mkdir(parents=True, exist_ok=True)
        (sdk / name).write_text(GENIE if "genie-t2t" in name else "library")
    (tools / "adb").write_text(ADB)
    (tools / "adb").chmod(0o755)
    (folder / "state").write_text("device\n")
    (folder / "model").write_text("SM8650\n")
    return Phone(bundle, sdk, folder, tmp_path / "where")


def make_script(path: Path, template: PromptTemplate = TEMPLATE) -> None:
    """Fill the template as a bundle does."""
    words = {
        "name": "tiny",
        "part": "SM8650",
        "arch": "75",
        "qairt": "2.51.0",
        "folder": "tiny-c64",
        "prefix": shlex.quote(template.prefix),
        "suffix": shlex.quote(template.suffix),
        "spaces": stripped_spaces(template),
    }
    write_text(path, fill(ROOT / "bundle" / "run_on_phone.sh", words), executable=True)


def test_it_asks_and_fetches_the_answer(phone: Phone) -> None:
    question = 'What\'s "it"? $HOME `ls` \\n 你好'
    done = phone.run(question)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"[BEGIN]: {TEMPLATE.render(question)}[END]\n"
    assert (phone.where / "answer.txt").read_text() == done.stdout
    pushed = {path.name for path in (phone.folder / "tmp" / "tiny-c64").iterdir()}
    assert pushed == {
        "answer.txt",
        "context.bin",
        "genie-t2t-run",
        "genie_config.json",
        "htp_backend_ext_config.json",
        "libGenie.so",
        "libQnnHtp.so",
        "libQnnHtpNetRunExtensions.so",
        "libQnnHtpV75Skel.so",
        "libQnnHtpV75Stub.so",
        "libQnnSystem.so",
        "prompt.txt",
        "tokenizer.json",
    }


@pytest.mark.parametrize("template", [TEMPLATE, STRIPPING], ids=["kept", "stripped"])
@pytest.mark.parametrize(
    "question", ["\n \t Who?  Me \n\n", "\u3000 你好\u00a0\u2028", " \u1680\x1f\v\f ", "à", "\\t"]
)
def test_space_around_a_question_is_the_templates_matter(
    phone: Phone, template: PromptTemplate, question: str
) -> None:
    make_script(phone.bundle / "run_on_phone.sh", template)
    done = phone.run(question)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"[BEGIN]: {template.render(question)}[END]\n"


def give_runner(phone: Phone, place: Path) -> None:
    """Put a program that says what it was given where qnn_runner can be."""
    place.parent.mkdir(exist_ok=True)
    write_text(place, RUNNER)
    # What Genie needs is not needed.
    (phone.sdk / "bin/aarch64-android/genie-t2t-run").unlink()
    (phone.sdk / "lib/aarch64-android/libGenie.so").unlink()


def test_qnn_runner_of_the_bundle_gets_ids_and_parameters(phone: Phone) -> None:
    give_runner(phone, phone.bundle / "android" / "arm64-v8a" / "qnn_runner")
    done = phone.run("--qnn-runner", "ids.txt")
    assert done.returncode == 0, done.stderr
    options = "--parameters runner.json --binary context.bin --tokens prompt.txt"
    assert done.stdout == f"{options}\nparameters\n1 20\n300\n"
    assert (phone.where / "answer.txt").read_text() == done.stdout
    pushed = {path.name for path in (phone.folder / "tmp" / "tiny-c64").iterdir()}
    assert pushed == {
        "answer.txt",
        "context.bin",
        "libQnnHtp.so",
        "libQnnHtpV75Skel.so",
        "libQnnHtpV75Stub.so",
        "libQnnSystem.so",
        "prompt.txt",
        "qnn_runner",
        "runner.json",
    }


def test_qnn_runner_built_by_hand_gets_its_options(phone: Phone) -> None:
    give_runner(phone, phone.where / "build" / "qnn_runner")
    options = ["--count", "64", "--temperature", "0.7"]
    done = phone.run("--qnn-runner", "ids.txt", *options, QNN_RUNNER="build/qnn_runner")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].endswith(" --tokens prompt.txt " + " ".join(options))
    asked = ("--qnn-runner", "ids.txt", "--count", "1; reboot")
    assert "takes no such options: --count 1; reboot" in refusal(
        phone, *asked, QNN_RUNNER="build/qnn_runner"
    )


def test_qnn_runner_that_fails_is_told(phone: Phone) -> None:
    give_runner(phone, phone.bundle / "android" / "arm64-v8a" / "qnn_runner")
    (phone.bundle / "android" / "arm64-v8a" / "qnn_runner").write_text("#!/bin/sh\nexit 1\n")
    assert "qnn_runner failed; see: adb logcat" in refusal(phone, "--qnn-runner", "ids.txt")


def test_no_qnn_runner_and_no_ids_are_refused_before_copying(phone: Phone) -> None:
    words = refusal(phone, "--qnn-runner", "ids.txt")
    assert "android/arm64-v8a/qnn_runner does not exist; build it with an Android NDK" in words
    assert f"cmake -S '{phone.bundle}/android' -B build && cmake --build build" in words
    assert "nowhere does not exist" in refusal(phone, "--qnn-runner", "ids", QNN_RUNNER="nowhere")
    give_runner(phone, phone.bundle / "android" / "arm64-v8a" / "qnn_runner")
    assert "'What is it?' is no file; give a file" in refusal(phone, "--qnn-runner", "What is it?")
    assert "'' is no file" in refusal(phone, "--qnn-runner")
    assert not (phone.folder / "calls").exists()


@pytest.mark.parametrize("model", ["SM8650-AB\r", "SM8650P", "SM8650"])
def test_a_suffix_of_the_chip_is_no_other_chip(phone: Phone, model: str) -> None:
    (phone.folder / "model").write_text(f"{model}\n")
    assert phone.run("Hi").returncode == 0


@pytest.mark.parametrize("version", ["2.51.0", "2.51.1.260101", "2.60.0.270101", "3.0.0"])
def test_a_later_sdk_is_taken(phone: Phone, version: str) -> None:
    sdk = phone.sdk.rename(phone.sdk.with_name(version))
    assert phone.run("Hi", QNN_SDK_ROOT=str(sdk)).returncode == 0


def test_the_sdks_own_word_counts(phone: Phone) -> None:
    (phone.sdk / "sdk.yaml").write_text("product: qairt\nversion: 2.40.0.250101\n")
    assert "is 2.40.0.250101 and this model was compiled by 2.51.0" in refusal(phone, "Hi")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("SM8750", "the phone's chip is 'SM8750' and this model was compiled for SM8650"),
        ("SM86501", "the phone's chip is 'SM86501'"),
        ("", "the phone's chip is ''"),
    ],
)
def test_another_chip_is_refused_before_copying(phone: Phone, model: str, words: str) -> None:
    (phone.folder / "model").write_text(f"{model}\n")
    assert words in refusal(phone, "Hi")
    assert "push" not in (phone.folder / "calls").read_text()


def test_an_older_sdk_is_refused(phone: Phone) -> None:
    sdk = phone.sdk.rename(phone.sdk.with_name("2.40.0.251030"))
    assert "is 2.40.0.251030" in refusal(phone, "Hi", QNN_SDK_ROOT=str(sdk))
    assert not (phone.folder / "calls").exists()


def test_an_unknown_sdk_is_refused(phone: Phone) -> None:
    sdk = phone.sdk.rename(phone.sdk.with_name("latest"))
    assert "is not known" in refusal(phone, "Hi", QNN_SDK_ROOT=str(sdk))


def test_what_is_missing_is_named(phone: Phone) -> None:
    assert "QNN_SDK_ROOT is not set" in refusal(phone, "Hi", QNN_SDK_ROOT="")
    assert "give one question" in refusal(phone)
    assert "give one question" in refusal(phone, "two", "words")
    (phone.sdk / "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so").unlink()
    assert "libQnnHtpV75Skel.so is missing" in refusal(phone, "Hi")


def test_no_phone_is_refused(phone: Phone) -> None:
    (phone.folder / "state").write_text("unauthorized\n")
    assert "adb sees no phone (state: unauthorized)" in refusal(phone, "Hi")


def test_a_file_that_was_cut_off_is_noticed(phone: Phone) -> None:
    adb = phone.folder.parent / "adb"
    adb.write_text(
        adb.read_text().replace(
            'cp "$1" "$place"; shift; done',
            'cp "$1" "$place"; shift; done; : >"$root/tmp/tiny-c64/context.bin"',
        )
    )
    assert "context.bin did not arrive whole" in refusal(phone, "Hi")


def test_a_mac_without_sha256sum_will_do(phone: Phone, tmp_path: Path) -> None:
    tools = tmp_path / "mac"
    tools.mkdir()
    names = "adb basename cat cp cut dirname grep head mktemp perl rm sed sh shasum sort tr"
    for name in names.split():
        found = shutil.which(name, path=f"{phone.folder.parent}:{os.environ['PATH']}")
        if found is None:
            pytest.skip(f"{name} is not installed")
        (tools / name).symlink_to(found)
    (tools / "adb").unlink()
    (tools / "adb").write_text(f'#!/bin/sh\nexec "{phone.folder.parent / "adb"}" "$@"\n')
    (tools / "adb").chmod(0o755)
    done = phone.run("Why?", PATH=str(tools))
    assert done.returncode == 0, done.stderr
    assert "Why?" in done.stdout


def test_a_crash_on_the_phone_is_told(phone: Phone) -> None:
    (phone.sdk / "bin/aarch64-android/genie-t2t-run").write_text("#!/bin/sh\nexit 134\n")
    assert "genie-t2t-run failed" in refusal(phone, "Hi")
    (phone.sdk / "bin/aarch64-android/genie-t2t-run").write_text("#!/bin/sh\necho nothing\n")
    assert "genie-t2t-run gave no answer" in refusal(phone, "Hi")


def refusal(phone: Phone, *arguments: str, **environment: str) -> str:
    """Run the script and return its one line of refusal."""
    done = phone.run(*arguments, **environment)
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    return errors[0]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("template", [TEMPLATE, STRIPPING], ids=["kept", "stripped"])
def test_shellcheck_finds_nothing(phone: Phone, template: PromptTemplate) -> None:
    make_script(phone.bundle / "run_on_phone.sh", template)
    done = subprocess.run(
        ["shellcheck", str(phone.bundle / "run_on_phone.sh")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
