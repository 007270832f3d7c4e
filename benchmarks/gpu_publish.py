"""Measures weight handovers and checkpoints: their parts, and what they cost in the steps of an rft stage.

    python -m benchmarks.gpu_publish --root /tmp/publish --other /path/to/older/checkout --out publish.json
    python -m benchmarks.gpu_publish --root /tmp/publish --hidden 256 --layers 4 --vocabulary 4096   # on a CPU

A random model in the shape of Qwen2.5-0.5B (bfloat16), unless another shape is given. `parts`: one process with a
trainer and no engine publishes versions of which 1% of the elements changed, reads them back as an engine does, and
saves checkpoints. `stage`: an rft stage with mode=colocate for each of synchronizer.publish=full, delta and auto, and
of another tree with its own way, in turns; publish + sync (load and prove) of a step, and by how much a step with a
checkpoint is longer than one without (medians, lowest to highest, the first two steps left out). Needs vllm and
deepspeed; on a CPU the stage has fewer and shorter rows.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.gpu_path import PROMPT_TOKENS, make_model, make_tasks

WAYS = {"full": ["synchronizer.publish=full"], "delta": ["synchronizer.publish=delta"],
        "auto": ["synchronizer.publish=auto"]}
EVERY = 3  # steps from one checkpoint to the next
PROBE = [*range(5, 133)]  # tokens


def settings(given, response: int) -> list[str]:
    gpu = given.gpu
    usual = [
        f"checkpoint_root_dir={given.root}", "project=gpu", "name=publish", "mode=colocate",
        "monitor.monitor_type=none", "stages=[{stage_name: rft}]", "model.init.enable=false",
        f"model.model_path={given.model}", "model.dtype=bfloat16", f"model.max_prompt_tokens={PROMPT_TOKENS}",
        f"model.max_response_tokens={response}",
        "buffer.explorer_input.default_reward_fn_type=benchmarks.gpu_path:hash_reward",
        "buffer.explorer_input.eval_tasksets=[]", f"buffer.total_steps={given.steps}",
        f"buffer.batch_size={64 if gpu else 4}", f"algorithm.repeat_times={8 if gpu else 2}",
        "algorithm.optimizer.lr=1e-6", "synchronizer.sync_offset=0", "synchronizer.sync_interval=1",
        f"trainer.save_interval={EVERY}", "trainer.max_token_len_per_gpu=32768", "continue_from_checkpoint=false",
        "explorer.rollout_model.gpu_memory_utilization=0.4", "explorer.rollout_model.max_num_seqs=512"]
    own = {one.partition("=")[0] for one in given.set}
    return [*(one for one in usual if one.partition("=")[0] not in own), *given.set]


def run_stage(given) -> dict:
    """Runs one rft stage with the code of the tree in the current directory; returns the seconds of its steps."""
    from ouroboros.pipeline.check.judge import compose
    from ouroboros.pipeline.plan.plan import make_plan
    from ouroboros.pipeline.store import tables

    plan = make_plan(compose(settings(given, 512 if given.gpu else 16)))
    plan.freeze()
    make_tasks(Path(next(s for s in plan.stages if s.name == "curate").directory))
    stage = Path(next(s for s in plan.stages if s.name == "rft").directory)
    begin = time.time()
    subprocess.run([sys.executable, "-m", "ouroboros.stages.rft", stage], check=True)
    with tables.connect([("gpu", stage)]) as session:
        rows = session.sql("SELECT step, seconds, rollout_seconds, train_seconds, publish_seconds, sync_seconds, "
                           "train_other_seconds FROM steps ORDER BY step").to_arrow_table().to_pylist()
    return {"steps": rows, "seconds": time.time() - begin}


def measure_parts(given) -> dict:
    """Seconds of each part of publishing, loading and saving, without an engine."""
    import logging

    from ouroboros.pipeline.check.judge import compose
    from ouroboros.pipeline.job.context import Context
    from ouroboros.pipeline.job.syncs import Unasked
    from ouroboros.stages.learner.actor import Actor
    from ouroboros.stages.learner.engine.process import Process
    from ouroboros.stages.learner.publishing import Publishing
    from ouroboros.stages.learner.saving import Saving
    from ouroboros.workflows.engines.host_weights import HostWeights

    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    given.set = [*given.set, "synchronizer.publish=delta"]
    config = compose(settings(given, 16))
    context = Context("gpu/publish", "rft", "0", given.root / "parts", config, {}, logging.getLogger("parts"))
    process = Process.start(1)
    actor = Actor(given.model, config, process)
    publishing, host, clock = Publishing(context, actor, Unasked()), HostWeights(), Clock()
    saved: list[float] = []
    saving = Saving(context, given.model, process, actor, None, {}, saved.append)
    for version in range(given.steps):
        _change(actor)
        _publish(version, context.directory, actor, publishing, host, clock)
        _parts(given.root / "whole.safetensors", actor, publishing, clock)
    for step in range(1, 4):
        clock.timed("checkpoint, blocking", saving.take, step)
        saving.start(step)
        saving.finish()
    process.stop()
    sizes = {path.name: path.stat().st_size for path in sorted((context.directory / "weights").glob("*/*.safetensors"))}
    return {"seconds": {**clock.found, "checkpoint, in all": saved}, "bytes": sizes}


class Clock:
    """Seconds of calls, by the name of what is measured, until the GPU is done."""

    def __init__(self):
        self.found: dict[str, list[float]] = {}

    def timed(self, name: str, work: Callable, *arguments):
        """Returns what the call returns."""
        import torch

        begin = time.perf_counter()
        made = work(*arguments)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.found.setdefault(name, []).append(time.perf_counter() - begin)
        return made


def _change(actor) -> None:
    """Changes 1% of the elements of each parameter."""
    import torch

    with torch.no_grad():
        for parameter in actor.zero.module.parameters():
            flat = parameter.data.view(-1)
            flat[torch.randint(len(flat), (len(flat) // 100 + 1,), device=flat.device)] *= 1.01


def _publish(version: int, stage: Path, actor, publishing, host, clock: Clock) -> None:
    """Publishes a version, the first one whole, and loads it."""
    from ouroboros.pipeline.store import versions

    form = "delta" if version else "full"
    clock.timed(f"publish, {form}", publishing.publish, version, PROBE)
    clock.timed(f"load, {form}", _load, host, versions.version_directory(stage, version))
    clock.timed("  probe", actor.score, PROBE)


def _parts(whole: Path, actor, publishing, clock: Clock) -> None:
    """Does single parts of a publication again. whole: the file to write."""
    from ouroboros.pipeline.store import tensor_files, versions

    state, old = actor.trainable_state(), publishing._last
    clock.timed("  copy to host memory", publishing._copied, {name: one.detach() for name, one in state.items()})
    publishing._buffers.reverse()  # as if it had not been called
    clock.timed("  compare with the last", versions.changes, old, old)
    clock.timed("  hash", tensor_files.hashes_of, old)
    clock.timed("  write, full", tensor_files.write, whole, old)


def _load(host, directory: Path) -> None:
    with host.verified(directory):
        pass


def started(tree: Path, given, name: str, overrides: list[str], what: str) -> dict:
    """`run_stage` or `measure_parts` in its own process, with the code of a tree."""
    answer, root = given.root / f"{name}.json", given.root / name
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(
        [f"{tree}/src", str(tree), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-P", str(Path(__file__).resolve()), "--root", str(root), "--steps", str(given.steps),
               "--model", str(given.root / "model"), f"--{what}", str(answer), *(f"--set={one}" for one in overrides)]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    return {"failed": (done.stdout + done.stderr)[-2500:]} if done.returncode else json.loads(answer.read_text())


def line(name: str, runs: list[dict]) -> dict:
    """The figures of one way over its processes."""
    if failed := [run["failed"] for run in runs if "failed" in run]:
        return {"way": name, "failed": failed[0]}
    rows = [row for run in runs for row in run["steps"][2:-1]]  # the last one publishes nothing and waits for all
    handover = [row["publish_seconds"] + row["sync_seconds"] for row in rows]
    # what a checkpoint adds to a step: its part of `other`
    other = {saves: [row["train_other_seconds"] for row in rows if (row["step"] % EVERY == 0) == saves]
             for saves in (True, False)}
    blocked = [one - median(other[False]) for one in other[True]]
    return {"way": name, "steps": len(rows), "publish": spread([row["publish_seconds"] for row in rows]),
            "load and prove": spread([row["sync_seconds"] for row in rows]), "handover": spread(handover),
            "checkpoint blocks": spread(blocked), "step": spread([row["seconds"] for row in rows])}


def spread(values: list[float]) -> str:
    return f"{median(values):.3f} ({min(values):.3f} - {max(values):.3f})" if values else "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="an empty directory for model and results")
    parser.add_argument("--other", type=Path, help="a checkout to compare with")
    parser.add_argument("--steps", type=int, default=9, help="steps of a stage, and versions of `parts`")
    parser.add_argument("--rounds", type=int, default=1, help="how often the ways take turns")
    parser.add_argument("--only", action="append", choices=[*WAYS, "parts", "other"], help="what to measure")
    parser.add_argument("--hidden", type=int, default=896, help="width, a multiple of 128")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--set", action="append", default=[], help="a further override")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    for hidden in ("--model", "--stage", "--parts"):
        parser.add_argument(hidden, type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.stage or given.parts:
        import torch

        given.gpu = torch.cuda.is_available()
        (given.stage or given.parts).write_text(json.dumps((run_stage if given.stage else measure_parts)(given)))
        return
    here, chosen = Path(__file__).resolve().parent.parent, given.only or ["parts", *WAYS, "other"]
    given.root.mkdir(parents=True, exist_ok=True)
    if not (given.root / "model").exists():
        make_model(given.root / "model", hidden_size=given.hidden, num_hidden_layers=given.layers,
                   num_attention_heads=given.hidden // 64, intermediate_size=given.hidden * 38 // 7,
                   vocab_size=given.vocabulary)
    figures: dict = {}
    if "parts" in chosen:
        figures["parts"] = parts = started(here, given, "parts", given.set, "parts")
        for name, values in parts.get("seconds", {}).items():
            print(f"{name:24} {spread(values)} s")
        print(parts.get("failed", parts.get("bytes")))
    ways = {name: (here, overrides) for name, overrides in WAYS.items() if name in chosen}
    if given.other and "other" in chosen:
        ways = {"the other tree": (given.other, []), **ways}
    found: dict[str, list[dict]] = {name: [] for name in ways}
    for turn in range(given.rounds):
        for index, (name, (tree, overrides)) in enumerate(ways.items()):
            found[name].append(started(tree, given, f"w{index}-{turn}", [*overrides, *given.set], "stage"))
            print(json.dumps(line(name, found[name][-1:])), flush=True)
    figures |= {"ways": [line(name, runs) for name, runs in found.items()], "runs": found}
    for one in figures["ways"] if given.rounds > 1 else ():
        print(json.dumps(one))
    if given.out:
        given.out.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
