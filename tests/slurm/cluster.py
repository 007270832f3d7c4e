"""A SLURM cluster on this host for tests: munged, slurmctld, one slurmd per "node", optionally slurmdbd with MariaDB.

Needs root and Debian's slurm-wlm and munge, for accounting slurmdbd and mariadb-server (`make test-slurm` installs
them). Everything is below one directory; /etc/slurm/slurm.conf is a link to its configuration, because the job step of
Snakemake's executor plugin drops SLURM_CONF from the environment.
"""

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

NEEDED = ("slurmctld", "slurmd", "munged", "sbatch")
NEEDED_TO_ACCOUNT = ("slurmdbd", "mariadbd", "mariadb-install-db")
LINK = Path("/etc/slurm/slurm.conf")
GRES_LINK = Path("/etc/slurm/gres.conf")


def missing(accounting: bool = False) -> str:
    """Returns why no cluster can be started here; '' if one can."""
    absent = [name for name in (*NEEDED, *(NEEDED_TO_ACCOUNT if accounting else ())) if not shutil.which(name)]
    if absent:
        return f"{', '.join(absent)} not installed (Debian: slurm-wlm, munge, slurmdbd, mariadb-server)"
    if os.geteuid() != 0:
        return "starting slurmd needs root"
    return f"{LINK} belongs to another cluster" if LINK.exists() and not LINK.is_symlink() else ""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@dataclass
