"""The variables that SLURM gives to a job: what the `#SBATCH` lines of its script decide, and what they do not."""

import re

from pipeline.bridges.shell_holes import Unknown

DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(--[a-z-]+|-[A-Za-z])(?:=|[ \t]*)(\"[^\"\n]*\"|'[^'\n]*'|[^\s#]+)", re.MULTILINE)
HEAD = re.compile(r"(?:[ \t]*(?:#[^\n]*)?(?:\n|\Z))*")  # behind the first command `sbatch` reads no more of them
# option -> the variables that hold its value; of gres only a number of GPUs
DECIDES = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "--gpus-per-node": ("SLURM_GPUS_PER_NODE",),
    "--ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"), "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "--cpus-per-task": ("SLURM_CPUS_PER_TASK",), "--job-name": ("SLURM_JOB_NAME",), "--gres": ("SLURM_GPUS_ON_NODE",),
}
SHORT = {"-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-J": "--job-name"}
AT_START = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_PROCID", "SLURM_NODEID",
            "SLURM_LOCALID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_SUBMIT_DIR")


def job_variables(text: str) -> dict[str, str | Unknown]:
    """Variables of a batch script by their names; none for a script without an `#SBATCH` line."""
    head = HEAD.match(text.replace("\r", ""))
    text, found = head[0] if head else "", dict[str, str | Unknown]()
    for option, value in DIRECTIVE.findall(text):
        value = value.strip("\"'")
        name = SHORT.get(option, option)
        if name == "--gres":
            gpus = re.fullmatch(r"gpu:(?:[\w.-]+:)?(\d+)", value)
            value = gpus[1] if gpus else ""
        if value.isdigit() or name == "--job-name":
            found |= dict.fromkeys(DECIDES.get(name, ()), value)
    if not re.search(r"^#SBATCH\b", text, re.MULTILINE):
        return {}
    started = {name: Unknown(f"{name}, which SLURM sets when the job starts") for name in AT_START}
    return started | found
