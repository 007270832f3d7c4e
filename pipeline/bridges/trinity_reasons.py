"""Why a value of a Trinity-RFT key that works in general cannot stand where it stands."""

import math
import re
from typing import Any

from pipeline.bridges.source import Given, scalar
from pipeline.bridges.translation import SETTINGS, Path, places
from pipeline.settings import guide, schema
from pipeline.settings.algorithms import WITH_CRITIC, filled
from pipeline.settings.monitors import MONITORS
from pipeline.settings.setting import about
from pipeline.settings.train_batch import REPLAY

DATABASE = re.compile(r"(sqlite|postgres(ql)?|mysql)(\+\w+)?:", re.I)
TRAINING_SET = re.compile(r"buffer\.explorer_input\.(taskset|tasksets\.\*)\.")
OF_CRITIC = ("trainer.critic_warmup", "model.critic_model_path", "trainer.critic")
# what is learnt hangs on these: an unknown name stays, so that the recipe does not compose until it is settled
CHOSEN = re.compile(r"(algorithm_type|workflow_type|_fn|_fn_type)$")
STAGES = "needed a list of stages, each a mapping of settings with its stage_name."


def of_structure(given: Given) -> str | None:
    """Why a key is no setting at all: a section that is no mapping, stages that are no list of them."""
    path = given.path
    if path[0] == "stages" and (len(path) < 3 or not isinstance(path[1], int)):
        return None if given.value == [] else f"{STAGES} Found {_shown(given.value)}."
    key = guide.general(given.key)
    sections = (k for k in (*SETTINGS, *guide.KEYS) if k.startswith(f"{key}."))
    if key in SETTINGS or key in guide.KEYS or next(sections, None) is None:
        return None
    return "no settings stand there." if given.value in (None, {}) else (
        f"needed a mapping of settings, found {_shown(given.value)}.")


def of_value(general: str, given: Given, values: dict[Path, Any]) -> str | None:
    """Why a value of a key that works means nothing here."""
    if general.endswith(".path") and general.startswith("buffer.") and _is_database(given.path[:-1], values):
        return "the address of a database or a queue's copy: here data are files, and experience is tables."
    if without := _without_path(given.path, values):
        return without
    of_replay = given.path[:given.path.index("replay_buffer") + 1] if "replay_buffer" in given.path else given.path
    reused = values.get((*of_replay, "reuse_cooldown_time")) is not None
    if general.startswith(REPLAY) and given.value is not False and (general.endswith("time") or not reused):
        return ("rows are used again there after a cool-down in seconds, and without one not at all: set "
                "reuse_cooldown_time, in trainer steps, and replay_ratio.")
    if general.startswith("monitor.monitor_args.") and (unknown := _not_of_monitor(given.path, values)):
        return unknown
    if TRAINING_SET.match(general) and general.endswith(".repeat_times"):
        return "rollouts to train on follow algorithm.repeat_times, there as here."
    if general == "cluster.node_num" and isinstance(given.value, int) and given.value > 1:
        return (f"a stage runs on one machine, so the recipe is for one of the {given.value}: its own "
                "cluster.gpu_per_node GPUs. For more, take a machine with more.")
    return without_critic(general, given.path, values)


def is_nothing(given: Given) -> bool:
    """Whether a value says that nothing is set: None in quotes, and of one of our settings an empty text."""
    return given.value == "None" or (given.value == "" and guide.general(given.key) in SETTINGS)


def of_judge(general: str, values: dict[Path, Any]) -> str | None:
    """Why a key of an auxiliary model means nothing: workflows of the original ask it."""
    if not general.startswith("explorer.auxiliary_models.") or not _names_rewards(values):
        return None
    return ("a judge that a workflow or reward function of the original asks: none is served here, and a reward "
            "function of your own can ask a server that you run. Here a model of this section scores by itself.")


def without_effect(general: str, value: Any, values: dict[Path, Any]) -> str | None:
    """Why a key that works does nothing, there as here: it is about sets that there are none of, or of one order."""
    if general == "explorer.eval_interval" and not any("eval_tasksets" in path[:-1] for path in values):
        return "off there too: no set is given to evaluate on."
    if general == "algorithm.sample_strategy" and value == "warmup" and not any("sft_warmup_dataset" in path
                                                                                for path in values):
        return "without demonstrations to warm up on, there as here the default."
    if general.startswith("buffer.explorer_input.eval_tasksets.*.") and "_selector." in general:
        return "an evaluation answers every task of a set, so their order changes nothing."
    return None


