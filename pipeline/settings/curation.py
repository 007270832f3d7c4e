"""Settings of what is done to data: curation of tasks, and of experience before it is trained on."""

from collections.abc import Iterator
from typing import Any

from ouroboros.pipeline.settings import declared
from ouroboros.pipeline.settings.arguments.base import problems
from ouroboros.pipeline.settings.arguments.experience import DATA_JUICER, EXPERIENCE, SHAPING, UNFIT, Shaping
from ouroboros.pipeline.settings.arguments.rows import PRIORITY_WEIGHTS
from ouroboros.pipeline.settings.data import COLUMNS, PIPELINE, TaskFormat
from ouroboros.pipeline.settings.setting import Section, rule, section, setting
from ouroboros.pipeline.store.errors import Problem, nearest


def malformed(operators: list[dict[str, Any]], key: str) -> Iterator[Problem]:
    """Yields the problems of elements that are not a name and its args. key: of the list."""
    for i, one in enumerate(operators):
        unknown = sorted(set(one) - {"name", "args"})
        if not isinstance(one.get("name"), str):
            yield Problem(f"{key}.{i}", f"{one}: needed a name, and args if it takes any.")
        elif unknown:
            yield Problem(f"{key}.{i}", f"unknown {', '.join(unknown)}; needed name and args.")
        elif not isinstance(one.get("args") or {}, dict):
            yield Problem(f"{key}.{i}.args", "needed a mapping of argument to value.", found=one["args"])


class TaskPipeline(Section):
    generator: str | None = setting(None, "makes raw tasks instead of reading inputs; name in operators/generate.py",
                                     choices=tuple(declared.GENERATORS))
    generator_args: dict[str, Any] = setting({}, "arguments of the generator")
    inputs: list[str] = setting([], "files and directories for tasksets without a path, split by the recipe")
    split: str = setting("train", "the split of inputs to read where directories tell splits apart")
    format: TaskFormat = section(TaskFormat)
    config_path: str | None = setting(None, "Data-Juicer recipe, in its own YAML format; null: no such step")
    operators: list[dict[str, Any]] = setting([], "Data-Juicer operators in place of config_path: name and args each")
    target_fields: list[str] = setting(
        [], "fields that operators look at by default, as text_keys in a recipe: the first of these; "
            + ", ".join(COLUMNS))
    priority_weights: dict[str, float] = setting(
        {}, "weights of a training task's priority, by which the tasks of a set are ordered, the greatest first: "
            f"{', '.join(PRIORITY_WEIGHTS)}; {{}}: the order of the file, or with top_k the weights of Trinity-RFT "
            f"({', '.join(map(str, PRIORITY_WEIGHTS.values()))})")
    top_k: int = setting(-1, "number of training tasks of a set to keep, those of the greatest priority; -1: all",
                         ge=-1)
    num_process: int = setting(1, "number of processes that the rows of a set are shared among", ge=1, how=True)

    @rule
    def _one_source(self):
        if self.generator and self.inputs:
            yield Problem("generator", f"excludes {PIPELINE}.inputs.", "Set one.", found=self.generator)

    @rule
    def _one_recipe(self):
        if self.config_path and self.operators:
            yield Problem("config_path", f"excludes {PIPELINE}.operators.", "Set one to null or [].",
                          found=self.config_path)
        if self.target_fields and not self.operators:
            yield Problem("target_fields", "goes with operators; a recipe (config_path) has text_keys itself.")

    @rule
    def _columns(self):
        for name in self.target_fields:
            if name not in COLUMNS:
                yield Problem("target_fields", f"no column '{name}'.{nearest(name, COLUMNS)} Needed our names: "
                              f"{', '.join(COLUMNS)}.")

    @rule
    def _operators(self):
        yield from malformed(self.operators, "operators")

    @rule
    def _priority(self):
        for name in self.priority_weights:
            if name not in PRIORITY_WEIGHTS:
                yield Problem("priority_weights", f"no weight '{name}'.{nearest(name, PRIORITY_WEIGHTS)} Needed "
                              f"{', '.join(PRIORITY_WEIGHTS)}.")
        if self.top_k == 0:
            yield Problem("top_k", "leaves no task. Needed 1 or more, or -1 for all.", found=0)


class ExperiencePipeline(Section):
    """What happens to the responses of an explorer step before advantages are computed; `experience` stays as it is."""

    acts = "explorer"
    operators: list[dict[str, Any]] = setting(
        [], "operators on the attempts of an explorer step, in order: name and args each; "
            f"{', '.join(EXPERIENCE)}, a Data-Juicer operator, or module:function; their verdicts, scores and rewards "
            "are the table curated")
    save_input: bool = setting(True, "keep the rows as they were before the operators: always so, as the table "
                                     "experience", choices=(True,), how=True)

    @rule
    def _operators(self):
        found = list(malformed(self.operators, "operators"))
        yield from found
        for i, one in enumerate(self.operators if not found else ()):
            yield from _misused(one["name"], one.get("args") or {}, f"operators.{i}")


def _misused(name: str, args: dict[str, Any], key: str) -> Iterator[Problem]:
    """Yields the problems of an operator on experience; those of Data-Juicer's are found where it is imported."""
    if name in UNFIT:
        yield Problem(f"{key}.name", UNFIT[name], found=name)
    wrong = problems(f"{key}.args", name, [EXPERIENCE[name]], args) if name in EXPERIENCE else []
    yield from wrong
    if wrong or name not in (DATA_JUICER, SHAPING):
        return
    inner = f"{key}.args.{'operators' if name == DATA_JUICER else 'reward_shaping_configs'}"
    listed = args.get(inner.rpartition(".")[2]) or []
    if name == SHAPING:
        for k, each in enumerate(listed):
            yield from problems(f"{inner}.{k}", name, [Shaping], each)
            if each.get("weight") == 0:
                yield Problem(f"{inner}.{k}.weight", "leaves rewards as they are, or makes all 0 or infinite.", found=0)
        return
    if bool(listed) == bool(args.get("config_path")):
        yield Problem(f"{key}.args", "needed operators or config_path, a Data-Juicer recipe, and not both.")
    yield from malformed(listed, inner)
    yield from (Problem(f"{inner}.{k}.name", UNFIT[each["name"]], found=each["name"])
                for k, each in enumerate(listed) if each.get("name") in UNFIT)


class DataProcessor(Section):
    acts = "never"
    task_pipeline: TaskPipeline = section(TaskPipeline)
    experience_pipeline: ExperiencePipeline = section(ExperiencePipeline)
