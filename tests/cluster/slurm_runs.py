"""How the tests call Snakemake on the Slurm node, and programs that behave badly there."""

from pathlib import Path

# The profile as a site would use it; its jobs are so short here that looking after them every
# twenty seconds would be most of the time.
PROFILE = ("--profile", "profiles/slurm", "--slurm-init-seconds-before-status-checks", "3")


def prepend(program: Path, code: str) -> None:
    """Let a program do something else first."""
    program.write_text(f"{code}\n{program.read_text()}")


TAKE_MEMORY = """\
import sys, time
wanted = {megabytes}.get(sys.argv[sys.argv.index("--summary") + 1].split("/")[1].split(".")[0])
held = bytearray(wanted << 20)
time.sleep(8)
"""
SLEEP = """\
import time
time.sleep({seconds})
"""
