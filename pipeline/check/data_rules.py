"""Rules between the data settings: tasksets, formats and curation. Part of the configuration check."""

import re
from typing import Any

from pipeline.plan.modes import kind_of
from pipeline.settings.algorithms import PAIR_TYPES
from pipeline.settings.data import (
    COLUMNS,
    EXPERTS,
    SHOWN,
    BufferFormat,
    DataSelector,
    Format,
    eval_places,
    train_places,
)
from pipeline.store.errors import nearest

INPUT, PIPELINE = "buffer.explorer_input", "data_processor.task_pipeline"


def data_problems(c: dict) -> list[str]:
    """Lists every broken rule, one line each."""
    source, buffer = c["buffer"]["explorer_input"], c["buffer"]["trainer_input"]["experience_buffer"]
    problems = _exclusive(source) + _names(source)
    for key, taskset in [*_train_sets(source), *_eval_sets(source)]:
        problems += _set_problems(key, taskset, Format)
        if taskset["path"] is None and taskset["split"] not in ("train", "test"):
            problems.append(f"{key}.split={taskset['split']}: without a path a set has the curated rows of "
                            f"{PIPELINE}; needed train or test.")
    problems += _set_problems(SHOWN, buffer, BufferFormat) + _texts(c, buffer)
    for name, one in c["buffer"]["trainer_input"]["auxiliary_buffers"].items():
        problems += _set_problems(f"{EXPERTS}.{name}", one, BufferFormat)
    problems += _format_problems(f"{PIPELINE}.format", c["data_processor"]["task_pipeline"]["format"])
    for key, taskset in _eval_sets(source):
        if taskset["data_selector"] != vars(DataSelector()):
            problems.append(f"{key}.data_selector: an eval set is answered whole, in the order of its file; leave it.")
    if kind_of(c) in ("rft", "rollout"):
        problems += [p for key, taskset in _train_sets(source) for p in _rollout_problems(key, taskset, c)]
    return (problems + _curation(c["data_processor"]["task_pipeline"]) + _without_rows(c) + _without_pairs(c)
            + _without_split(c))


def _texts(c: dict, buffer: dict) -> list[str]:
    """Checks the buffer settings of cpt, which trains on plain text, and of the other algorithms."""
    algorithm, columns = c["algorithm"]["algorithm_type"], buffer["format"]
    if kind_of(c) != "train":
        return []
    plain = columns["prompt_type"] == "plaintext"
    if algorithm == "cpt" and buffer["path"] is None:
        return [f"algorithm_type=cpt: {SHOWN}.path is not set; needed files of plain text, under format.prompt_key."]
    if algorithm == "cpt" and not plain:
        return [f"algorithm_type=cpt with {SHOWN}.format.prompt_type={columns['prompt_type']}: it trains on plain "
                "text. Set plaintext, or train on conversations with algorithm_type=sft."]
    if algorithm != "cpt" and columns["response_key"] is None:
        return [f"{SHOWN}.format.response_key=null: {algorithm} trains on responses, and only cpt on plain text. Name "
                "the column of the response."]
    return []


def _train_sets(source: dict) -> list[tuple[str, dict]]:
    return [(f"{INPUT}.{place}", taskset) for place, taskset in train_places(source)]


def _eval_sets(source: dict) -> list[tuple[str, dict]]:
    return [(f"{INPUT}.{place}", taskset) for place, taskset in eval_places(source)]


def _exclusive(source: dict) -> list[str]:
    """Rejects a `taskset` next to `tasksets` with more than a name (recipes set one): the rest would be ignored."""
    if not source["tasksets"]:
        return []
    single = source["taskset"]
    given = [k for k in ("path", "limit", "subset_name", "repeat_times", "default_workflow_type",
                         "default_reward_fn_type", "workflow_args", "reward_fn_args") if single[k]]
    given += [k for k, kind in (("format", Format), ("data_selector", DataSelector)) if single[k] != vars(kind())]
    return [f"{INPUT}.taskset (sets {', '.join(given)}) and {INPUT}.tasksets exclude each other: move it into the "
            "list."] if given else []


def _names(source: dict) -> list[str]:
    problems = []
    for what, sets in (("tasksets", source["tasksets"]), ("eval_tasksets", source["eval_tasksets"])):
        names = [taskset["name"] for taskset in sets]
        if len(set(names)) < len(names):
            problems.append(f"{INPUT}.{what} are named {', '.join(names)}: rows and scores are told apart by name, so "
                            "needed names that differ.")
    return problems


