"""The configuration, checked; wildcard constraints; what several rules need to say.

Reads config/ and the imports of the programs in scripts/. Writes nothing.
"""

import atexit
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

ROOT = Path(workflow.basedir)

# The modules that the workflow shares with its programs.
sys.path.insert(0, str(ROOT / "scripts"))

from snapbake.errors import SnapbakeError
from snapbake.job_logs import find_errors
from snapbake.program_sources import program_sources
from snapbake.qnn_library import require_supported_machine
from snapbake.workflow_config import require_no_duplicates, resolve_build

# Programs run in the environment of this Snakemake, also when that was not activated. With
# --sdm conda, a rule's own environment comes before it.
own_folder = str(Path(sys.executable).parent)
os.environ.update(PATH=os.pathsep.join([own_folder, *os.get_exec_path()]))

# Threads that wait for others sleep, in PyTorch (OpenMP) and in numpy (OpenBLAS, 2^4 cycles). By
# default they spin, and two jobs on the same cores then take several times as long as one by one.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")


def stop(error):
    """End Snakemake with one line. A WorkflowError would put it between places in the source."""
    raise SystemExit(f"error: {error}") from None


try:
    for path in workflow.configfiles:
        require_no_duplicates(Path(path))
    BUILD = resolve_build(config, ROOT)
except SnapbakeError as error:
    stop(error)

GRAPHS = ["prefill", "decode"]
FLOAT_RECIPES = [
    recipe.name for recipe in BUILD.recipes.values() if not recipe.quantized
]
QUANTIZED_RECIPES = [
    recipe.name for recipe in BUILD.recipes.values() if recipe.quantized
]
MATRIX = {
    "model": list(BUILD.models),
    "ctx": BUILD.contexts,
    "recipe": list(BUILD.recipes),
    "soc": list(BUILD.targets),
}
# The folder of what is made for one chip.
TARGET = "results/{model}/c{ctx}/{recipe}/{soc}"


def one_of(names):
    """Return a pattern that matches exactly these names, and nothing when there are none."""
    return "|".join(re.escape(str(name)) for name in names) or "(?!)"


wildcard_constraints:
    model=one_of(MATRIX["model"]),
    ctx=one_of(MATRIX["ctx"]),
    recipe=one_of(MATRIX["recipe"]),
    soc=one_of(MATRIX["soc"]),
    graph=one_of(GRAPHS),


def workflow_file(path):
    """Return the path of one of the workflow's own files as seen from the working folder."""
    return os.path.relpath(ROOT / path)


# The local imports of every file that was parsed for `program`.
IMPORTS = {}


def program(name, environment):
    """Return scripts/<name>.py, the local modules that it imports, and its environment file.

    As inputs they make a rule run again when a line of them changes, and not when they are only
    touched. The program itself comes first.
    """
    try:
        sources = program_sources(Path(workflow_file(f"scripts/{name}.py")), IMPORTS)
    except SnapbakeError as error:
        stop(error)
    return [*map(str, sources), workflow_file(f"envs/{environment}.yaml")]


def toolchain(wildcards):
    """Stop while the jobs are planned when one of them compiles and this machine cannot.

    An input function without inputs, so that plans without such a job go through.
    """
    try:
        require_supported_machine()
    except SnapbakeError as error:
        stop(error)
    return []


CHECKPOINT = [
    f"results/{{model}}/checkpoint/{name}"
    for name in [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ]
]


def tokens(wildcards):
    """Return how many tokens the graph takes at a time."""
    return BUILD.chunk if wildcards.graph == "prefill" else 1


def option(flag, value):
    """Return an option of a command line, or nothing when there is no value."""
    return [] if value is None else [flag, str(value)]


def memory(base_mb, times=0):
    """Return a resource function: `base_mb` and `times` the size of the inputs, more a retry."""
    if not times:
        return lambda wildcards, attempt: attempt * base_mb
    return lambda wildcards, input, attempt: int(
        attempt * (base_mb + times * input.size_mb)
    )


def minutes(base, per_gb=0):
    """Return a resource function: `base` minutes and `per_gb` for each GB of input, more a retry."""
    if not per_gb:
        return lambda wildcards, attempt: attempt * base
    return lambda wildcards, input, attempt: int(
        attempt * (base + per_gb * input.size_mb / 1000) + 1
    )


def disk(times):
    """Return a resource function: `times` the size of the inputs, and a little."""
    return lambda wildcards, input: int(100 + times * input.size_mb)


STARTED = time.time()


def print_errors():
    """Repeat what the failed jobs said, which has scrolled away while other jobs went on."""
    for path, error in find_errors(Path("logs"), STARTED):
        print(f"{error} ({path})", file=sys.stderr)


def print_errors_last():
    """Do so when Snakemake has said what it says at the end of a run."""
    atexit.register(print_errors)


def remove_leftovers():
    """Remove what killed programs left half-written, beside the files that they meant to write.

    Nothing else runs in this folder when a run starts, for Snakemake has locked it.
    """
    for path in list(Path("results").rglob(".*")):
        if re.fullmatch(r"\..+\.[a-z0-9_]{8}", path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


onstart:
    remove_leftovers()
