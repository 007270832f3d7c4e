"""Trains every algorithm and measures the change in held-out accuracy, with 95% intervals.

Each algorithm trains the countdown recipe with the same warmup, tasks and seed as the others of its family and the
settings of the family's line. Families that do not learn from rewards generate their data first: preference pairs are
solved and unsolved responses of the warmed-up policy to the same task, the teacher is that policy trained with `grpo`.
The difference is paired: accuracy after minus before on each of 256 held-out tasks, from 8 responses sampled at
temperature 1 and from the greedy one, with 95% intervals over tasks. Runs are made side by side, two cores each; what
is complete is not made again.

    python -m benchmarks.algorithms --root /tmp/algorithms            # all of them, an hour on two idle cores
    python -m benchmarks.algorithms --root /tmp/algorithms --types ppo grpo --seeds 1 2 3   # joins the saved results
    python -m benchmarks.algorithms --page                            # the saved results as the table of the docs
"""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

from benchmarks.lanes import required
from benchmarks.measurement import RESULTS, Measurement, run_or_page, table
from ouroboros.pipeline.results.view import Node, View, find_view
from ouroboros.pipeline.store import files, tables

PROJECT = "algorithms"
Z = NormalDist().inv_cdf(0.975)  # 256 differences
COMMON = ("recipe=countdown", f"project={PROJECT}", "monitor=none", "algorithm.repeat_times=8")
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

    key: the setting that names the algorithm. settings: for the last stage, given the root directory of the runs and
    the seed; may write files that they name. explores: these are made of an explored run. before, after: names of the
    evaluations.
    """

    about: str
    types: tuple[str, ...]
    settings: Callable[[Path, int], tuple[str, ...]]
    key: str = "stages.rft.algorithm.algorithm_type"
    before: str = "evaluate_sft"
    after: str = "evaluate_rft"
    explores: bool = False


def rollouts(root: Path, seed: int) -> tuple[str, ...]:
    return ("buffer.total_steps=150",)


def explored(root: Path, seed: int, **questions: str) -> dict[str, Path]:
    """Answers to SQL questions about a run whose last stage only explores, each as a Parquet file."""
    made = {name: root / f"{name}-{seed}.parquet" for name in questions}
    with tables.connect([("run", stage.directory) for stage in made_run(root, "explored", seed).stages]) as session:
        for name, question in questions.items():
            session.sql(question).write_parquet(str(made[name]))
    return made


def mixed(root: Path, seed: int) -> tuple[str, ...]:
    """Adds demonstrations, a quarter of each batch, to the rollouts."""
    return (*rollouts(root, seed), "stages.rft.buffer.trainer_input.auxiliary_buffers.sft_dataset={}",
            "stages.rft.algorithm.sample_strategy_args.expert_data_ratio=0.25")


def pairs(root: Path, seed: int) -> tuple[str, ...]:
    """Builds preference pairs from the tables of a stage that only explores.

    Responses have six tokens, so a beta ten times the usual value (for hundreds of tokens) is needed to keep the policy
    near the reference.
    """
    path = explored(root, seed, pairs=PAIRS)["pairs"]
    return (f"stages.rft.buffer.trainer_input.experience_buffer.path={path}", "stages.rft.buffer.batch_size=64",
            "stages.rft.buffer.total_steps=300", "stages.rft.algorithm.optimizer.lr=1e-4",
            "stages.rft.algorithm.optimizer.lr_scheduler_type=cosine",
            "stages.rft.algorithm.policy_loss_fn_args.beta=1")


def distillation(root: Path, seed: int) -> tuple[str, ...]:
    """Uses the warmup policy trained with GRPO as teacher; the student gets no reward."""
    teacher = trained(made_run(root, "rollouts-grpo", seed))
    return (*rollouts(root, seed), f"stages.rft.model.teacher_model_path={teacher.directory}/model")


def turns(root: Path, seed: int) -> tuple[str, ...]:
    """Up to three turns per attempt; evaluations use one, as everywhere."""
    key = "stages.rft.buffer.explorer_input.taskset"
    return (*rollouts(root, seed), f"{key}.default_workflow_type=retry_workflow",
            f"{key}.workflow_args.feedback=null")


def demonstrations(root: Path, seed: int, steps: int = 400) -> tuple[str, ...]:
    return (f"stages=[{{stage_name:sft,buffer:{{batch_size:256,total_steps:{steps}}}}}]",
            "explorer.eval_on_startup=true", "algorithm.optimizer.lr=1e-3",
            "algorithm.optimizer.lr_scheduler_type=cosine")


def texts(root: Path, seed: int) -> tuple[str, ...]:
    """The demonstrations as plain text; the same held-out tasks, read from a file for lack of a pool.

    Most of the loss is on task tokens, which are unpredictable, so answers are learnt later than from demonstrations.
    """
    made = explored(root, seed, texts=TEXTS, held_out=HELD_OUT)
    shown = "stages.sft.buffer.trainer_input.experience_buffer"
    return (*demonstrations(root, seed, 1200), "data_processor.task_pipeline.generator=null",
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
                    pairs, explores=True),
    "distillation": Family("150 steps of 64 tasks x 8 rollouts, read by a teacher, without rewards",
                           ("on_policy_distill", "jsd", "gkd"), distillation),
    "turns": Family("150 steps of 64 tasks x 8 attempts of up to three turns", ("gigpo", "multi_step_grpo"), turns),
    "mixed": Family("150 steps of 64 tasks x 8 rollouts and 171 demonstrations", ("mix", "mix_chord"), mixed),
    "texts": Family("1200 steps of 256 texts, from random weights", ("cpt",), texts,
                    "stages.sft.algorithm.algorithm_type", "evaluate_base", "evaluate_sft", explores=True),
    "given": Family("400 steps of 256 demonstrations, from random weights", ("sft",), demonstrations,
                    "stages.sft.algorithm.algorithm_type", "evaluate_base", "evaluate_sft"),
}


EXPLORED = ("stages.rft.mode=explore", "buffer.total_steps=60")
DECODINGS = ("sampled", "greedy")
COLUMNS = ("algorithm", "seed", "sampled, before", "after", "points, 95%", "greedy, before", "after", "points, 95%",
           "improved", "steps", "tokens sampled", "seconds")
TOKENS = "SELECT sum(tokens) FROM rollouts"


def made_run(root: Path, name: str, seed: int) -> View:
    return find_view(root, f"{PROJECT}/{name}-{seed}")


def train(root: Path, types: Iterable[str], seeds: Iterable[int]) -> dict[str, list[list]]:
    """Trains these algorithms; returns the rows of each family."""
    chosen = {name: [one for one in family.types if one in types] for name, family in FAMILIES.items()}
    cases = [(name, one, seed) for seed in seeds for name, some in chosen.items() for one in some]
    seeds_of = {seed: {name for name, _, of in cases if of == seed} for _, _, seed in cases}
    first = {f"explored-{seed}": (*COMMON, f"seed={seed}", *EXPLORED) for seed, names in seeds_of.items()
             if any(FAMILIES[name].explores for name in names)}
    cases += [("rollouts", "grpo", seed) for seed, names in seeds_of.items()
              if "distillation" in names and ("rollouts", "grpo", seed) not in cases]
    late = [case for case in cases if FAMILIES[case[0]].explores or case[0] == "distillation"]
    required(root, first | {name_of(case): words(root, case) for case in cases if case not in late})
    required(root, {name_of(case): words(root, case) for case in late})
    return {name: [row(root, (name, one, seed)) for one in some for seed in seeds] for name, some in chosen.items()}


def name_of(case: tuple[str, str, int]) -> str:
    family, algorithm, seed = case
    return f"{family}-{algorithm}-{seed}"


def words(root: Path, case: tuple[str, str, int]) -> tuple[str, ...]:
    """The overrides of a run; its name excepted."""
    name, algorithm, seed = case
    family = FAMILIES[name]
    return (*COMMON, f"seed={seed}", *family.settings(root, seed), f"{family.key}={algorithm}")


def trained(view: View) -> Node:
    return [stage for stage in view.stages if stage.kind in ("train", "rft")][-1]


def paired(session, decoding: str) -> tuple[float, float, float, float]:
    """The mean difference over tasks of the runs `before` and `after`, half of its 95% interval, and both means."""
    tasks, difference, deviation, before, after = session.execute(PAIRED, [decoding]).fetchone()
    return difference, Z * deviation / tasks**0.5, before, after


def row(root: Path, case: tuple[str, str, int]) -> list:
    """The cells of COLUMNS."""
    family, view = FAMILIES[case[0]], made_run(root, f"{case[0]}-{case[1]}", case[2])
    stages = {stage.name: stage.directory for stage in view.stages}
    cells, improved, last = [], [], trained(view)
    with tables.connect([("before", stages[family.before]), ("after", stages[family.after])]) as session:
        for decoding in DECODINGS:
            difference, half, before, after = paired(session, decoding)
            interval = f"[{100 * (difference - half):+.1f}, {100 * (difference + half):+.1f}]"
            cells += [f"{before:.1%}", f"{after:.1%}", interval]
            improved += [decoding] if difference > half else []
    with tables.connect([("run", last.directory)]) as session:
        steps = session.execute("SELECT count(*) FROM steps").fetchone()[0]
        tokens = session.execute(TOKENS).fetchone()[0] if tables.steps_present(last.directory, "rollouts") else None
    seconds = files.read_json(last.directory / files.MANIFEST)["seconds"]
    return [case[1], case[2], *cells, " and ".join(improved) or "no", steps, tokens, round(seconds)]


def page() -> str:
    """The saved results as Markdown: a table, and the command that reproduces it."""
    saved = files.read_json(RESULTS / "algorithms.json")
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for name, rows in saved["result"].items():
        lines += [f"| **{name}**: {FAMILIES[name].about} |" + " |" * (len(COLUMNS) - 1)]
        lines += [f"| `{algorithm}` | " + " | ".join("" if value is None else str(value) for value in values) + " |"
                  for algorithm, *values in rows]
    on, later = saved["machine"], ""
    for commit in dict.fromkeys(saved.get("later", {}).values()):
        seeds: dict[str, list[str]] = {}
        for row, made in saved["later"].items():
            if made == commit:
                seeds.setdefault(row.split()[0], []).append(row.split()[1])
        names = ", ".join(f"`{name}` ({', '.join(some)})" for name, some in seeds.items())
        later += f" By commit {commit}: {names}."
    return "\n".join([*lines, "", f"`{saved['command']}`, commit {saved['commit']}, on {on['cpu']}, "
                                  f"{on['cores']} cores.{later} In brackets: seeds.", ""])


def joined(said: Measurement, made: dict[str, list[list]]) -> dict[str, list[list]]:
    """The saved rows with those that were made now in their places; `later`: algorithm and seed -> commit of these."""
    saved = files.read_json(RESULTS / "algorithms.json")
    said.facts = {name: value for name, value in saved.items() if name != "result"} | {
        "later": saved.get("later", {}) | {f"{row[0]} {row[1]}": said.facts["commit"]
                                           for rows in made.values() for row in rows}}
    order = {one: index for family in FAMILIES.values() for index, one in enumerate(family.types)}
    return {name: sorted({(row[0], row[1]): row for row in (*saved["result"].get(name, []), *rows)}.values(),
                         key=lambda row: (order[row[0]], row[1])) for name, rows in made.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="+", default=[], help="train these alone; their rows join the saved results")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    given = run_or_page(parser, page)
    if given is None:
        return
    said = Measurement("algorithms", "Algorithms trained on countdown: share of held-out tasks solved")
    types = given.types or [one for family in FAMILIES.values() for one in family.types]
    made = train(given.root.resolve(), types, given.seeds)
    for name, rows in made.items():
        said.add(f"{name}: {FAMILIES[name].about}\n" + table(COLUMNS, rows))
    said.save(joined(said, made) if given.types else made)


if __name__ == "__main__":
    main()
