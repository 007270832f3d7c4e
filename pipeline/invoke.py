"""`ouro run`: hands a recipe to snakemake and says what was learnt."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent  # where Snakefile and conf/ are
INTERRUPTED = 130  # 128 + SIGINT
SUMMARY_FOLLOWS = "OURO_SUMMARY_FOLLOWS"  # tells the Snakefile that `ouro run` prints the summary


def run(arguments) -> int:
    """Makes every stage of the recipe that is not complete, by snakemake; then says what was learnt.

    First what `ouro config check` knows without reading data: a problem must not appear after a stage has run.
    """
    from pipeline import outcome, preflight
    from pipeline.compose import warnings
    from pipeline.launch import MULTIRUN, make_plan_or_sweep

    words = [MULTIRUN, *arguments.overrides] if arguments.multirun else arguments.overrides
    plan = make_plan_or_sweep(words, preflight.judged_plan)
    for line in plan.warnings if arguments.multirun else warnings(words):
        preflight.warn(line)
    shown = outcome.of(plan)
    if shown.complete and not arguments.snakemake:
        plan.freeze()  # the run's view may show another configuration
        print(f"nothing to do: all {len(plan.stages)} stages of {shown.run} are complete")
        print(outcome.conclude(shown))
        return 0
    if asks_for_no_gpu(plan, arguments.snakemake):
        preflight.warn("cluster.gpu_per_node is not set and this machine shows no GPU: the jobs of SLURM ask for none. "
                       "Set it to the GPUs of a node, or to 0 if none is meant.")
    before = _made(plan)
    code = start(words, arguments.snakemake)
    if (code == 0 or arguments.multirun) and _made(plan) != before:  # a dry run makes nothing
        print(outcome.conclude(shown))
    if code not in (0, INTERRUPTED):
        if _made(plan) != before and (line := outcome.report_what_is_there(shown)):
            print(line)
        print(outcome.what_failed(shown, code), file=sys.stderr)
    return code


def asks_for_no_gpu(plan, extra: list[str]) -> bool:
    """Whether stages go to SLURM that would take GPUs if it were known that there are some. extra: as for `start`."""
    from pipeline.identity import HEAVY

    return any(word.endswith("slurm") for word in extra) and any(
        stage.kind in HEAVY and not stage.gpus and stage.config["cluster"]["gpu_per_node"] is None
        for stage in plan.stages)


def start(overrides: list[str], extra: list[str]) -> int:
    """Runs snakemake over what the overrides mean; its exit code, or INTERRUPTED. extra: words for snakemake."""
    environment = os.environ | {SUMMARY_FOLLOWS: "1", "PYTHONPATH": _python_path()}
    return _wait_for(snakemake_command(overrides, extra), environment)


def _wait_for(command: list[str], environment: dict[str, str]) -> int:
    """The exit code of a command, or INTERRUPTED. Ctrl-C reaches it from the terminal too: it ends its own jobs."""
    if threading.current_thread() is not threading.main_thread():  # only that one hears Ctrl-C
        return subprocess.Popen(command, env=environment).wait()
    interrupts: list[int] = []
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.SIG_IGN:  # a handler, not SIG_IGN, which the command would inherit
        signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    try:
        code = subprocess.Popen(command, env=environment).wait()
    finally:
        signal.signal(signal.SIGINT, usual)
    return INTERRUPTED if interrupts else code


def snakemake_command(overrides: list[str], extra: list[str]) -> list[str]:
    """The snakemake command line. Overrides travel as a JSON list, which snakemake reads as YAML: any character passes.

    (Of a plain text snakemake would strip the quotes at its ends and read the rest as YAML.) An option stands behind
    --config, which takes every word up to the next one; of two --cores the last counts. A stage that fails stops
    what needs it and nothing else, also with a workflow profile that is not ours.
    """
    elsewhere = [] if Path.cwd() == HOME else ["--snakefile", str(HOME / "Snakefile"), "--directory", str(Path.cwd())]
    text = json.dumps(overrides, ensure_ascii=False)
    config = ["--config", f"overrides={text}"] if overrides else []
    return [sys.executable, "-m", "snakemake", *elsewhere, *config, "--cores", "all", "--keep-going", *extra]


def _made(plan) -> dict[str, int]:
    """When each complete stage was made."""
    return {m: os.stat(m).st_mtime_ns for m in plan.targets if os.path.exists(m)}


def _python_path() -> str:
    """Our packages first: `workflows` is also the name of a package that others may have installed."""
    return os.pathsep.join([str(HOME), *filter(None, [os.environ.get("PYTHONPATH")])])
