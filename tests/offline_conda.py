"""A conda for the tests: a channel on disk and a program that creates environments from it.

The channel has two packages, which is all that envs/*.yaml take from a channel: python, the
interpreter that runs the tests in the form of a virtual environment, and pip, the wheel that comes
with it. What stands under `pip:` is installed from the package index, as by conda itself.
"""

import ensurepip
import hashlib
import io
import json
import os
import sys
import tarfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

PROGRAM = Path(__file__).with_name("conda_program.py")
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
VERSION = ".".join(map(str, sys.version_info[:3]))
PLATFORM = "linux-64"
ACTIVATE = """\
# Snakemake says: source activate PREFIX
export CONDA_PREFIX="$1" PATH="$1/bin:$PATH"
"""


@dataclass
class Package:
    """A conda package: files by their path in an environment, and links by their target."""

    name: str
    version: str
    subdir: str
    depends: list[str]
    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    noarch: str | None = None
    entry_points: list[str] = field(default_factory=list)

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}-0.tar.bz2"

    def record(self) -> dict:
        """Return what the channel's index says about the package, sizes and hashes left out."""
        content = {
            "name": self.name,
            "version": self.version,
            "build": "0",
            "build_number": 0,
            "depends": self.depends,
            "subdir": self.subdir,
        }
        return content | ({"noarch": self.noarch} if self.noarch else {})

    def info_files(self) -> dict[str, bytes]:
        """Return the files by which an installer knows what to do with the others."""
        paths = [_path_entry(path, "hardlink", data) for path, data in self.files.items()]
        paths += [_path_entry(path, "softlink", b"") for path in self.links]
        content = {
            "info/index.json": self.record(),
            "info/paths.json": {"paths": paths, "paths_version": 1},
        }
        if self.noarch == "python":
            noarch = {"type": "python", "entry_points": self.entry_points}
            content["info/link.json"] = {"noarch": noarch, "package_metadata_version": 1}
        return {name: json.dumps(value).encode() for name, value in content.items()}

    def archive(self) -> bytes:
        """Return the package in the form in which a channel offers it."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:bz2") as archive:
            for path, data in (self.info_files() | self.files).items():
                entry = tarfile.TarInfo(path)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
            for path, target in self.links.items():
                entry = tarfile.TarInfo(path)
                entry.type, entry.linkname = tarfile.SYMTYPE, target
                archive.addfile(entry)
        return buffer.getvalue()


def _path_entry(path: str, kind: str, data: bytes) -> dict:
    return {
        "_path": path,
        "path_type": kind,
        "sha256": hashlib.sha256(data).hexdigest(),
        "size_in_bytes": len(data),
    }


def python_package() -> Package:
    """Return this interpreter as a package: its folder stays where it is, as in a venv."""
    interpreter = (Path(sys.base_prefix) / "bin" / PYTHON).resolve()
    settings = f"home = {interpreter.parent}\ninclude-system-site-packages = false\n"
    return Package(
        "python",
        VERSION,
        PLATFORM,
        depends=[],
        files={
            "pyvenv.cfg": f"{settings}version = {VERSION}\n".encode(),
            f"lib/{PYTHON}/site-packages/.keep": b"",
        },
        links={
            f"bin/{PYTHON}": str(interpreter),
            "bin/python3": PYTHON,
            "bin/python": PYTHON,
        },
    )


def pip_package() -> Package:
    """Return the pip that the interpreter brings along as a package."""
    wheel = next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    with zipfile.ZipFile(wheel) as content:
        names = [name for name in content.namelist() if not name.endswith("/")]
        files = {f"site-packages/{name}": content.read(name) for name in names}
    return Package(
        "pip",
        wheel.name.split("-")[1],
        "noarch",
        depends=["python"],
        files=files,
        noarch="python",
        entry_points=["pip = pip._internal.cli.main:main"],
    )


def write_channel(folder: Path) -> None:
    """Write a channel with both packages and its index into `folder`."""
    index: dict[str, dict] = {PLATFORM: {}, "noarch": {}}
    for package in (python_package(), pip_package()):
        data = package.archive()
        path = folder / package.subdir / package.file_name
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        index[package.subdir][package.file_name] = package.record() | {
            "md5": hashlib.md5(data).hexdigest(),
            "sha256": hashlib.sha256(data).hexdigest(),
            "size": len(data),
        }
    for subdir, packages in index.items():
        content = {"info": {"subdir": subdir}, "packages": packages, "packages.conda": {}}
        (folder / subdir / "repodata.json").write_text(json.dumps(content))


@dataclass
class Conda:
    """An installation, and the folder of the environments that Snakemake creates with it."""

    folder: Path

    @property
    def options(self) -> tuple[str, ...]:
        """Return what a run of Snakemake needs to use it."""
        return "--sdm", "conda", "--conda-prefix", str(self.folder / "environments")

    @property
    def path(self) -> str:
        """Return PATH with its programs in front."""
        return f"{self.folder / 'bin'}:{os.environ['PATH']}"

    def python(self, file: Path) -> Path:
        """Return the interpreter of the environment that was created from a file."""
        for kept in (self.folder / "environments").glob("*.yaml"):
            if kept.read_text() == file.read_text():
                return kept.with_suffix("") / "bin" / "python"
        raise FileNotFoundError(file)


def install_conda(folder: Path) -> Conda:
    """Write the channel and the program into `folder`."""
    write_channel(folder / "channels" / "conda-forge")
    programs = folder / "bin"
    programs.mkdir()
    (programs / "activate").write_text(ACTIVATE)
    program = programs / "conda"
    program.write_text(f"#!{sys.executable}\n{PROGRAM.read_text()}")
    program.chmod(0o755)
    return Conda(folder)
