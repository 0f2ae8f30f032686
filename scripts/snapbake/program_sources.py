"""Find the local source files that a program runs, so that a rule can declare them as inputs."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from snapbake.errors import SnapbakeError

_DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def program_sources(program: Path, known: dict[Path, list[Path]] | None = None) -> list[Path]:
    """Return `program` and every local module that it imports, directly or through another.

    Local is what lies in the program's own folder, which Python puts first on `sys.path`. Imports
    are taken from the syntax tree wherever they stand, also inside functions, and so is a string
    that is exactly the dotted name of a local module: that is how a module runs as a child
    process (`python -m snapbake.x`). The program comes first, the modules follow in the order of
    their paths, and each path begins like `program`. `known` gets the local imports of each file
    that was parsed; programs in one folder that are looked at with one `known` are parsed once.

    Raises SnapbakeError when a file is missing, cannot be parsed, or imports from a local package
    something that is not there.
    """
    folder = program.parent
    known = {} if known is None else known
    found: set[Path] = set()
    waiting = [program]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            if path not in known:
                known[path] = list(_local_imports(path, folder))
            waiting.extend(known[path])
    return [program, *sorted(found - {program})]


def _local_imports(path: Path, folder: Path) -> Iterator[Path]:
    """Yield the files of the local modules that the file `path` names."""
    for node in ast.walk(_parse(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module_files(alias.name, folder, path)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute_name(node, path, folder)
            yield from _module_files(base, folder, path)
            for alias in node.names:
                name = f"{base}.{alias.name}"
                if _module_file(name, folder) is not None:
                    yield from _module_files(name, folder, path)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_name = _DOTTED_NAME.fullmatch(node.value)
            if is_name and _module_file(node.value, folder) is not None:
                yield from _module_files(node.value, folder, path)


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), filename=str(path))
    except FileNotFoundError as error:
        raise SnapbakeError(f"{path} does not exist; restore it from the repository") from error
    except SyntaxError as error:
        raise SnapbakeError(
            f"{path} is not valid Python at line {error.lineno}: {error.msg}; mend it"
        ) from error


def _absolute_name(node: ast.ImportFrom, path: Path, folder: Path) -> str:
    """Return the module of a `from ... import`, with leading dots resolved against `path`."""
    if node.level == 0:
        return node.module or ""
    parts = path.relative_to(folder).parts[: -node.level]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _module_file(name: str, folder: Path) -> Path | None:
    place = folder.joinpath(*name.split("."))
    for candidate in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _module_files(name: str, folder: Path, importer: Path) -> Iterator[Path]:
    """Yield a local module's file and the `__init__.py` of each package that it lies in."""
    parts = name.split(".")
    if _module_file(parts[0], folder) is None:
        return
    for length in range(1, len(parts) + 1):
        file = _module_file(".".join(parts[:length]), folder)
        if file is None:
            raise SnapbakeError(
                f"{importer} imports {name}, which is not in {folder}; "
                "restore the module or remove the import"
            )
        yield file
