"""Trains countdown in several ways: sampled tokens until 80% of the held-out tasks are solved.

    python -m benchmarks.to_goal selectors --root /tmp/selectors    # six selectors, three seeds: two hours
    python -m benchmarks.to_goal passes --root /tmp/passes          # grpo and ppo, one and four passes over a batch

Each run is the countdown recipe with one way for the rft stage. Runs are made side by side, two cores each; what is
complete is not made again, so an interrupted benchmark goes on where it was; rows join the saved results.
`offline_easy2hard` reads the avg@8 that the warmed-up policy had on each task, `difficulty_based` its avg@8 as the weak
and its pass@8 as the strong rate. The tokens of such a profile are not counted: a column shows them.
"""

import argparse
import json
import statistics
from pathlib import Path

from benchmarks.lanes import required
from benchmarks.measurement import RESULTS, Measurement, table
from ouroboros.pipeline.results.view import find_view
from ouroboros.pipeline.store import files, tables

GOAL = 0.8
STEPS, EVERY = 300, 10  # of rft; steps between evaluations
AVG, PASS = "stages.profile.avg_at_k", "stages.profile.pass_at_k"
WAYS: dict[str, dict[str, dict]] = {  # group -> way -> what the rft stage sets; the first is the one to compare with
    "selectors": {name: {"buffer": {"explorer_input": {"taskset": {"data_selector": {"selector_type": name, **more}}}}}
                  for name, more in {
                      "shuffle": {}, "sequential": {}, "random": {}, "offline_easy2hard": {"feature_keys": [AVG]},
                      "difficulty_based": {"feature_keys": [AVG, PASS], "kwargs": {"target_reward": 0.5, "tau": 0.1}},
                      "solve_rate_pools": {}}.items()},
    "passes": {f"{name}, {passes}": {"algorithm": {"algorithm_type": name}, "trainer": {"ppo_epochs": passes}}
               for name in ("grpo", "ppo") for passes in (1, 4)}}
TOKENS = "SELECT sum(tokens) FROM rollouts WHERE step <= ?"
REACHED = "SELECT min(step) FROM scores WHERE metric = 'sampled_accuracy' AND value >= ? AND step > 0"
LAST = "SELECT arg_max(value, step) FROM scores WHERE metric = 'sampled_accuracy'"


def stages(way: dict) -> str:
    """The stages of a run, as an override."""
    sft = {"stage_name": "sft", "buffer": {"batch_size": 256, "total_steps": 400}, "algorithm": {
        "algorithm_type": "sft", "optimizer": {"lr": 1e-3, "lr_scheduler_type": "cosine", "lr_warmup_steps": 10}}}
    profile = {"stage_name": "profile", "mode": "explore", "buffer": {"total_steps": 40}}  # 64 tasks each: all
    needs = [profile] if "stages.profile" in json.dumps(way) else []
    return f"stages={json.dumps([sft, *needs, {'stage_name': 'rft', **way}])}".replace('"', "").replace(
        ": ", ":").replace(", ", ",")


def run_name(way: str, seed: int) -> str:
    return f"{way.replace(', ', '-')}-{seed}"


def measured(root: Path, name: str) -> list:
    """Tokens to the goal, null where it was not reached; the last accuracy; tokens of the profile."""
    made = {stage.name: stage.directory for stage in find_view(root, name).stages}
    with tables.connect([("rft", made["rft"])]) as session:
        ((step,),) = session.execute(REACHED, [GOAL]).fetchall()
        tokens = None if step is None else session.execute(TOKENS, [step]).fetchone()[0]
        last = session.execute(LAST).fetchone()[0]
    if "profile" not in made:
        return [tokens, last, 0]
    with tables.connect([("profile", made["profile"])]) as session:
        return [tokens, last, session.execute(TOKENS, [10**6]).fetchone()[0]]


def joined(group: str, found: dict[tuple[str, int], list]) -> dict[tuple[str, int], list]:
    """The saved rows of other ways and seeds with these, in the order of seeds and ways."""
    saved = RESULTS / f"{group}.json"
    rows = files.read_json(saved)["result"]["rows"] if saved.exists() else []
    both = {(way, seed): cells for way, seed, *cells in rows} | found
    return dict(sorted(both.items(), key=lambda one: (one[0][1], list(WAYS[group]).index(one[0][0]))))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("group", choices=WAYS)
    arguments.add_argument("--root", type=Path, required=True)
    arguments.add_argument("--only", nargs="+", help="these ways alone")
    arguments.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    given = arguments.parse_args()
    root, ways = given.root.resolve(), WAYS[given.group]
    said = Measurement(given.group, f"Sampled tokens until {GOAL:.0%} of held-out tasks are solved")
    cases = [(way, seed) for seed in given.seeds for way in given.only or ways]
    required(root, {run_name(way, seed): (
        "recipe=countdown", f"project={given.group}", f"seed={seed}", "monitor=none", f"buffer.total_steps={STEPS}",
        f"explorer.eval_interval={EVERY}", stages(ways[way])) for way, seed in cases})
    found = joined(given.group, {(way, seed): measured(root, f"{given.group}/{run_name(way, seed)}")
                                 for way, seed in cases})
    seeds = sorted({seed for _, seed in found})
    said.add(table([given.group, "seed", "tokens", "accuracy at the end", "tokens of the profile"],
                   [[way, seed, *cells] for (way, seed), cells in found.items()]))
    first = next(iter(ways))
    for way in ways:
        ratios = [found[way, seed][0] / found[first, seed][0] for seed in seeds
                  if all(found.get((one, seed), [None])[0] for one in (first, way))]
        reached = len(ratios) == len(seeds)
        said.add(f"{way}: {statistics.mean(ratios):.2f} of the tokens of {first}" if reached else
                 f"{way}: not every run reached the goal")
    said.save({"rows": [[way, seed, *cells] for (way, seed), cells in found.items()]})


if __name__ == "__main__":
    main()
