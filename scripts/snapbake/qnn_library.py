"""Where the QNN libraries come from: the onnxruntime-qnn package, on machines that it is for."""

import ctypes
import importlib.util
import os
import platform
import sys
from ctypes import POINTER, byref
from pathlib import Path
from typing import Final, TypeVar

from snapbake.errors import SnapbakeError

_Interface = TypeVar("_Interface", bound=ctypes.Structure)

PACKAGE: Final = "onnxruntime-qnn"
# What the package's x86-64 wheel is built for (manylinux_2_35, Python 3.11 and later).
MINIMUM_GLIBC: Final = (2, 35)
MINIMUM_PYTHON: Final = (3, 11)

_WAY_OUT: Final = (
    "every stage up to and including quantisation and its evaluation on the CPU still works here; "
    "compile, run and verify on Linux x86_64 with Python 3.11 or later and glibc 2.35 or later "
    "(Ubuntu 22.04, Debian 12 or later)"
)


def unsupported_reason(
    system: str, machine: str, python: tuple[int, int], glibc: tuple[int, int] | None
) -> str | None:
    """Say what keeps the embedded QNN toolchain from running on a machine, or return None.

    `system` is `sys.platform`, `machine` is `platform.machine()`, `glibc` is None where the C
    library is another one.
    """
    if system != "linux" or machine.lower() not in ("x86_64", "amd64"):
        return f"this machine is {system} {machine}"
    if python < MINIMUM_PYTHON:
        return f"this is Python {python[0]}.{python[1]}"
    if glibc is None:
        return "this machine's C library is not glibc"
    if glibc < MINIMUM_GLIBC:
        return f"this machine has glibc {glibc[0]}.{glibc[1]}"
    return None


def _glibc_version() -> tuple[int, int] | None:
    """Return glibc's version, or None when the C library is another one."""
    try:
        name = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, OSError, ValueError):
        return None
    if not name:
        return None
    major, minor = name.split()[-1].split(".")[:2]
    return int(major), int(minor)


def require_supported_machine() -> None:
    """Raise unless the embedded QNN toolchain can run on this machine."""
    reason = unsupported_reason(
        sys.platform, platform.machine(), sys.version_info[:2], _glibc_version()
    )
    if reason is not None:
        raise SnapbakeError(f"the QNN libraries cannot run here: {reason}; {_WAY_OUT}")


def library_folder() -> Path:
    """Return the folder of the QNN libraries, without importing the package.

    Raises SnapbakeError on a machine that the libraries are not made for and when the package is
    not installed.
    """
    require_supported_machine()
    found = importlib.util.find_spec("onnxruntime_qnn")
    if found is None or found.origin is None:
        raise SnapbakeError(
            f"the package {PACKAGE}, which carries the QNN libraries, is not installed; "
            "run `pip install -r requirements.txt`"
        )
    return Path(found.origin).parent


def load_library(name: str) -> ctypes.CDLL:
    """Load a library of the package, for example `libQnnSystem.so`.

    The libraries' own RPATH finds the LLVM runtime that the package brings along; libatomic and
    libgcc come from the system. Raises SnapbakeError with the loader's words when one is missing.
    """
    path = library_folder() / name
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise SnapbakeError(
            f"{name} of the package {PACKAGE} cannot be loaded: {error}; install what is missing "
            "(on Debian and Ubuntu: apt-get install libatomic1 libgcc-s1), or install the package "
            "again"
        ) from error


def interface(library: str, get_providers: str, kind: type[_Interface]) -> _Interface:
    """Return a library's function table, as its `...getProviders` function hands it out."""
    function = getattr(load_library(library), get_providers)
    function.restype = ctypes.c_uint64
    providers = POINTER(POINTER(kind))()
    count = ctypes.c_uint32()
    if (code := function(byref(providers), byref(count))) or count.value == 0:
        raise SnapbakeError(
            f"{library} of the package {PACKAGE} offers no interface (QNN error {code}); "
            "install the package again"
        )
    return providers[0].contents
