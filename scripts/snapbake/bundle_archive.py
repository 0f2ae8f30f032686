"""A bundle as one file, the same bytes for the same bundle."""

import io
import tarfile
from pathlib import Path
from typing import Final

import zstandard

from snapbake.bundle_check import verify_bundle
from snapbake.bundle_manifest import NAME, PROGRAMS
from snapbake.files import atomic_path, require_disk_space

_LEVEL: Final = 10


def pack_bundle(folder: Path, output: Path) -> None:
    """Check a bundle and write it as a .tar.zst whose members lie in a folder of its name.

    Order, owner, time and mode of the members are fixed, so that nothing of the machine is in it.
    """
    manifest = verify_bundle(folder)
    require_disk_space(output.parent, sum(size for size, _ in manifest.files.values()))
    with (
        atomic_path(output) as temporary,
        temporary.open("wb") as stream,
        zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).stream_writer(stream) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted([NAME, *manifest.files]):
            path = folder / name
            member = tarfile.TarInfo(f"{folder.name}/{name}")
            member.size = path.stat().st_size
            executable = path.suffix == ".sh" or name.startswith(f"{PROGRAMS}/")
            member.mode = 0o755 if executable else 0o644
            with path.open("rb") as content:
                archive.addfile(member, io.BufferedReader(content.raw, 1 << 22))
