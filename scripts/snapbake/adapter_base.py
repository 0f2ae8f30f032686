"""Which base model a LoRA adapter names. Read by every Snakemake process, so nothing heavy."""

from pathlib import Path

from snapbake.folder_json import read_object

ADAPTER_CONFIG = "adapter_config.json"


def named_base(folder: Path) -> str | None:
    """Return the base model that an adapter's configuration names, None when it names none."""
    base = read_object(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
    return base if isinstance(base, str) and base else None


def find_base(folder: Path) -> Path | None:
    """Return the base model beside an adapter: a folder of the name that the adapter gives it.

    None when there is none, and when `folder` is not an adapter.
    """
    if not (folder / ADAPTER_CONFIG).is_file():
        return None
    name = Path(named_base(folder) or "").name
    beside = folder.resolve().parent / name
    return beside if name and (beside / "config.json").is_file() else None
