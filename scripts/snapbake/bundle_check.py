"""Is a bundle whole, of one piece, and for this chip?

Needs neither torch nor onnx: only QnnSystem, which reads what context.bin says about itself.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any

from snapbake import bundle_manifest
from snapbake.bundle_manifest import Manifest, read_manifest
from snapbake.errors import SnapbakeError
from snapbake.files import read_json, sha256_file
from snapbake.genie_config import require_fit
from snapbake.graph_names import plain_name
from snapbake.htp_binary import HtpBinary, read_htp_binary

_NEEDED = (
    bundle_manifest.BINARY,
    bundle_manifest.CONFIG,
    bundle_manifest.EXTENSIONS,
    bundle_manifest.TOKENIZER,
    bundle_manifest.TEMPLATE,
    bundle_manifest.RUNNER,
)


def verify_bundle(folder: Path, soc: str | None = None) -> Manifest:
    """Check every file of a bundle and the manifest against the binary; return the manifest.

    `soc` is the chip that it is wanted for. Raises SnapbakeError with the first thing that is
    wrong.
    """
    manifest = read_manifest(folder)
    if soc is not None and soc.lower() not in (manifest.soc, manifest.part.lower()):
        raise SnapbakeError(
            f"{folder} is for {manifest.soc} and not for {soc}; build a bundle for that chip "
            f"(targets in the configuration)"
        )
    _check_files(folder, manifest)
    binary = read_htp_binary(folder / bundle_manifest.BINARY)
    _check_binary(folder / bundle_manifest.BINARY, binary, manifest)
    _check_config(folder, binary, manifest)
    _check_android(folder, binary, manifest)
    return manifest


def _check_files(folder: Path, manifest: Manifest) -> None:
    for name in _NEEDED:
        if name not in manifest.files:
            raise SnapbakeError(f"the manifest of {folder} lacks {name}; make the bundle again")
    for name, (size, sha256) in manifest.files.items():
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts:
            raise SnapbakeError(
                f"the manifest of {folder} names {name!r}, outside of it; make the bundle again"
            )
        path = folder / place
        if path.is_symlink() or not path.is_file():
            raise SnapbakeError(f"{folder} lacks the file {name}; copy the bundle again")
        if path.stat().st_size != size:
            raise SnapbakeError(
                f"{path} has {path.stat().st_size} bytes instead of {size}; copy the bundle again"
            )
        if sha256_file(path) != sha256:
            raise SnapbakeError(
                f"{path} was changed or damaged: its SHA-256 is not that of the manifest; copy the "
                "bundle again"
            )
    known = {bundle_manifest.NAME, *manifest.files}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_dir() and name not in known:
            raise SnapbakeError(
                f"{folder} has the file {name}, which its manifest does not know; remove it"
            )


def _check_binary(path: Path, binary: HtpBinary, manifest: Manifest) -> None:
    told = {
        "soc_model": manifest.soc_model,
        "arch": manifest.arch,
        "QAIRT build": manifest.qairt_build,
    }
    found = {
        "soc_model": binary.info.soc_model,
        "arch": binary.arch,
        "QAIRT build": binary.info.build_id,
    }
    for graph, settings in binary.settings.items():
        told[f"VTCM of {plain_name(graph)}"] = manifest.vtcm_mb
        found[f"VTCM of {plain_name(graph)}"] = settings.vtcm_mb
    for what, value in told.items():
        if found[what] != value:
            raise SnapbakeError(
                f"{path} has the {what} {found[what]} and the manifest says {value}; the bundle is "
                "put together of two builds, so copy it again from one"
            )
    graphs = {graph.name: _plain(asdict(graph)) for graph in binary.info.graphs}
    expected = {graph["name"]: graph for graph in manifest.graphs.values()}
    if graphs != expected:
        names = sorted(
            plain_name(name)
            for name in graphs.keys() | expected.keys()
            if graphs.get(name) != expected.get(name)
        )
        raise SnapbakeError(
            f"{path} and the manifest disagree about the tensors of the graph {', '.join(names)}; "
            "the bundle is put together of two builds, so copy it again from one"
        )


def _plain(graph: Mapping[str, Any]) -> dict[str, Any]:
    """Return a graph's description as JSON has it: lists for tuples."""
    tensors = {
        side: [{**tensor, "shape": list(tensor["shape"])} for tensor in graph[side]]
        for side in ("inputs", "outputs")
    }
    return {"name": graph["name"], **tensors}


