"""The names of graphs inside compiled files.

onnxruntime names a graph after a hash of the path that its model was loaded from and offers no
way to choose the name. So the name is replaced in the file, by one of the same length: the formats
(FlatBuffers and an archive with absolute offsets) stay as they are.
"""

import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from snapbake.errors import SnapbakeError

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*[A-Za-z0-9]")
# How Genie orders the parts of a split model.
_PART: Final = r"_\d+_of_\d+"


def require_graph_name(name: str) -> None:
    """Raise unless `name` can be a graph's name: letters, digits, underscores inside."""
    if not _NAME.fullmatch(name):
        raise SnapbakeError(
            f"{name!r} cannot name a graph; use letters, digits and underscores, a letter first "
            "and no underscore last"
        )


def padded_name(name: str, length: int) -> str:
    """Return `name` brought to `length` characters with underscores.

    They go to the end, or before an ending like `_1_of_2`, by which Genie orders split graphs.
    Raises SnapbakeError when the name is longer than that.
    """
    if len(name) > length:
        raise SnapbakeError(
            f"the graph name {name} has {len(name)} characters and {length} fit; shorten it"
        )
    part = re.search(rf"(?:{_PART})?$", name)
    assert part is not None
    return name[: part.start()] + "_" * (length - len(name)) + part.group()


def plain_name(name: str) -> str:
    """Return the name without the padding of `padded_name`."""
    return re.sub(rf"_+({_PART}|)$", r"\1", name)


def rename_in_file(path: Path, names: Mapping[str, str]) -> None:
    """Replace names of graphs in a compiled file, everywhere in it, by names of the same length.

    Raises SnapbakeError when a name is not in the file.
    """
    with path.open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as content:
        for old, new in names.items():
            before, after = old.encode(), new.encode()
            if len(before) != len(after):
                raise ValueError(f"{old} and {new} differ in length")
            start = content.find(before)
            if start < 0:
                raise SnapbakeError(
                    f"{path} does not contain the graph name {old} that onnxruntime gave it; this "
                    "version of onnxruntime-qnn writes another format than 2.7.0"
                )
            while start >= 0:
                content[start : start + len(before)] = after
                start = content.find(before, start + len(before))