def without_critic(key: str, path: Path, values: dict[Path, Any]) -> str | None:
    """Why a setting of the critic means nothing: the algorithm, or that of every stage, has none. key: one of ours."""
    if not any(key == name or key.startswith(f"{name}.") for name in OF_CRITIC):
        return None
    stages = sorted({p[:2] for p in values if p[0] == "stages" and len(p) > 2}, key=str)
    scopes = [path[:2]] if path[0] == "stages" else stages or [()]
    kinds = dict(_algorithm(scope, values) for scope in scopes)
    if any(kind is None or "${" in f"{kind}{function}" or function in WITH_CRITIC for kind, function in kinds.items()):
        return None
    return f"off there too: {' and '.join(kinds)} has no critic."


def _algorithm(scope: Path, values: dict[Path, Any]) -> tuple[str | None, str | None]:
    """Type and advantage function of a stage, or with an empty scope those of all; a type of None is not given."""
    def given(name: str) -> Any:
        of_all = ("algorithm", name)
        return values.get((*scope, *of_all), values.get(of_all))

    if given("algorithm_type") is None:
        return None, None
    kind = str(given("algorithm_type"))
    parts = {"algorithm_type": kind, "advantage_fn": given("advantage_fn"), "advantage_fn_args": {}}
    return kind, filled(parts)["advantage_fn"]


def misfit(key: str, value: Any) -> str | None:
    """Why a value is not of the type, or none of the choices, of our setting `key`; None where that is not known."""
    item = SETTINGS.get(guide.general(key))
    if item is None or value is None or (isinstance(value, str) and "${" in value):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None  # told with the bounds
    choices, problems = about(item).choices, _typed(key, value)
    if problems:
        return problems[0].split(": ", 1)[1].removesuffix(".") + "; our default applies."
    if choices and value not in choices and not CHOSEN.search(key):
        return f"needed one of {', '.join(map(str, choices))}; our default applies."
    return None


def _typed(key: str, value: Any) -> list[str]:
    """The line for a value of another type than our setting has."""
    return [line for line in schema.setting_problems(guide.general(key), value) if line.startswith("key '")]


def as_number(key: str, value: Any) -> Any:
    """A text that stands for the number or the truth value that our setting `key` wants; any other value as it is."""
    item = SETTINGS.get(guide.general(key))
    if item is None or not isinstance(value, str) or not _typed(key, value):
        return value
    meant = scalar(value)
    return value if _typed(key, meant) else meant


def _not_of_monitor(path: Path, values: dict[Path, Any]) -> str | None:
    """Why a monitor is not told something: it does not take it."""
    kind = values.get(("monitor", "monitor_type"))
    if kind not in MONITORS:
        return None
    _, _, known, secret = MONITORS[kind]
    if path[2] in (*known, *secret):
        return None
    return f"monitor_type={kind} takes {', '.join((*known, *secret)) or 'no arguments'}: leave it out."


def _is_database(of_set: Path, values: dict[Path, Any]) -> bool:
    """Whether the data of a set (its path less the last key) lie in a database or a queue."""
    return values.get((*of_set, "storage_type")) in ("queue", "sql") or bool(
        DATABASE.match(str(values.get((*of_set, "path")))))


def _without_path(path: Path, values: dict[Path, Any]) -> str | None:
    """Why what says how a set's file is read is read by nobody: the set has no file."""
    ends = [i for i, part in enumerate(path) if part in ("format", "subset_name")]
    if "buffer" not in path[:3] or not ends:
        return None
    of_set = path[:ends[0]]
    of_stages = (one[:-1] for one in values if (one[0], one[-1]) == ("stages", "path") and of_set in places(one[:-1]))
    own = [one for one in (*places(of_set), *of_stages) if values.get((*one, "path")) is not None]
    if own and not _is_database(own[0], values):
        return None
    return "read only with a path to files, and " + ("its path is left out." if own else "none is given.")


def _names_rewards(values: dict[Path, Any]) -> bool:
    """Whether the source says by which function or workflow responses are rewarded."""
    return any(value is not None and str(path[-1]).endswith(("workflow_type", "reward_fn_type"))
               for path, value in values.items())


def _shown(value: Any) -> str:
    return "null" if value is None else repr(value) if isinstance(value, str) else str(value)
