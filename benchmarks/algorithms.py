"""Trains every algorithm and measures the change in held-out accuracy, with 95% intervals.

Each family of algorithms is one sweep over the countdown recipe (`ouro run -m`) with the same warmup, tasks, seed and
settings, except for those in the family's line. Families that do not learn from rewards generate their data first:
preference pairs are solved and unsolved responses of the warmed-up policy to the same task, the teacher is that policy
trained with `grpo`. The difference is paired: accuracy after minus before on each of 256 held-out tasks, from 8
responses sampled at temperature 1 and from the greedy one, with 95% intervals over tasks.

    python -m benchmarks.algorithms --root /tmp/algorithms            # all of them, an hour on two idle cores
    python -m benchmarks.algorithms --root /tmp/algorithms pairs      # one family; existing results are kept
    python -m benchmarks.algorithms --root /tmp/more --types gmpo orpo   # these alone, into the saved results
    python -m benchmarks.algorithms --page                            # the saved results as the table of the docs
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist

from benchmarks.measurement import HERE, RESULTS, Measurement, table
from pipeline.results.view import Node, View, find_view, views
from pipeline.store import files, tables

PROJECT = "algorithms"
Z = NormalDist().inv_cdf(0.975)  # 256 differences
COMMON = ("recipe=countdown", "seed=1", f"project={PROJECT}", "monitor=none", "algorithm.repeat_times=8")
PAIRED = """
SELECT count(*), avg(difference), stddev_samp(difference), avg(before), avg(after)
FROM (SELECT task_id, avg(coalesce(accuracy, 0)) FILTER (run = 'before') AS before,
             avg(coalesce(accuracy, 0)) FILTER (run = 'after') AS after, after - before AS difference
      FROM samples WHERE decoding = ? GROUP BY task_id)"""
PAIRS = """
WITH told AS (SELECT task_id, accuracy, response, min(experience_id) AS first_id FROM experience GROUP BY ALL),
placed AS (SELECT *, row_number() OVER (PARTITION BY task_id, accuracy ORDER BY first_id) AS place FROM told)
SELECT question AS prompt, answer, good.response AS chosen, bad.response AS rejected
FROM placed AS good JOIN placed AS bad USING (task_id, place) JOIN tasks USING (task_id)
WHERE good.accuracy = 1 AND bad.accuracy = 0 ORDER BY prompt, place"""
TEXTS = "SELECT DISTINCT question || ':' || solution AS text FROM tasks WHERE split = 'sft' ORDER BY text"
HELD_OUT = "SELECT question, answer FROM tasks WHERE split = 'test' ORDER BY row"


@dataclass(frozen=True)
class Family:
    """Algorithms that are trained with the same settings.

    key: the setting that names the algorithm. settings: for the last stage, given the root directory of the runs; may
    write files that they name. before: name of the baseline evaluation.
    """

    about: str
    types: tuple[str, ...]
    settings: Callable[[Path], tuple[str, ...]]
    key: str = "stages.rft.algorithm.algorithm_type"
    before: str = "evaluate_sft"
    after: str = "evaluate_rft"


def rollouts(root: Path) -> tuple[str, ...]:
    return ("buffer.total_steps=150",)


def explored(root: Path, **questions: str) -> dict[str, Path]:
    """Answers to SQL questions about a run whose last stage only explores, each as a Parquet file."""
    launch(root, "name=explored", "stages.rft.mode=explore", "buffer.total_steps=60")
    session = tables.connect([("run", stage.directory) for stage in find_view(root, f"{PROJECT}/explored").stages])
    made = {name: root / f"{name}.parquet" for name in questions}
    for name, question in questions.items():
        session.sql(question).write_parquet(str(made[name]))
    return made


def mixed(root: Path) -> tuple[str, ...]:
    """Adds demonstrations, a quarter of each batch, to the rollouts."""
    return (*rollouts(root), "stages.rft.buffer.trainer_input.auxiliary_buffers.sft_dataset={}",
            "stages.rft.algorithm.sample_strategy_args.expert_data_ratio=0.25")


def pairs(root: Path) -> tuple[str, ...]:
    """Builds preference pairs from the tables of a stage that only explores.

    Responses have six tokens, so a beta ten times the usual value (for hundreds of tokens) is needed to keep the policy
    near the reference.
    """
    path = explored(root, pairs=PAIRS)["pairs"]
    return (f"stages.rft.buffer.trainer_input.experience_buffer.path={path}", "stages.rft.buffer.batch_size=64",
            "stages.rft.buffer.total_steps=300", "stages.rft.algorithm.optimizer.lr=1e-4",
            "stages.rft.algorithm.optimizer.lr_scheduler_type=cosine",
            "stages.rft.algorithm.policy_loss_fn_args.beta=1")


def distillation(root: Path) -> tuple[str, ...]:
    """Uses the warmup policy trained with GRPO as teacher; the student gets no reward."""
    launch(root, "name=teacher", *rollouts(root))
    teacher = trained(find_view(root, f"{PROJECT}/teacher"))
    return (*rollouts(root), f"stages.rft.model.teacher_model_path={teacher.directory}/model")


def turns(root: Path) -> tuple[str, ...]:
    """Up to three turns per attempt; evaluations use one, as everywhere."""
    key = "stages.rft.buffer.explorer_input.taskset"
    return (*rollouts(root), f"{key}.default_workflow_type=retry_workflow", f"{key}.workflow_args.feedback=null")


def demonstrations(root: Path, steps: int = 400) -> tuple[str, ...]:
    return (f"stages=[{{stage_name:sft,buffer:{{batch_size:256,total_steps:{steps}}}}}]",
            "explorer.eval_on_startup=true", "algorithm.optimizer.lr=1e-3",
            "algorithm.optimizer.lr_scheduler_type=cosine")


def texts(root: Path) -> tuple[str, ...]:
    """The demonstrations as plain text; the same held-out tasks, read from a file for lack of a pool.

    Most of the loss is on task tokens, which are unpredictable, so answers are learnt later than from demonstrations.
    """
    made = explored(root, texts=TEXTS, held_out=HELD_OUT)
    shown = "stages.sft.buffer.trainer_input.experience_buffer"
    return (*demonstrations(root, 1200), "data_processor.task_pipeline.generator=null",
            "data_processor.task_pipeline.generator_args={}", "data_processor.task_pipeline.config_path=null",
            f"buffer.explorer_input.eval_tasksets.0.path={made['held_out']}", f"{shown}.path={made['texts']}",
            f"{shown}.format.prompt_key=text")


FAMILIES = {
    "rollouts": Family("150 steps of 64 tasks x 8 rollouts", (
        "grpo", "dr_grpo", "rloo", "reinforce", "reinforceplusplus", "opmd", "asymre", "raft", "rec", "ppo", "sppo",
        "gspo", "gspo_token", "sapo", "cispo", "topr", "m2po", "decoupled_ppo", "dapo", "remax",
        "reinforceplusplus_baseline", "maxrl", "grpo_passk", "gdpo", "gmpo", "dppo_tv", "dppo_kl", "grpo_original",
        "clip_cov", "kl_cov"),
                       rollouts),
    "pairs": Family("300 steps of 64 pairs, solved before unsolved", ("dpo", "ipo", "kto", "simpo", "orpo"),
                    pairs),
    "distillation": Family("150 steps of 64 tasks x 8 rollouts, read by a teacher, without rewards",
                           ("on_policy_distill", "jsd"), distillation),
    "turns": Family("150 steps of 64 tasks x 8 attempts of up to three turns", ("gigpo", "multi_step_grpo"), turns),
    "mixed": Family("150 steps of 64 tasks x 8 rollouts and 171 demonstrations", ("mix", "mix_chord"), mixed),
    "texts": Family("1200 steps of 256 texts, from random weights", ("cpt",), texts,
                    "stages.sft.algorithm.algorithm_type", "evaluate_base", "evaluate_sft"),
    "given": Family("400 steps of 256 demonstrations, from random weights", ("sft",), demonstrations,
                    "stages.sft.algorithm.algorithm_type", "evaluate_base", "evaluate_sft"),
}


def launch(root: Path, *words: str) -> None:
    """Runs `ouro run` with the common settings and these; exits when it fails."""
    command = [sys.executable, "-m", "pipeline.cli", "run", *COMMON, f"checkpoint_root_dir={root}", *words]
    done = subprocess.run(command, cwd=HERE.parent, check=False, stdout=sys.stderr)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with exit code {done.returncode}")


def train(root: Path, name: str, family: Family) -> list[list]:
    """Trains a family; returns one row per algorithm."""
    settings = family.settings(root)
    sweep = ["-m"] if len(family.types) > 1 else []
    launch(root, f"name={name}", *settings, *sweep, f"{family.key}={','.join(family.types)}")
    made = [view for view in views(root) if re.fullmatch(f"{PROJECT}/{name}{'-.*' if sweep else ''}", view.run)]
    found = {algorithm_of(trained(view)): measured(view, family) for view in made}
    return [[one, *found[one]] for one in family.types]


def trained(view: View) -> Node:
    return [stage for stage in view.stages if stage.kind in ("train", "rft")][-1]


def algorithm_of(stage: Node) -> str:
    return files.read_json(stage.directory / "stage.json")["config"]["algorithm"]["algorithm_type"]


def measured(view: View, family: Family) -> list:
    """The row's cells after the algorithm name: see COLUMNS."""
    stages = {stage.name: stage.directory for stage in view.stages}
    session = tables.connect([("before", stages[family.before]), ("after", stages[family.after])])
    last, row, improved = trained(view), [], []
    for decoding in DECODINGS:
        tasks, difference, deviation, before, after = session.execute(PAIRED, [decoding]).fetchone()
        half = Z * deviation / tasks**0.5
        interval = f"[{100 * (difference - half):+.1f}, {100 * (difference + half):+.1f}]"
        row += [f"{before:.1%}", f"{after:.1%}", interval]
        improved += [decoding] if difference > half else []
    steps = tables.connect([("run", last.directory)]).execute("SELECT count(*) FROM steps").fetchone()[0]
    seconds = files.read_json(last.directory / files.MANIFEST)["seconds"]
    return [*row, " and ".join(improved) or "no", steps, round(seconds)]


