"""The commands of conda that Snakemake calls, on rattler, the engine of conda's own organisation.

conda --version
conda info --json
conda config --get channel_priority --json
conda env create --file ENVIRONMENT.yaml --prefix FOLDER
conda clean ...

It lies in the folder bin of its installation, beside which channels/ has the channels by name.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
# The oldest that Snakemake takes.
VERSION = "24.7.1"


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="conda")
    parser.add_argument("--version", action="version", version=f"conda {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info").add_argument("--json", action="store_true")
    config = commands.add_parser("config")
    config.add_argument("--get")
    config.add_argument("--json", action="store_true")
    clean = commands.add_parser("clean")
    clean.add_argument("-y", action="store_true")
    clean.add_argument("--tarballs", action="store_true")
    create = commands.add_parser("env").add_subparsers(required=True).add_parser("create")
    create.add_argument("--quiet", action="store_true")
    create.add_argument("--no-default-packages", action="store_true")
    create.add_argument("--file", type=Path, required=True)
    create.add_argument("--prefix", type=Path, required=True)
    return parser.parse_args(words)


async def install_packages(specs: list[str], channels: list[str], prefix: Path) -> None:
    """Choose packages for `specs` and link them into `prefix`."""
    from rattler import (
        Channel,
        ChannelConfig,
        ChannelPriority,
        Gateway,
        MatchSpec,
        VirtualPackage,
        install,
        solve,
    )
    from rattler.platform import Platform

    places = ChannelConfig(channel_alias=f"file://{HOME}/channels/")
    chosen = await solve(
        sources=[Channel(name, places) for name in channels if name != "nodefaults"],
        specs=[MatchSpec(spec) for spec in specs],
        gateway=Gateway(cache_dir=HOME / "cache" / "index"),
        platforms=[Platform.current(), Platform("noarch")],
        virtual_packages=VirtualPackage.detect(),
        channel_priority=ChannelPriority.Strict,
    )
    await install(
        chosen, target_prefix=prefix, cache_dir=HOME / "cache" / "packages", show_progress=False
    )


def create(file: Path, prefix: Path) -> None:
    """Create an environment as its file says."""
    import yaml

    content = yaml.safe_load(file.read_text())
    specs = [item for item in content["dependencies"] if isinstance(item, str)]
    pinned = [item for item in content["dependencies"] if isinstance(item, dict)]
    asyncio.run(install_packages(specs, content["channels"], prefix))
    for section in pinned:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
            requirements.write("\n".join(section["pip"]) + "\n")
            requirements.flush()
            subprocess.run(
                [prefix / "bin/python", "-m", "pip", "install", "--requirement", requirements.name],
                check=True,
                env=os.environ | {"PYTHONNOUSERSITE": "1"},
            )


def main(words: list[str]) -> None:
    arguments = parse(words)
    if arguments.command == "info":
        print(json.dumps({"conda_prefix": str(HOME), "platform": "linux-64"}))
    elif arguments.command == "config":
        print(json.dumps({"get": {"channel_priority": "strict"}}))
    elif arguments.command == "env":
        create(arguments.file, arguments.prefix)


if __name__ == "__main__":
    main(sys.argv[1:])