def _check_config(folder: Path, binary: HtpBinary, manifest: Manifest) -> None:
    config = read_json(folder / bundle_manifest.CONFIG)
    require_fit(config, {bundle_manifest.BINARY: binary.info})
    dialog = config["dialog"]
    size = dialog["context"]["size"]
    if size != manifest.context:
        raise SnapbakeError(
            f"{folder / bundle_manifest.CONFIG} has a context.size of {size} and the manifest says "
            f"{manifest.context}; copy the bundle again"
        )
    for name in (
        dialog.get("tokenizer", {}).get("path"),
        dialog["engine"].get("backend", {}).get("extensions"),
    ):
        if name not in manifest.files:
            raise SnapbakeError(
                f"{folder / bundle_manifest.CONFIG} names the file {name}, which is not in the "
                "bundle; copy it again"
            )
    template = read_json(folder / bundle_manifest.TEMPLATE)
    if template.get("stop_ids") != dialog["context"].get("eos-token"):
        raise SnapbakeError(
            f"{folder}: {bundle_manifest.TEMPLATE} and {bundle_manifest.CONFIG} end an answer at "
            "different tokens; copy the bundle again"
        )
    extensions = read_json(folder / bundle_manifest.EXTENSIONS)
    device = (extensions.get("devices") or [{}])[0]
    wanted = (manifest.soc_model, f"v{manifest.arch}")
    if (device.get("soc_model"), device.get("dsp_arch")) != wanted:
        raise SnapbakeError(
            f"{folder / bundle_manifest.EXTENSIONS} is for soc_model {device.get('soc_model')} "
            f"({device.get('dsp_arch')}) and the bundle for {wanted[0]} ({wanted[1]}); copy the "
            "bundle again"
        )


def _check_android(folder: Path, binary: HtpBinary, manifest: Manifest) -> None:
    path = folder / bundle_manifest.RUNNER
    runner = read_json(path)
    config = read_json(folder / bundle_manifest.CONFIG)
    widths = {
        tensor.shape[-1]
        for graph in binary.info.graphs
        for tensor in graph.inputs
        if tensor.name == "position_ids_cos"
    }
    try:
        frequencies, stop = len(runner["inverse_frequencies"]), runner["stop_tokens"]
    except (KeyError, TypeError) as error:
        raise SnapbakeError(f"{path} is not whole (at {error}); copy the bundle again") from error
    if {frequencies} != widths:
        raise SnapbakeError(
            f"{path} has {frequencies} inverse_frequencies and the graphs of "
            f"{bundle_manifest.BINARY} take {', '.join(map(str, sorted(widths)))}; copy the bundle "
            "again"
        )
    if stop != config["dialog"]["context"].get("eos-token"):
        raise SnapbakeError(
            f"{folder}: {bundle_manifest.RUNNER} and {bundle_manifest.CONFIG} end an answer at "
            "different tokens; copy the bundle again"
        )
    programs = [name for name in manifest.files if name.startswith(f"{bundle_manifest.PROGRAMS}/")]
    if bool(programs) != (manifest.ndk is not None):
        builder = "no NDK" if manifest.ndk is None else f"the NDK {manifest.ndk}"
        raise SnapbakeError(
            f"the manifest of {folder} names {len(programs)} programs in "
            f"{bundle_manifest.PROGRAMS} and {builder}; make the bundle again"
        )
