"""Qualcomm's LLM runtime, libGenie, on the HTP emulator: the very code that runs on the phone.

`Genie` is the way in. It calls the functions of this module in a child process, because the
runtime and the emulator under it can crash. Signatures and codes are those of GenieDialog.h,
GenieTokenizer.h and GenieCommon.h.
"""

import ctypes
import functools
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int32, c_size_t, c_uint32, c_void_p
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from snapbake import qnn_library
from snapbake.child_process import Child, ChildDiedError
from snapbake.errors import SnapbakeError

LIBRARY: Final = "libGenie.so"

_LOG_ERRORS: Final = 1
_WHOLE_QUERY: Final = 0  # GENIE_DIALOG_SENTENCE_COMPLETE
_CONTEXT_FULL: Final = 4  # GENIE_STATUS_WARNING_CONTEXT_EXCEEDED
_LOG_LINE: Final = 4096
_M_PERTURB: Final = -6  # of <malloc.h>

_Log = CFUNCTYPE(None, c_void_p, c_char_p, c_int32, ctypes.c_uint64, c_void_p)
_OnText = CFUNCTYPE(None, c_char_p, c_int32, c_void_p)
_OnTokens = CFUNCTYPE(None, POINTER(c_uint32), c_uint32, c_int32, c_void_p)
_Allocate = CFUNCTYPE(None, c_size_t, POINTER(c_void_p))

_SIGNATURES: Final[Mapping[str, Sequence[Any]]] = {
    "GenieLog_create": (c_void_p, _Log, c_int32, c_void_p),
    "GenieDialogConfig_createFromJson": (c_char_p, c_void_p),
    "GenieDialogConfig_bindLogger": (c_void_p, c_void_p),
    "GenieDialog_create": (c_void_p, c_void_p),
    "GenieDialog_query": (c_void_p, c_char_p, c_int32, _OnText, c_void_p),
    "GenieDialog_tokenQuery": (c_void_p, c_void_p, c_uint32, c_int32, _OnTokens, c_void_p),
    "GenieDialog_reset": (c_void_p,),
    "GenieDialog_setMaxNumTokens": (c_void_p, c_uint32),
    "GenieDialog_getTokenizer": (c_void_p, c_void_p),
    "GenieTokenizer_encode": (c_void_p, c_char_p, _Allocate, c_void_p, c_void_p),
    "GenieTokenizer_decode": (c_void_p, c_void_p, c_uint32, _Allocate, c_void_p),
}


class GenieError(Exception):
    """A call that Genie refused: its name, the status, and what Genie logged about it."""

    def __init__(self, call: str, code: int, logged: str) -> None:
        super().__init__(call, code, logged)

    def __str__(self) -> str:
        call, code, logged = self.args
        return f"{call} returned {code}" + (f": {logged}" if logged else "")


