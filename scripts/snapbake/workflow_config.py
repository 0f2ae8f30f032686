"""The workflow's configuration: checked, completed with defaults, and turned into what to build.

It is read by every Snakemake process, also by those that only start a job on a cluster, so nothing
heavy is imported here.
"""

import copy
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from snapbake.adapter_base import find_base
from snapbake.errors import SnapbakeError
from snapbake.records import find_data_files
from snapbake.socs import Soc, load_socs, why_refused

# What prepare_checkpoint reads in the folder of a model. Logs, plots and optimizer states that
# training leaves beside it shape nothing.
_SOURCE_FILES = (
    "*.safetensors",
    "*.safetensors.index.json",
    "adapter_config.json",
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "pytorch_model*.bin",
    "pytorch_model.bin.index.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
)
_TYPES = {
    "array": "a list",
    "integer": "a whole number",
    "number": "a number",
    "object": "a mapping of keys to values",
    "string": "text",
}


@dataclass(frozen=True)
class Model:
    """A model to build.

    `source` is a folder, a hf:// or a pypi:// address, and so is `base`, the model that `source` is
    an adapter for; `source_files` are the files of these folders, or nothing. `data_files` are the
    file of the records and what it refers to, itself first.
    """

    name: str
    source: str
    source_files: tuple[str, ...]
    sha256: str | None
    base: str | None
    trust_remote_code: bool
    data_files: tuple[str, ...]
    dataset: str | None


@dataclass(frozen=True)
class Recipe:
    """A precision; the numbers of bits are None unless the recipe is quantized."""

    name: str
    quantized: bool
    weight_bits: int | None
    activation_bits: int | None
    kv_bits: int | None
    limits: Mapping[str, float]


@dataclass(frozen=True)
class Build:
    """What to build: every model in every context and recipe for every target.

    `contexts` and `chunk` are in tokens. `calibration`, `emulator` and `genie` are the sections of
    that name in the configuration.
    """

    models: Mapping[str, Model]
    contexts: tuple[int, ...]
    chunk: int
    recipes: Mapping[str, Recipe]
    targets: Mapping[str, Soc]
    calibration: Mapping[str, int]
    emulator: Mapping[str, int]
    genie: Mapping[str, Any]

    def settings(self, model: str, recipe: str, soc: str) -> dict[str, Any]:
        """Return what shaped one binary, for its bundle.

        Of paths there are only the last names: folders are nobody else's business, and the same
        model in another folder is the same build.
        """
        entry = self.models[model]
        return {
            "model": {
                "name": entry.name,
                "source": _last_name(entry.source),
                "sha256": entry.sha256,
                "base": None if entry.base is None else _last_name(entry.base),
                "trust_remote_code": entry.trust_remote_code,
                "data": [_last_name(path) for path in entry.data_files],
                "dataset": entry.dataset,
            },
            "recipe": asdict(self.recipes[recipe]),
            "target": asdict(self.targets[soc]),
            "calibration": self.calibration,
            "emulator": self.emulator,
            "genie": self.genie,
        }


def _last_name(source: str) -> str:
    """Return the last name of a path; an address stays whole."""
    return source if "://" in source else Path(source).name


def resolve_build(config: Mapping[str, Any], root: Path) -> Build:
    """Check the configuration and return what it asks for.

    `root` is the folder of the Snakefile, with config/ in it. Raises SnapbakeError that names the
    first wrong key or value and what is allowed.
    """
    folder = root / "config"
    schema = _load_yaml(folder / "schemas" / "config.schema.yaml")
    filled = complete(config, schema)
    require_valid(filled, schema, "the configuration")
    contexts, chunk = filled["contexts"], filled["prefill_chunk"]
    for context in contexts:
        if context <= chunk:
            raise SnapbakeError(
                f"contexts has {context}, which leaves no past beside a prefill_chunk of {chunk} "
                "tokens; take a longer context or a smaller chunk"
            )
    known_recipes = load_recipes(folder / "recipes.yaml")
    known_socs = load_socs(folder / "socs.yaml")
    recipes = _choose(filled["recipes"], known_recipes, "recipes", "config/recipes.yaml")
    targets = _choose(filled["targets"], known_socs, "targets", "config/socs.yaml")
    for soc in targets.values():
        for recipe in recipes.values():
            reason = why_refused(
                soc,
                needs_fp16=not recipe.quantized,
                needs_matmul_16x16=recipe.activation_bits == recipe.kv_bits == 16,
            )
            if reason is not None:
                raise SnapbakeError(
                    f"{recipe.name} cannot be built for {soc.name}: {reason} (recipes and targets "
                    "in the configuration)"
                )
    if filled["genie"]["tokens"] >= min(contexts) - 1:
        raise SnapbakeError(
            f"genie.tokens is {filled['genie']['tokens']}, which leaves no room for a question in "
            f"a context of {min(contexts)} tokens; ask for fewer"
        )
    models = {name: _resolve_model(name, entry, root) for name, entry in _models(filled).items()}
    return Build(
        models,
        tuple(contexts),
        chunk,
        recipes,
        targets,
        filled["calibration"],
        filled["emulator"],
        filled["genie"],
    )