def _set_problems(key: str, taskset: dict, kind: type) -> list[str]:
    """Checks the rules within one set or experience buffer. kind: the class of its format."""
    path = taskset["path"]
    names = [path] if isinstance(path, str) else path
    if path is None:
        own = [k for k, v in taskset["format"].items() if v != getattr(kind(), k) and not k.startswith("enable_")]
        unread = [*(f"format.{k}" for k in own), *(["subset_name"] if taskset["subset_name"] else [])]
        return [f"{key}.{', '.join(unread)}: read only with {key}.path; without one the rows are those of {PIPELINE}, "
                f"whose format is {PIPELINE}.format."] if unread else []
    if not isinstance(names, list) or not names or not all(isinstance(n, str) and n for n in names):
        return [f"{key}.path={path!r}: needed a path, or a list of paths."]
    problems = _format_problems(f"{key}.format", taskset["format"])
    if not re.fullmatch(r"\w[\w.-]*", taskset["split"]):
        problems.append(f"{key}.split={taskset['split']!r}: needed the name of a split, such as train; for the first "
                        "rows of one set limit.")
    return problems


def _format_problems(key: str, columns: dict) -> list[str]:
    if columns["prompt_type"] == "messages":
        unread = [k for k in ("system_prompt", "system_prompt_key") if columns[k] is not None]
        return [f"{key}.{k}: messages have their system turn themselves; it goes with prompt_type=plaintext. For every "
                f"prompt that has none: {INPUT}.system_prompt." for k in unread]
    return [f"{key}.messages_key={columns['messages_key']}: read only with prompt_type=messages."] if columns[
        "messages_key"] is not None else []


def _rollout_problems(key: str, taskset: dict, c: dict) -> list[str]:
    """Rejects rollout settings in a training set that only the whole run may set."""
    algorithm, problems = c["algorithm"], []
    if taskset["repeat_times"] not in (None, algorithm["repeat_times"]):
        problems.append(f"{key}.repeat_times={taskset['repeat_times']}: rollouts to train on follow "
                        f"algorithm.repeat_times={algorithm['repeat_times']}: set that.")
    for name, value in taskset["rollout_args"].items():
        if value not in (None, c["model"][name]):
            problems.append(f"{key}.rollout_args.{name}={value}: rollouts to train on follow "
                            f"model.{name}={c['model'][name]}, by which the trainer scores them: set that.")
    return problems


def _curation(pipeline: dict) -> list[str]:
    problems = []
    if pipeline["generator"] and pipeline["inputs"]:
        problems.append(f"{PIPELINE}: generator and inputs exclude each other: set one.")
    if pipeline["config_path"] and pipeline["operators"]:
        problems.append(f"{PIPELINE}: config_path and operators exclude each other: set one to null or [].")
    if pipeline["target_fields"] and not pipeline["operators"]:
        problems.append(f"{PIPELINE}.target_fields goes with operators; a recipe (config_path) has text_keys itself.")
    problems += [f"{PIPELINE}.target_fields: no column '{name}'.{nearest(name, COLUMNS)} Needed our names: "
                 f"{', '.join(COLUMNS)}." for name in pipeline["target_fields"] if name not in COLUMNS]
    return problems + [f"{PIPELINE}.operators.{i}: {wrong}" for i, operator in enumerate(pipeline["operators"])
                       if (wrong := _operator_problem(operator))]


def _operator_problem(operator: dict[str, Any]) -> str | None:
    if not isinstance(operator.get("name"), str):
        return f"{operator}: needed a name, and args if it takes any."
    unknown = sorted(set(operator) - {"name", "args"})
    if unknown:
        return f"unknown {', '.join(unknown)}; needed name and args."
    if not isinstance(operator.get("args") or {}, dict):
        return f"args={operator['args']!r}: needed a mapping of argument to value."
    return None