def page() -> str:
    """The saved results as Markdown: a table, and the command that reproduces it."""
    saved = files.read_json(RESULTS / "algorithms.json")
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for name, rows in saved["result"].items():
        lines += [f"| **{name}**: {FAMILIES[name].about} |" + " |" * (len(COLUMNS) - 1)]
        lines += [f"| `{algorithm}` | " + " | ".join(map(str, values)) + " |" for algorithm, *values in rows]
    on, later = saved["machine"], ""
    for commit in dict.fromkeys(saved.get("later", {}).values()):
        names = ", ".join(f"`{name}`" for name, made in saved["later"].items() if made == commit)
        later += f" By commit {commit}: {names}."
    return "\n".join([*lines, "", f"`{saved['command']}`, seed 1, commit {saved['commit']}, on {on['cpu']}, "
                                  f"{on['cores']} cores.{later}", ""])


def add(root: Path, types: list[str]) -> None:
    """Trains single types, and puts their rows and the commit into the saved results."""
    said = Measurement("algorithms", "single types")
    saved = files.read_json(RESULTS / "algorithms.json")
    for name, family in FAMILIES.items():
        chosen = tuple(one for one in family.types if one in types)
        made = train(root, name, replace(family, types=chosen)) if chosen else []
        rows = {row[0]: row for row in (*saved["result"][name], *made)}
        saved["result"][name] = [rows[one] for one in family.types if one in rows]
        saved["later"] = saved.get("later", {}) | dict.fromkeys(chosen, said.facts["commit"])
    (RESULTS / "algorithms.json").write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")


DECODINGS = ("sampled", "greedy")
COLUMNS = ("algorithm", "sampled, before", "after", "points, 95%", "greedy, before", "after", "points, 95%", "improved",
           "steps", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", choices=[[], *FAMILIES], help="default: all")
    parser.add_argument("--root", type=Path, help="directory for store/ and runs/")
    parser.add_argument("--types", nargs="+", default=[], help="train these alone; their rows join the saved results")
    parser.add_argument("--page", action="store_true", help="run nothing: print the saved results as Markdown")
    given = parser.parse_args()
    if given.page:
        print(page(), end="")
        return
    if given.root is None:
        parser.error("--root is needed")
    if given.types:
        add(given.root.resolve(), given.types)
        return
    said = Measurement("algorithms", "Every algorithm trained on countdown, seed 1: share of held-out tasks solved")
    result = {}
    for name in given.families or FAMILIES:
        family = FAMILIES[name]
        rows = train(given.root.resolve(), name, family)
        said.add(f"{name}: {family.about}\n" + table(COLUMNS, rows))
        result[name] = rows
    said.save(result)


if __name__ == "__main__":
    main()