class Genie:
    """A dialog of libGenie in a process of its own; use it as a context manager.

    `config` is the content of a genie_config.json. Relative paths in it are meant as seen from
    `folder`. Loading happens in `load`.
    """

    def __init__(self, config: Mapping[str, Any], folder: Path) -> None:
        qnn_library.require_supported_machine()
        self._key = (json.dumps(config, sort_keys=True), str(folder.resolve()))
        self._child = Child()

    def load(self) -> float:
        """Load binaries and tokenizer; return the seconds that it took."""
        return self._call(_load, *self._key)

    def encode(self, text: str) -> list[int]:
        """Return the tokens that Genie's tokenizer makes of a text."""
        return self._call(_encode, *self._key, text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text that Genie's tokenizer makes of tokens."""
        return self._call(_decode, *self._key, list(ids))

    def answer_tokens(self, ids: Sequence[int], count: int) -> list[int]:
        """Return up to `count` tokens that follow the prompt `ids` in a fresh dialog.

        An end token stops the answer and is part of it when Genie hands it out.
        """
        return self._call(_answer_tokens, *self._key, list(ids), count)

    def answer_text(self, text: str, count: int, tell: Callable[[str], None] | None = None) -> str:
        """Return the text of up to `count` tokens after a prompt, in a fresh dialog.

        `tell` is called with each piece of it when it is made. What is left of a character at the
        end, and the end token, are not part of it.
        """
        with tempfile.TemporaryDirectory(prefix="snapbake.") as folder:
            pipe = Path(folder) / "answer"
            pipe.touch()
            done = threading.Event()
            reader = threading.Thread(target=_follow, args=(pipe, done, tell or _ignore))
            reader.start()
            try:
                return self._call(_answer_text, *self._key, text, count, str(pipe))
            finally:
                done.set()
                reader.join()

    def close(self) -> None:
        """End the process."""
        self._child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return self._child.call(function, *args)
        except GenieError as error:
            # Some reasons go to standard error only, past the log.
            words = self._child.last_words()
            raise SnapbakeError(
                f"Genie refuses: {error}{f' ({words})' if words else ''}; "
                "compare genie_config.json and the binaries with docs/bundle.md"
            ) from error
        except ChildDiedError as death:
            raise SnapbakeError(
                f"Genie on the HTP emulator {death}; binaries with shared weights cannot run here, "
                "and a damaged one ends the process"
            ) from death


def _ignore(piece: str) -> None:
    del piece


def _follow(path: Path, done: threading.Event, tell: Callable[[str], None]) -> None:
    """Hand over what is appended to a file, until `done`; a character is never cut in two."""
    with path.open("rb") as stream:
        rest = b""
        while True:
            last = done.wait(0.05)
            rest += stream.read()
            text = rest.decode("utf-8", errors="ignore" if not last else "replace")
            if text:
                tell(text)
            rest = rest[len(text.encode()) :]
            if last:
                return


# What follows runs in the child.


def _load(config: str, folder: str) -> float:
    return _dialog(config, folder).seconds


def _encode(config: str, folder: str, text: str) -> list[int]:
    return _dialog(config, folder).encode(text)


def _decode(config: str, folder: str, ids: list[int]) -> str:
    return _dialog(config, folder).decode(ids)


def _answer_tokens(config: str, folder: str, ids: list[int], count: int) -> list[int]:
    with _fresh_after_refusal():
        return _dialog(config, folder).answer_tokens(ids, count)


def _answer_text(config: str, folder: str, text: str, count: int, path: str) -> str:
    with _fresh_after_refusal():
        return _dialog(config, folder).answer_text(text, count, Path(path))


@contextmanager
def _fresh_after_refusal() -> Iterator[None]:
    """Load the dialog anew after a prompt that it had no room for.

    A reset does not always take back that the context is full.
    """
    try:
        yield
    except SnapbakeError:
        _dialog.cache_clear()
        raise


@functools.cache
def _dialog(config: str, folder: str) -> "_Dialog":
    return _Dialog(config, Path(folder))


class _Dialog:
    """A loaded dialog. Nothing of it is freed: the process ends with it."""

    def __init__(self, config: str, folder: Path) -> None:
        # Genie does not clear its key cache, and what the heap holds there can be more than the
        # mask hides in fp16. glibc fills new memory with the complement of this byte: zeros.
        ctypes.CDLL(None).mallopt(_M_PERTURB, 255)
        self._library = qnn_library.load_library(LIBRARY)
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = list(arguments), c_int32
        self._logged: list[str] = []
        self._log_function = _Log(self._note)  # ctypes does not keep it
        self._context: int = json.loads(config)["dialog"]["context"]["size"]
        # Genie takes relative paths from the working folder.
        os.chdir(folder)
        start = time.monotonic()
        log = c_void_p()
        self._check("GenieLog_create", None, self._log_function, _LOG_ERRORS, byref(log))
        description = c_void_p()
        self._check("GenieDialogConfig_createFromJson", config.encode(), byref(description))
        self._check("GenieDialogConfig_bindLogger", description, log)
        self._handle = c_void_p()
        self._check("GenieDialog_create", description, byref(self._handle))
        self._tokenizer = c_void_p()
        self._check("GenieDialog_getTokenizer", self._handle, byref(self._tokenizer))
        self.seconds = time.monotonic() - start

    def encode(self, text: str) -> list[int]:
        ids, count = POINTER(c_int32)(), c_uint32()
        with _Memory() as memory:
            self._check(
                "GenieTokenizer_encode",
                self._tokenizer,
                text.encode(),
                memory.allocate,
                byref(ids),
                byref(count),
            )
            return ids[: count.value]

    def decode(self, ids: list[int]) -> str:
        if not ids:
            return ""
        text = c_char_p()
        with _Memory() as memory:
            self._check(
                "GenieTokenizer_decode",
                self._tokenizer,
                (c_int32 * len(ids))(*ids),
                len(ids),
                memory.allocate,
                byref(text),
            )
            return (text.value or b"").decode("utf-8", errors="replace")

    def answer_tokens(self, ids: list[int], count: int) -> list[int]:
        answer: list[int] = []

        def keep(tokens: Any, number: int, code: int, user: Any) -> None:
            del code, user
            answer.extend(tokens[:number])

        self._begin(len(ids), count)
        code = self._check(
            "GenieDialog_tokenQuery",
            self._handle,
            (c_uint32 * len(ids))(*ids),
            len(ids),
            _WHOLE_QUERY,
            _OnTokens(keep),
            None,
            allowed=_CONTEXT_FULL,
        )
        if code and not answer:
            raise _no_room(len(ids), self._context)
        return answer

    def answer_text(self, text: str, count: int, path: Path) -> str:
        answer = b""
        length = len(self.encode(text))
        with path.open("ab", buffering=0) as stream:

            def keep(piece: bytes | None, code: int, user: Any) -> None:
                del code, user
                nonlocal answer
                answer += piece or b""
                stream.write(piece or b"")

            self._begin(length, count)
            code = self._check(
                "GenieDialog_query",
                self._handle,
                text.encode(),
                _WHOLE_QUERY,
                _OnText(keep),
                None,
                allowed=_CONTEXT_FULL,
            )
        if code and not answer:
            raise _no_room(length, self._context)
        return answer.decode("utf-8", errors="replace")

    def _begin(self, length: int, count: int) -> None:
        """Prepare for an answer of up to `count` tokens after a prompt of `length`.

        Not more than fit are asked for: an answer that runs against the end of the context can
        make the next query fail, whatever is reset.
        """
        if length >= self._context:
            raise _no_room(length, self._context)
        self._check("GenieDialog_reset", self._handle)
        room = self._context - length
        self._check("GenieDialog_setMaxNumTokens", self._handle, min(count, room))

    def _check(self, call: str, *arguments: Any, allowed: int = 0) -> int:
        del self._logged[:]
        code: int = getattr(self._library, call)(*arguments)
        if code not in (0, allowed):
            raise GenieError(call, code, " | ".join(self._logged))
        return code

    def _note(self, handle: Any, form: Any, level: int, time: int, arguments: Any) -> None:
        """Keep a line of Genie's log; it comes as a printf format and its va_list."""
        del handle, level, time
        line = ctypes.create_string_buffer(_LOG_LINE)
        ctypes.CDLL(None).vsnprintf(line, c_size_t(_LOG_LINE), c_char_p(form), c_void_p(arguments))
        text = line.value.decode("utf-8", errors="replace").strip()
        self._logged.append(text)
        print(text, file=sys.stderr, flush=True)


def _no_room(length: int, context: int) -> SnapbakeError:
    return SnapbakeError(
        f"the prompt has {length} tokens and Genie has no room for it in a context of {context}: "
        "a prompt must leave as many tokens free as the prefill graph takes at a time; shorten it, "
        "or build with a longer context"
    )


class _Memory:
    """Memory that Genie asks for, kept while the block lasts."""

    def __init__(self) -> None:
        self._held: list[Any] = []
        self.allocate = _Allocate(self._allocate)

    def _allocate(self, size: int, place: Any) -> None:
        block = ctypes.create_string_buffer(max(size, 1))
        self._held.append(block)
        place[0] = ctypes.addressof(block)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.clear()
