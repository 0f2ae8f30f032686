"""A Slurm of one node, this machine, as long as a test run lasts.

Its daemons listen on 127.0.0.1 only, run as root without systemd, and end with the process that
started them. Neither munge, a database nor control groups are needed. Slurm measures the memory of
the jobs and kills those that take more than they asked for.
"""

import fcntl
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "setpriv")
# Where Slurm's programs look. SLURM_CONF would not do: the executor plugin takes every SLURM_
# variable away from a job before it starts the job's step.
SETTINGS = Path("/etc/slurm/slurm.conf")
LOCK = Path("/run/lock/snapbake-slurm-test")

TEMPLATE = """\
ClusterName=snapbake
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmdParameters=config_overrides
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=1,sched_min_interval=100000,bf_interval=1
ReturnToService=2
MinJobAge=3600
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 {hardware} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Return why no node can be started here, or None."""
    if os.geteuid() != 0:
        return "Slurm is started as root only"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed (Debian: slurmctld slurmd slurm-client)"
    if SETTINGS.exists() and not SETTINGS.is_symlink():
        return f"{SETTINGS} belongs to a Slurm of this machine"
    return None


class SlurmNode:
    """The node; use it in a `with` statement. Only one can run at a time on a machine.

    It offers `slots` processors, however many the machine has: jobs that wait for something else
    than a processor leave it to others.
    """

    def __init__(self, folder: Path, slots: int) -> None:
        self.folder = folder
        self.slots = slots
        self.daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "SlurmNode":
        self.lock = LOCK.open("w")
        # Another test run on this machine is waited for.
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self) -> None:
        for name in ("state", "spool"):
            (self.folder / name).mkdir(parents=True)
        memory = re.search(r"RealMemory=\d+", run("slurmd", "-C"))[0]
        settings = self.folder / "slurm.conf"
        settings.write_text(
            TEMPLATE.format(
                host=socket.gethostname().split(".")[0],
                controller_port=free_port(),
                node_port=free_port(),
                folder=self.folder,
                hardware=f"CPUs={self.slots} {memory}",
            )
        )
        SETTINGS.parent.mkdir(exist_ok=True)
        SETTINGS.unlink(missing_ok=True)
        SETTINGS.symlink_to(settings)
        for name in ("slurmctld", "slurmd"):
            command = ["setpriv", "--pdeathsig", "TERM", name, "-D"]
            self.daemons.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
        wait_for(lambda: state_of_nodes() == "idle", 60, f"Slurm to start, see {self.folder}/*.log")

    def _stop(self) -> None:
        if self.daemons:
            subprocess.run(["scancel", "--user", "root"], capture_output=True, check=False)
            wait_for(lambda: not self.jobs(), 30, "the jobs to end")
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        SETTINGS.unlink(missing_ok=True)
        self.lock.close()

    def jobs(self) -> list[str]:
        """Return the jobs that wait or run, each as `number state`."""
        done = subprocess.run(
            ["squeue", "--noheader", "--format=%i %T"], capture_output=True, text=True, check=False
        )
        return done.stdout.splitlines()


def state_of_nodes() -> str:
    done = subprocess.run(
        ["sinfo", "--noheader", "--format=%T"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(done: Callable[[], bool], seconds: float, what: str) -> None:
    """Return when `done` says so; raise TimeoutError after `seconds`."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.2)
