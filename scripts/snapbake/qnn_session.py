"""Sessions of onnxruntime's QNN execution provider, which compile a model when they are made.

Meant for a child process (child_process): the vendor's compiler can crash, and the working folder
changes for a while.
"""

import contextlib
import functools
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from snapbake import qnn_library
from snapbake.errors import SnapbakeError
from snapbake.files import require_disk_space

if TYPE_CHECKING:
    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession

PACKAGES: Final = ("onnxruntime", "onnxruntime-qnn")

# Tables, names and code beside the weights, for the smallest graphs.
_SMALLEST_OUTPUT: Final = 1 << 20
_PROVIDER: Final = "QNNExecutionProvider"
_ERROR_SEVERITY: Final = 3
_OUTSIDE: Final = re.compile(r"\{ name: (.*?), type: (\w+) \}")
# onnxruntime's numbering of the operators that it moves to another memory layout.
_LAYOUT_SUFFIX: Final = re.compile(r"(_token_\d+)+$")
_MOST_NAMED: Final = 12
_HINTS: Final = {
    "QNN_DEVICE_ERROR_INVALID_CONFIG": (
        "QNN does not know this soc_model or it is not of this arch; take both from "
        "config/socs.yaml"
    ),
    "Code: 1002": (
        "QNN says this of a graph that needs more VTCM than vtcm_mb, and of any graph that the "
        "architecture cannot run"
    ),
}


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that compile."""
    return {name: metadata.version(name) for name in PACKAGES}


@contextlib.contextmanager
def work_folder(output: Path, size: int) -> Iterator[Path]:
    """Make a folder beside `output` for a file of about `size` bytes; it goes whatever happens."""
    output.parent.mkdir(parents=True, exist_ok=True)
    require_disk_space(output.parent, size + size // 4 + _SMALLEST_OUTPUT)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as folder:
        yield Path(folder).absolute()


@functools.cache
def _environment() -> tuple[list[Any], list[str]]:
    """Load the provider once a process; return its devices and the list that gets its messages."""
    from onnxruntime.capi import onnxruntime_pybind11_state as onnxruntime

    messages: list[str] = []

    def keep(severity: int, category: str, log: str, place: str, message: str) -> None:
        del severity, category, log, place
        messages.append(message)
        print(message, file=sys.stderr, flush=True)

    onnxruntime.set_default_logger_callback(keep, _ERROR_SEVERITY)
    library = qnn_library.library_folder() / "libonnxruntime_providers_qnn.so"
    onnxruntime.register_execution_provider_library(_PROVIDER, str(library))
    devices = [each for each in onnxruntime.get_ep_devices() if each.ep_name == _PROVIDER]
    return devices, messages


def create_session(
    model: Path, target: str, options: Mapping[str, str], entries: Mapping[str, str]
) -> "InferenceSession":
    """Make a session of `model` with provider options and session entries, nothing on the CPU.

    `target` names what is compiled for, in messages. The name that onnxruntime gives to the graph
    follows from the path that it loads, so it loads the file's bare name from its folder: the
    same in every place. Paths in `options` and `entries` must be absolute. Raises SnapbakeError
    with the operators left outside, or the reason.
    """
    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession
    from onnxruntime.capi.onnxruntime_pybind11_state import SessionOptions

    devices, messages = _environment()
    del messages[:]
    session_options = SessionOptions()
    session_options.log_severity_level = _ERROR_SEVERITY
    for key, value in {"session.disable_cpu_ep_fallback": "1", **entries}.items():
        session_options.add_session_config_entry(key, value)
    session_options.add_provider_for_devices(devices, dict(options))
    try:
        with contextlib.chdir(model.parent):
            return InferenceSession(model.name, sess_options=session_options)
    except Exception as error:  # onnxruntime's errors have no base class of their own
        outside = operators_outside(messages)
        if outside:
            raise SnapbakeError(_describe_outside(model, target, outside)) from error
        reason = _reason([*messages, str(error)])
        raise SnapbakeError(f"{model} cannot be compiled for {target}: {reason}") from error


def _reason(messages: Sequence[str]) -> str:
    """Return the message that says most, in one line, with what it means where that is known."""
    for sign, hint in _HINTS.items():
        told = [message for message in messages if sign in message]
        if told:
            return f"{_one_line(told[0])} ({hint})"
    return _one_line(messages[-1])


def _one_line(message: str) -> str:
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", " ".join(message.split()))


def operators_outside(messages: Iterable[str]) -> list[tuple[str, str]]:
    """Return name and type of the operators that QNN refused, from the provider's messages."""
    found = {
        (_LAYOUT_SUFFIX.sub("", name), kind): None
        for message in messages
        if message.startswith("Unsupported nodes in QNN EP")
        for name, kind in _OUTSIDE.findall(message)
    }
    return list(found)


def _describe_outside(model: Path, target: str, outside: Sequence[tuple[str, str]]) -> str:
    named = [f"{name or 'unnamed'} ({kind})" for name, kind in outside]
    rest = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return (
        f"{model} does not go whole into one graph for {target}: QNN refuses "
        f"{', '.join(named[:_MOST_NAMED])}{rest}; rewrite these operators, or quantise them if "
        "the chip does not compute in floating point"
    )
