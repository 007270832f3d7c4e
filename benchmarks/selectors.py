"""Trains countdown with each selector of tasks: sampled tokens until 80% of the held-out tasks are solved.

    python -m benchmarks.selectors --root /tmp/selectors               # six selectors, three seeds: two idle hours
    python -m benchmarks.selectors --root /tmp/selectors --selectors shuffle solve_rate_pools --seeds 1

Each run is the countdown recipe with one selector for the rft stage. Its seed shares warmup and profile, and a run that
is complete is not made again, so an interrupted benchmark goes on where it was. `offline_easy2hard` reads the avg@8
that the warmed-up policy had on each task, `difficulty_based` its avg@8 as the weak and its pass@8 as the strong rate.
The tokens of the profile are not counted: a column shows them.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.measurement import HERE, Measurement, table
from pipeline.results.view import find_view
from pipeline.store import tables

PROJECT, GOAL = "selectors", 0.8
AVG, PASS = "stages.profile.avg_at_k", "stages.profile.pass_at_k"
SELECTORS: dict[str, dict] = {
    "shuffle": {}, "sequential": {}, "random": {}, "offline_easy2hard": {"feature_keys": [AVG]},
    "difficulty_based": {"feature_keys": [AVG, PASS], "kwargs": {"target_reward": 0.5, "tau": 0.1}},
    "solve_rate_pools": {}}
STEPS, EVERY = 300, 10  # of rft; steps between evaluations
TOKENS = "SELECT sum(tokens) FROM rollouts WHERE step <= ?"
REACHED = "SELECT min(step) FROM scores WHERE metric = 'sampled_accuracy' AND value >= ? AND step > 0"
LAST = "SELECT arg_max(value, step) FROM scores WHERE metric = 'sampled_accuracy'"


def stages(selector: str) -> str:
    """The stages of a run, as an override."""
    sft = {"stage_name": "sft", "buffer": {"batch_size": 256, "total_steps": 400}, "algorithm": {
        "algorithm_type": "sft", "optimizer": {"lr": 1e-3, "lr_scheduler_type": "cosine", "lr_warmup_steps": 10}}}
    profile = {"stage_name": "profile", "mode": "explore", "buffer": {"total_steps": 40}}  # 64 tasks each: all
    chosen = {"selector_type": selector, **SELECTORS[selector]}
    rft = {"stage_name": "rft", "buffer": {"explorer_input": {"taskset": {"data_selector": chosen}}}}
    needs = [profile] if "feature_keys" in chosen else []
    return f"stages={json.dumps([sft, *needs, rft])}".replace('"', "").replace(": ", ":").replace(", ", ",")


def train(root: Path, selector: str, seed: int) -> None:
    """Makes a run; exits when it fails."""
    command = [sys.executable, "-m", "pipeline.cli", "run", "recipe=countdown", f"project={PROJECT}",
               f"name={selector}-{seed}", f"seed={seed}", f"checkpoint_root_dir={root}", "monitor=none",
               f"buffer.total_steps={STEPS}", f"explorer.eval_interval={EVERY}", stages(selector)]
    done = subprocess.run(command, cwd=HERE.parent, check=False, stdout=sys.stderr)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with exit code {done.returncode}")


def measured(root: Path, selector: str, seed: int) -> list:
    """Tokens to the goal, null where it was not reached; the last accuracy; tokens of the profile."""
    made = {stage.name: stage.directory for stage in find_view(root, f"{PROJECT}/{selector}-{seed}").stages}
    session = tables.connect([("rft", made["rft"])])
    ((step,),) = session.execute(REACHED, [GOAL]).fetchall()
    tokens = None if step is None else session.execute(TOKENS, [step]).fetchone()[0]
    spent = tables.connect([("profile", made["profile"])]).execute(TOKENS, [10**6]).fetchone()[0] if (
        "profile" in made) else 0
    return [tokens, session.execute(LAST).fetchone()[0], spent]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--root", type=Path, required=True)
    arguments.add_argument("--selectors", nargs="+", choices=SELECTORS, default=list(SELECTORS))
    arguments.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    given = arguments.parse_args()
    said, root = Measurement("selectors", f"Sampled tokens until {GOAL:.0%} of held-out tasks"), given.root.resolve()
    rows, found = [], {}
    for seed in given.seeds:
        for selector in given.selectors:
            train(root, selector, seed)
            found[selector, seed] = measured(root, selector, seed)
            rows.append([selector, seed, *found[selector, seed]])
    said.add(table(["selector", "seed", "tokens", "accuracy at the end", "tokens of the profile"], rows))
    base = [found["shuffle", seed][0] for seed in given.seeds] if "shuffle" in given.selectors else []
    for selector in given.selectors if base else ():
        pairs = [(found[selector, seed][0], tokens) for seed, tokens in zip(given.seeds, base, strict=True)]
        ratios = [own / tokens for own, tokens in pairs if own and tokens]
        said.add(f"{selector}: {statistics.mean(ratios):.2f} of the tokens of shuffle" if len(ratios) == len(pairs) else
                 f"{selector}: not every run reached the goal")
    said.save({"rows": rows})


if __name__ == "__main__":
    main()
