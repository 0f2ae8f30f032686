"""Each file of envs/ can be installed: its pins fit together."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

FILES = sorted((Path(__file__).resolve().parents[2] / "envs").glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_pins_fit_together(file):
    pinned = yaml.safe_load(file.read_text())["dependencies"][-1]["pip"]
    done = subprocess.run(
        [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--python-version=3.11", "-"],
        input="\n".join(pinned),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {pin.lower().replace("_", "-") for pin in pinned} <= set(done.stdout.split())