def _without_pairs(c: dict) -> list[str]:
    """Returns the line for preference training on data without pairs."""
    algorithm, pool = c["algorithm"]["algorithm_type"], c["data_processor"]["task_pipeline"]
    if algorithm not in PAIR_TYPES or kind_of(c) != "train" or c["mode"] == "explore":  # see check/rules.py
        return []
    key = "buffer.trainer_input.experience_buffer"
    buffer = c["buffer"]["trainer_input"]["experience_buffer"]
    if buffer["path"] is None and not pool["inputs"]:
        made = f"the generator {pool['generator']} makes none" if pool["generator"] else "nothing gives rows"
        return [f"algorithm.algorithm_type={algorithm} trains on pairs of a preferred and a rejected response, and "
                f"{made}. Set {key}.path to a file of pairs; its columns are {key}.format.chosen_key and rejected_key."]
    where, columns = (key, buffer["format"]) if buffer["path"] is not None else (PIPELINE, pool["format"])
    return [f"{where}.format.{name}: needed the column of a pair's response, for algorithm_type={algorithm}; found "
            "null." for name in ("chosen_key", "rejected_key") if columns[name] is None]


def _without_split(c: dict) -> list[str]:
    """Lists sets that need a split of the pool that nothing creates: without curation all rows are training tasks.

    Judged per training stage only.
    """
    pool = c["data_processor"]["task_pipeline"]
    if c["stages"] or pool["config_path"] or pool["operators"] or not (pool["generator"] or pool["inputs"]):
        return []
    algorithm, buffer = c["algorithm"]["algorithm_type"], c["buffer"]["trainer_input"]["experience_buffer"]
    wanted = []
    if kind_of(c) == "train" and algorithm != "cpt" and buffer["path"] is None:  # cpt without a path: see `_texts`
        wanted.append((SHOWN, "pairs" if algorithm in PAIR_TYPES else "demonstrations"))
    wanted += [(key, "tasks of split test") for key, one in _eval_sets(c["buffer"]["explorer_input"])
               if one["path"] is None and one["split"] == "test"]
    return [f"{key}.path is not set, and of the rows of {PIPELINE} none are {what}: without curation nothing splits "
            f"them. Set {PIPELINE}.config_path to a recipe with split_by_hash_mapper (conf/data_juicer/), or the path."
            for key, what in wanted]


def _without_rows(c: dict) -> list[str]:
    """Lists sets without a row source while others have files; a run with no data: check/stage_rules.py."""
    return [] if no_file(c) else rowless(c)


def no_file(c: dict) -> bool:
    """Returns whether no set of a stage names a file."""
    source, given = c["buffer"]["explorer_input"], c["buffer"]["trainer_input"]
    sets = [given["experience_buffer"], *given["auxiliary_buffers"].values()]
    return all(one["path"] is None for one in [*sets, *(one for _, one in [*_train_sets(source), *_eval_sets(source)])])


def rowless(c: dict) -> list[str]:
    """Returns the sets of a stage without a row source; other rules cover buffers of pairs and texts."""
    pool = c["data_processor"]["task_pipeline"]
    if pool["generator"] or pool["inputs"]:
        return []
    source, buffer = c["buffer"]["explorer_input"], c["buffer"]["trainer_input"]["experience_buffer"]
    kind = kind_of(c)
    trained = [(SHOWN, buffer)] if kind == "train" and c["algorithm"]["algorithm_type"] == "sft" else []
    if kind in ("rft", "rollout"):
        trained = _train_sets(source)
    experts = []
    if kind == "rft" and c["algorithm"]["sample_strategy"] == "mix":
        experts = list(c["buffer"]["trainer_input"]["auxiliary_buffers"].items())
    trained += [(f"{EXPERTS}.{name}", one) for name, one in experts]
    return [f"{key}.path is not set, and {PIPELINE} has neither generator nor inputs to take rows from: set one."
            + (_as_demonstrations(source) if key == SHOWN else "")
            for key, taskset in [*trained, *_eval_sets(source)] if taskset["path"] is None]


def _as_demonstrations(source: dict) -> str:
    """Returns the setting that trains on the solutions of the first set of tasks that has files, or an empty text."""
    for _, one in _train_sets(source):
        if one["path"] is not None and (columns := one["format"])["prompt_type"] == "plaintext":
            said = f"{{prompt_key: {columns['prompt_key']}, response_key: {columns['solution_key'] or 'solution'}}}"
            return (f" Where the tasks have solutions, below trainer_input: experience_buffer: {{path: {one['path']}, "
                    f"format: {said}}}")
    return ""