def load_recipes(path: Path) -> dict[str, Recipe]:
    """Read and check the recipes file; its schema lies in schemas/ beside it."""
    content = _load_yaml(path)
    require_no_duplicates(path)
    require_valid(content, _load_yaml(path.parent / "schemas" / "recipes.schema.yaml"), str(path))
    return {
        name: Recipe(
            name,
            entry["precision"] == "quantized",
            entry.get("weight_bits"),
            entry.get("activation_bits"),
            entry.get("kv_bits"),
            entry["limits"],
        )
        for name, entry in content.items()
    }


def complete(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return a copy of a configuration with the schema's defaults for the keys that are missing.

    Snakemake's --config gives numbers inside of lists and mappings as text, and a list of one is
    easily typed without brackets; both become what the schema asks for.
    """
    kind = schema.get("type")
    if kind == "integer" and isinstance(value, str) and value.isdecimal():
        return int(value)
    if kind == "array" and isinstance(value, str | int):
        value = [value]
    if kind == "array" and isinstance(value, list):
        return [complete(item, schema["items"]) for item in value]
    if kind == "object" and isinstance(value, Mapping):
        parts = schema.get("properties", {})
        defaults = {key: part["default"] for key, part in parts.items() if "default" in part}
        return {
            key: complete(item, parts.get(key, {})) for key, item in (defaults | {**value}).items()
        }
    return copy.deepcopy(value)


def require_valid(content: Any, schema: Mapping[str, Any], what: str) -> None:
    """Raise one sentence about the first mistake in `content`, which is called `what` in it."""
    errors = Draft202012Validator(schema).iter_errors(content)
    # The deepest mistake of the earliest key is the one closest to what was typed.
    first = min(errors, key=lambda error: list(map(str, error.absolute_path)), default=None)
    if first is not None:
        raise SnapbakeError(f"{what}: {_describe(first)}")


def require_no_duplicates(path: Path) -> None:
    """Raise when a mapping in a YAML file has one key twice; PyYAML would keep the last."""
    waiting = [yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)
        elif isinstance(node, yaml.MappingNode):
            seen: dict[str, int] = {}
            for key, value in node.value:
                line = key.start_mark.line + 1
                if key.value in seen:
                    raise SnapbakeError(
                        f"{path} has {key.value!r} twice, at lines {seen[key.value]} and {line}; "
                        "remove or rename one"
                    )
                seen[key.value] = line
                waiting.append(value)


def locate(path: str, root: Path) -> str:
    """Return a path of the configuration as it is seen from the working folder.

    `~` is expanded. What is not found from the working folder is looked for from `root`, so that
    the default data is found when results go elsewhere (`snakemake --directory`).
    """
    given = Path(path).expanduser()
    if given.is_absolute() or given.exists() or not (root / given).exists():
        return str(given)
    return str(root / given)


def name_of(source: str) -> str:
    """Return a model's name made of its source: the folder's, the repository's or the package's."""
    if "://" in source:
        last = re.split(r"@|==", source)[0].rsplit("/", 1)[-1]
    else:
        last = Path(source).expanduser().resolve().name
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("._-")
    if not name:
        raise SnapbakeError(
            f"model={source} gives no name for the results folder; list the model under `models` "
            "in config/config.yaml with a name of letters and digits"
        )
    return name


def _models(config: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the entries under `models`, or the one that --config replaces them by."""
    if "model" not in config:
        if "models" not in config:
            raise SnapbakeError(
                "the configuration has no models; name one with "
                "--config model=path/to/export data=path/to/train.json"
            )
        return config["models"]
    entry = {key: config[key] for key in ("base", "data", "dataset") if key in config}
    return {name_of(config["model"]): {"source": config["model"], **entry}}


def _resolve_model(name: str, entry: Mapping[str, Any], root: Path) -> Model:
    source, data, dataset = entry["source"], locate(entry["data"], root), entry.get("dataset")
    base, trusted = entry.get("base"), entry.get("trust_remote_code", False)
    patterns = (*_SOURCE_FILES, "*.py") if trusted else _SOURCE_FILES
    files: list[str] = []
    if "://" not in source:
        source = locate(source, root)
        files += _source_files(f"the source of the model {name}", Path(source), patterns)
        beside = find_base(Path(source)) if base is None else None
        if beside is not None:
            files += _source_files(f"the base of the model {name}", beside, _SOURCE_FILES)
    if base is not None and "://" not in base:
        base = locate(base, root)
        files += _source_files(f"the base of the model {name}", Path(base), _SOURCE_FILES)
    if not Path(data).exists():
        raise SnapbakeError(
            f"the data of the model {name}, {data}, does not exist; give the path of the file it "
            "was fine-tuned on"
        )
    data_files = tuple(str(path) for path in find_data_files(Path(data), dataset))
    return Model(
        name,
        source,
        tuple(files),
        entry.get("sha256"),
        base,
        trusted,
        data_files,
        dataset,
    )


def _source_files(what: str, folder: Path, patterns: Iterable[str]) -> list[str]:
    if not folder.is_dir():
        found = "is not a folder" if folder.exists() else "does not exist"
        raise SnapbakeError(
            f"{what}, {folder}, {found}; give the folder that LLaMA-Factory exported"
        )
    files = {path for pattern in patterns for path in folder.glob(pattern)}
    return sorted(str(path) for path in files if path.is_file())


def _choose(names: Iterable[str], known: Mapping[str, Any], key: str, place: str) -> dict[str, Any]:
    """Return the entries of `known` that a list of the configuration names."""
    for name in names:
        if name not in known:
            raise SnapbakeError(
                f"{key} has {name!r}, which is not in {place}; {_suggest(name, known)}"
            )
    return {name: known[name] for name in names}


def _suggest(name: str, allowed: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.lower(), allowed, n=1)
    names = f"allowed: {', '.join(sorted(allowed))}"
    return f"did you mean {near[0]}? {names}" if near else names


def _describe(error: ValidationError) -> str:
    """Say in one sentence what is wrong where, and what is allowed there."""
    where = _place(error.absolute_path)
    value, rule = error.instance, error.validator_value
    schema: Any = error.schema
    match error.validator:
        case "additionalProperties":
            allowed = schema["properties"]
            extra = sorted(str(key) for key in value if key not in allowed)[0]
            return (
                f"unknown key {_place([*error.absolute_path, extra])}; {_suggest(extra, allowed)}"
            )
        case "required":
            missing = next(key for key in rule if key not in value)
            return f"the key {_place([*error.absolute_path, missing])} is missing; add it"
        case "dependentRequired":
            key, missing = next(
                (key, needed)
                for key, others in rule.items()
                for needed in others
                if key in value and needed not in value
            )
            return f"{key} is given without {missing}; give {missing} as well"
        case "type":
            return f"{where} is {value!r} and must be {_TYPES[rule]}"
        case "enum":
            allowed = ", ".join(map(str, rule))
            return f"{where} is {value!r}; allowed: {allowed}"
        case "minimum":
            return f"{where} is {value} and must be {rule} or more"
        case "exclusiveMinimum":
            return f"{where} is {value} and must be more than {rule}"
        case "maximum":
            return f"{where} is {value} and must be {rule} or less"
        case "uniqueItems":
            return f"{where} names something twice: {value}"
        case "minItems" | "minProperties" | "minLength":
            return f"{where} is empty; {schema.get('description', 'fill it in')}"
        case "pattern":
            return f"{where} has {value!r}; what is allowed: {schema['description']}"
        case None:
            return f"{where} has no meaning here; remove it"
    return f"{where}: {error.message}"


def _place(path: Iterable[str | int]) -> str:
    """Return a place in the configuration as calibration.records or targets[0]."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".") or "the top level"


def _load_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SnapbakeError(f"{path} does not exist; restore it from the repository") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "cannot be read"
        raise SnapbakeError(f"{path} is not valid YAML{place}: {problem}; mend it") from error