class Cluster:
    """A running cluster. root: its directory. nodes: names of its nodes. cpus, gpus: of each node."""

    root: Path
    nodes: tuple[str, ...] = ("node1", "node2")
    cpus: int = 2
    gpus: int = 0
    accounting: bool = False
    accounting_port: int = field(default_factory=free_port)
    daemons: dict[str, subprocess.Popen] = field(default_factory=dict)

    def start(self) -> None:
        for part in ("log", "spool", "state", "run"):
            (self.root / part).mkdir(parents=True, exist_ok=True)
        os.chmod(self.root, 0o755)
        self._write()
        for link, target in ((LINK, "slurm.conf"), (GRES_LINK, "gres.conf")):
            link.parent.mkdir(exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(self.root / target)
        self._munge()
        if self.accounting:
            self._account()
        self._daemon("slurmctld", ["slurmctld", "-D", "-f", str(self.root / "slurm.conf")])
        for node in self.nodes:
            self.start_node(node)
        self._wait_idle()

    def start_node(self, node: str) -> None:
        core = sorted(os.sched_getaffinity(0))[self.nodes.index(node) % os.cpu_count()]  # its jobs inherit it
        daemon = ["slurmd", "-D", "-N", node, "-f", str(self.root / "slurm.conf")]
        self._daemon(node, ["taskset", "-c", str(core), *daemon])

    def fail_node(self, node: str) -> None:
        """Kills a node's daemon and every process of its job steps, as a power failure does."""
        daemon = self.daemons.pop(node)
        at_work = [process for process in map(int, _numbers()) if _has(process, f"SLURMD_NODENAME={node}")]
        steps = {_parent(process) for process in at_work} - set(at_work)
        for process in (daemon.pid, *steps, *at_work):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        daemon.wait()

    def stop(self) -> None:
        """Cancels all jobs, ends the daemons and removes the links."""
        subprocess.run(["scancel", "--state=PENDING"], check=False, capture_output=True)
        subprocess.run(["scancel", "--full", "--state=RUNNING", "--signal=KILL"], check=False, capture_output=True)
        for each in reversed(self.daemons.values()):
            each.send_signal(signal.SIGTERM)
        for each in self.daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(10)
            each.kill()
        LINK.unlink(missing_ok=True)
        GRES_LINK.unlink(missing_ok=True)

    def ask(self, *command: str) -> str:
        """Returns the output of a SLURM command."""
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.strip()

    def jobs(self, state: str = "") -> list[str]:
        """Returns the numbers of the jobs in a state; by default of all that have not ended."""
        return self.ask("squeue", "-h", "-o", "%i", *(["-t", state] if state else [])).split()

    def time(self, job: str, what: str) -> float:
        """Returns a time of a job, such as EndTime, in seconds since 1970."""
        shown = self.ask("scontrol", "-o", "show", "job", job)
        return datetime.fromisoformat(shown.split(f"{what}=")[1].split()[0]).timestamp()

    def fill(self) -> None:
        """Occupies all nodes."""
        self.ask("sbatch", f"-N{len(self.nodes)}", "--exclusive", "-J", "fill", "-o", "/dev/null", "--wrap",
                 "sleep 3000")
        _until(lambda: self.jobs("RUNNING"), 30, "the job on all nodes")

    def empty(self) -> None:
        """Ends the job of `fill`."""
        self.ask("scancel", "--name", "fill")
        _until(lambda: not self.jobs(), 30, "the nodes")

    def _daemon(self, name: str, command: list[str], **environment: str) -> None:
        with (self.root / "log" / f"{name}.out").open("a") as out:
            self.daemons[name] = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True,
                                                  env=os.environ | environment)

    def _account(self) -> None:
        """Starts MariaDB and slurmdbd, with an account `lab` of this user."""
        database, at = self.root / "mariadb", free_port()
        with (self.root / "log" / "install-db.out").open("w") as out:
            subprocess.run(["mariadb-install-db", "--no-defaults", f"--datadir={database}", "--user=root",
                            "--auth-root-authentication-method=normal", "--skip-test-db"], check=True, stdout=out)
        socket_ = f"--socket={self.root}/run/mariadb.sock"
        self._daemon("mariadbd", ["mariadbd", "--no-defaults", f"--datadir={database}", "--user=root", socket_,
                                  f"--pid-file={self.root}/run/mariadb.pid", f"--port={at}",
                                  "--bind-address=127.0.0.1"])
        ask = ["mariadb", "--no-defaults", socket_, "-e"]
        _until(lambda: not subprocess.run([*ask, "SELECT 1"], capture_output=True, check=False).returncode, 30,
               "mariadbd")
        self.ask(*ask, "CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'slurm'; GRANT ALL ON slurm.* TO slurm@'127.0.0.1'")
        configuration = self.root / "slurmdbd.conf"
        configuration.write_text("\n".join([
            "AuthType=auth/munge", f"AuthInfo=socket={self.root}/run/munge.socket", "DbdHost=localhost",
            "DbdAddr=127.0.0.1", f"DbdPort={self.accounting_port}", "SlurmUser=root",
            f"PidFile={self.root}/run/slurmdbd.pid", f"LogFile={self.root}/log/slurmdbd.log",
            "StorageType=accounting_storage/mysql", "StorageHost=127.0.0.1", f"StoragePort={at}",
            "StorageUser=slurm", "StoragePass=slurm", "StorageLoc=slurm"]) + "\n")
        configuration.chmod(0o600)
        self._daemon("slurmdbd", ["slurmdbd", "-D"], SLURM_CONF=str(self.root / "slurm.conf"))
        manage = ["sacctmgr", "-i", "add"]
        _until(lambda: not subprocess.run([*manage, "cluster", "ouro"], capture_output=True, check=False).returncode,
               30, "slurmdbd")
        self.ask(*manage, "account", "lab")
        self.ask(*manage, "user", getpass.getuser(), "account=lab")

    def _munge(self) -> None:
        key = self.root / "munge.key"
        key.write_bytes(os.urandom(128))
        os.chmod(key, 0o400)
        self._daemon("munged", ["munged", "-F", "--force", "--key-file", str(key), "--socket",
                                str(self.root / "run" / "munge.socket"), "--pid-file", str(self.root / "run/munge.pid"),
                                "--seed-file", str(self.root / "run/munge.seed"),
                                "--log-file", str(self.root / "log/munge.log"), "--num-threads", "2"])
        _until(lambda: (self.root / "run" / "munge.socket").exists(), 10, "munged")

    def _write(self) -> None:
        gpu_files = []
        for number in range(self.gpus):
            device = self.root / f"gpu{number}"
            if not device.exists():
                os.mknod(device, 0o666 | 0o020000, os.makedev(1, 3))
            gpu_files.append(str(device))
        gres = f" Gres=gpu:{self.gpus}" if self.gpus else ""
        (self.root / "gres.conf").write_text("".join(
            f"NodeName={node} Name=gpu File={file}\n" for node in self.nodes for file in gpu_files))
        ports = {node: free_port() for node in self.nodes}
        lines = [
            "ClusterName=ouro", "SlurmctldHost=localhost(127.0.0.1)", f"SlurmctldPort={free_port()}",
            "SlurmUser=root", "SlurmdUser=root", "AuthType=auth/munge", "CryptoType=crypto/munge",
            f"AuthInfo=socket={self.root}/run/munge.socket",
            f"StateSaveLocation={self.root}/state", f"SlurmdSpoolDir={self.root}/spool/%n",
            f"SlurmctldPidFile={self.root}/run/slurmctld.pid", f"SlurmdPidFile={self.root}/run/slurmd-%n.pid",
            f"SlurmctldLogFile={self.root}/log/slurmctld.log", f"SlurmdLogFile={self.root}/log/slurmd-%n.log",
            "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "JobAcctGatherType=jobacct_gather/linux",
            "SelectType=select/cons_tres", "SelectTypeParameters=CR_Core_Memory", "DefMemPerCPU=1000",
            "MpiDefault=none", "SwitchType=switch/none", "ReturnToService=2", "MinJobAge=600", "KillWait=10",
            "SlurmdParameters=config_overrides", "SchedulerParameters=sched_interval=1,batch_sched_delay=0",
            "SlurmctldTimeout=10", "SlurmdTimeout=10", "PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE",
            *(["AccountingStorageType=accounting_storage/slurmdbd", "AccountingStorageHost=127.0.0.1",
               f"AccountingStoragePort={self.accounting_port}",
               f"AccountingStoragePass={self.root}/run/munge.socket"] if self.accounting
              else ["AccountingStorageType=accounting_storage/none"]), *(["GresTypes=gpu"] if self.gpus else []),
            *(f"NodeName={node} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={ports[node]} "
              f"CPUs={self.cpus} RealMemory=20000{gres} State=UNKNOWN" for node in self.nodes),
            f"PartitionName=main Nodes={','.join(self.nodes)} Default=YES MaxTime=60 State=UP PriorityTier=1",
            f"PartitionName=urgent Nodes={','.join(self.nodes)} MaxTime=60 State=UP PriorityTier=10 PreemptMode=OFF"]
        (self.root / "slurm.conf").write_text("\n".join(lines) + "\n")

    def _wait_idle(self) -> None:
        def idle() -> bool:
            done = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], capture_output=True, text=True, check=False)
            return done.returncode == 0 and set(done.stdout.split()) == {"idle"}

        _until(idle, 30, "nodes to be idle")


def _until(holds, seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.1)


@contextlib.contextmanager
def cluster(root: Path, **settings) -> Iterator[Cluster]:
    """Starts a cluster below `root` and stops it afterwards."""
    one = Cluster(root, **settings)
    try:
        one.start()
        yield one
    finally:
        one.stop()


def _numbers() -> list[str]:
    return [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]


def _has(process: int, variable: str) -> bool:
    try:
        return variable.encode() in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
