"""A stage and its identity: the hash of *used* settings, its inputs' identities, and file digests.

Files are the external ones that it reads. The code that its settings name counts too (pipeline/plan/code.py): an edited
reward function, ours or the user's, is a new stage. A stage lives in `store/<name>-<hash>/`. It receives only the
settings in its identity, those marked `how`, and those for monitoring itself: it cannot read what it does not
depend on.
"""

import os
from dataclasses import dataclass, field, fields
from functools import cache, cached_property, reduce
from typing import Any

from ouroboros.pipeline.job.devices import gpus_of_machine
from ouroboros.pipeline.job.shares import held_gpus
from ouroboros.pipeline.job.tasksets import HELD
from ouroboros.pipeline.plan.code import code_of
from ouroboros.pipeline.settings import changes
from ouroboros.pipeline.settings.algorithms import facts
from ouroboros.pipeline.settings.config import Config, users_code, walk
from ouroboros.pipeline.settings.images import may_have_images, paths_of_sets
from ouroboros.pipeline.settings.kinds import ASKED, CURATE, LATER, RECIPES, TASKS, Kind, is_below
from ouroboros.pipeline.settings.rates import OPTIMIZERS, SCHEDULE, TOTALS
from ouroboros.pipeline.settings.setting import about, at, leaves, plain, values_of
from ouroboros.pipeline.settings.unused import without_teacher, without_unused
from ouroboros.pipeline.store import files, locked
from ouroboros.pipeline.store.digests import HubPath, StageModel, digest_code, digest_input, digest_meaning, digests
from ouroboros.pipeline.store.images import keys
from ouroboros.pipeline.store.named_images import digest_named
from ouroboros.pipeline.store.project_imports import bare
from ouroboros.pipeline.store.records import FORMAT

# additional settings of a stage that trains on pairs; demonstrations have one fixed loss
PAIRS_USE = ("algorithm.policy_loss_fn", "algorithm.policy_loss_fn_args", "algorithm.kl_loss_fn",
             "algorithm.kl_loss_fn_args", "algorithm.entropy_loss_fn", "algorithm.entropy_loss_fn_args")

HELD_OUT = "buffer.trainer_input.experience_buffer.held_out_ratio"  # of a stage that trains a reward model

BY_TASKS = ("data_processor.task_pipeline.format.prompt_type",)  # what its tasks' identity has already

BY_MEANING = ("data_processor.task_pipeline.config_path", RECIPES)  # YAML files hashed by parsed content, not bytes

# lists of sections, as `a.b.*`
SECTIONS = {key.rsplit(".*.", 1)[0] + ".*" for key, _ in walk() if ".*." in key}


@dataclass(frozen=True)
class Stage:
    """One node of the DAG.

    inputs: role -> directory of the stage (or, for role `model`, possibly an external model directory) it reads.
    config: the settings it may read: those of its identity, the `how` and the monitoring settings, nested as before.
    waits: directories of stages that must be complete before it, though it reads nothing of theirs.
    run: project/name of the run that requested it (for metrics and messages; another run may share the stage).
    hub: what it reads of the Hugging Face hub, each id with its commit, for its manifest.
    trunk: of a stage that trains, its content without what only decides where it ends (see `_trunk`); none with a
    user's class Algorithm, whose steps may depend on the end: it has all settings.
    """

    run: str
    name: str
    kind: Kind
    identity: str
    root: str
    inputs: dict[str, str]
    config: Config
    waits: tuple[str, ...] = ()
    hub: tuple[str, ...] = ()
    trunk: dict[str, Any] = field(default_factory=dict)

    def specification(self) -> dict[str, Any]:
        """Returns the content of its stage.json."""
        held = {one.name: getattr(self, one.name) for one in fields(self)}
        return {key: value for key, value in held.items() if key != "trunk" or value} | {"config": plain(self.config)}

    @cached_property
    def directory(self) -> str:
        return os.path.normpath(os.path.join(self.root, "store", f"{self.name}-{self.identity}"))

    @cached_property
    def manifest(self) -> str:
        return os.path.join(self.directory, files.MANIFEST)

    @property
    def upstream(self) -> list[str]:
        """Returns the manifests of the stages it waits for."""
        read = dict.fromkeys((*self.inputs.values(), *self.waits))
        return [os.path.join(d, files.MANIFEST) for d in read if files.in_store(d, self.root)]

    @property
    def error(self) -> str:
        """Returns the file of its last failure. (Snakemake deletes a rule's log first: stage.log must be kept.)"""
        return os.path.join(self.directory, "stage.error")

    @cached_property
    def gpus(self) -> int:
        """Returns the GPUs it uses; 0 on a machine without, or with cluster.gpu_per_node=0."""
        there = gpus_of_machine(self.config.cluster.gpu_per_node)
        return held_gpus(self.kind, self.config) if there else 0

    @property
    def threads(self) -> int:
        """Returns its CPU threads. Engines and training use the whole machine, so that no two run on it at once; with
        GPUs, they use the same share of its cores as of its GPUs."""
        cores = os.cpu_count() or 1
        if self.gpus:
            there = gpus_of_machine(self.config.cluster.gpu_per_node)
            return max(cores * min(self.gpus, there) // there, 1)
        return cores if self.kind.is_job else 1


def uses(kind: Kind, algorithm_type: str) -> tuple[str, ...]:
    """Returns the settings that enter the identity of a stage of this kind."""
    if not kind.learns_from_given:
        return kind.uses
    trains = facts(algorithm_type)
    return (*kind.uses, *(PAIRS_USE if trains.on_pairs else ()), *((HELD_OUT,) if trains.scores_responses else ()))


def make_stage(name: str, kind: Kind, settings: Config, inputs: dict[str, str], root: str, waits=()) -> Stage:
    if settings.model.teacher_name and not kind.is_online:
        settings = without_teacher(settings)
    in_identity, others = _keys(kind, uses(kind, settings.algorithm.algorithm_type))
    upstream = {role: (os.path.basename(d) if files.in_store(d, root) else digest_input(d, root))
                for role, d in inputs.items() if role != HELD}  # those for monitoring, too
    contents: dict[int, dict[str, Any]] = {}
    for step, one in changes.segments(settings if kind.trains else settings.but("changes", {})):
        content = bare(_content(kind, without_unused(one), in_identity, upstream, root))
        if content not in [*contents.values()][-1:]:  # a change to the values that are there is none
            contents[step] = content
    settings = without_unused(settings).but("changes", {
        str(step): values for step, values in changes.of(settings) if step in contents})
    content = contents.pop(0)
    unrewarded = {"unrewarded": _unrewarded(kind, settings, in_identity, upstream, root)
                  } if kind.is_online and not contents else {}
    watched = [_select(settings, list(kind.watches)), os.path.basename(inputs.get(HELD, ""))]
    run = f"{settings.project}/{settings.name}"
    named = [*inputs.values(), *(one for key in kind.external for _, value in values_of(settings, key)
                                 for one in (value if isinstance(value, list) else [value]))]
    waits = (*waits, *(one for one in named if isinstance(one, StageModel) and one not in waits))
    hub = tuple(dict.fromkeys(one.pinned for one in named if isinstance(one, HubPath)))
    identity = files.hash_json(content | ({"changes": contents} if contents else {}))[:8]
    return Stage(run, name, kind, identity, root, inputs,
                 Config.partial(_select(settings, in_identity + others)), waits, hub,
                 _trunk(content, contents, settings, watched) | unrewarded
                 if kind.trains and ":" not in str(settings.algorithm.algorithm_type) else {})


def _content(kind: Kind, settings: Config, in_identity: list[str], upstream: dict[str, Any], root: str
             ) -> dict[str, Any]:
    """Returns what an identity is a hash of. in_identity: keys of the settings. upstream: identities of the inputs."""
    used = _select(settings, in_identity)
    external = {"environments": keys(paths_of_sets(settings.buffer), settings.environment.images, root)
                } if kind.builds else {  # their content is hashed, not their location
        key: [_external(key, name, value, root) for name, value in values_of(settings, key)] for key in kind.external}
    if kind == TASKS and any(map(any, external.values())):
        pool = settings.data_processor.task_pipeline
        inputs = [one for one in pool.inputs if may_have_images(pool.format) and not isinstance(one, HubPath)]
        named = digest_named([*paths_of_sets(settings.buffer, with_images=True), *inputs], root)
        external |= {"named_images": named} if named else {}
    found = list(leaves(used))
    users = [name for _, name in users_code(found)]
    external |= {name: digest_code(name) for name in users}
    external |= {f"{locked.PLACE}/{name}": locked.installed(name, root) for key, name in found
                 if key.endswith(locked.ARGUMENT) and isinstance(name, str)}
    if kind.is_online and settings.model.teacher_name and settings.own_teacher:
        external["teacher"] = settings.own_teacher.name  # which model, and that it is no copy
    if any(value == "verifiers_workflow" for _, value in found):  # a program of ours serves its attempts
        external[locked.PROGRAM.name] = files.hash_file(locked.PROGRAM)
    return {"format": FORMAT, "kind": kind, "settings": _without_defaults(used), "inputs": upstream,
            "external": external, "code": code_of(kind, settings, found, users)}


def _unrewarded(kind: Kind, settings: Config, in_identity: list[str], upstream: dict[str, Any], root: str) -> str:
    """Returns the hash of an identity without what rewards responses: the functions that settings name, their code and
    arguments, and the tasks, whose answers may be others (pipeline/job/rewarding.py compares the rest of them)."""
    source = settings.buffer.explorer_input.but("default_reward_fn_type", None)
    sets = [one.but("default_reward_fn_type", None).but("reward_fn_args", {})
            for one in (source.taskset, *source.tasksets)]
    source = source.but("taskset", sets[0]).but("tasksets", sets[1:])
    content = bare(_content(kind, without_unused(settings.but("buffer.explorer_input", source)), in_identity,
                            {role: one for role, one in upstream.items() if role != "tasks"}, root))
    external = {key: value for key, value in content["external"].items() if key not in ASKED}
    return files.hash_json(content | {"external": external})


def _trunk(content: dict[str, Any], later: dict[int, dict[str, Any]], settings: Config, watched: Any) -> dict[str, Any]:
    """Returns the content of an identity for a comparison of steps (pipeline/job/trunks.py): all of it, so that no
    setting is forgotten, but for TOTALS and the schedules of learning rates, which are compared by their values.

    later: trainer step -> the content after a change there. watched: what the stage evaluates on its way, which no
    step depends on. `source` tells content that changed from files that are others: what names and reads them.
    """
    sources = (*content["kind"].external, *(key for kind in (TASKS, CURATE) for key in (*kind.uses, *kind.external)))
    found = [(name, plain(value)) for key, _ in walk() if is_below(key, sources) and f"{key}.*" not in SECTIONS
             for name, value in values_of(settings, key)]
    explores = {step for step, values in changes.of(settings) if "explorer" in map(changes.acts, values)}
    after = {str(step): _of_steps(one) | {"explores": step in explores} for step, one in later.items()}
    return {**_of_steps(content), "inputs": content["inputs"], "format": content["format"],
            "watched": files.hash_json(watched), "source": files.hash_json(found),
            **({"changes": after} if after else {})}


def _of_steps(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of a trunk that a change may alter."""
    rates = {key: {name: given[name] for name in SCHEDULE} for key in OPTIMIZERS
             if (given := at(content["settings"], key))}
    apart = [*TOTALS, *(f"{key}.{name}" for key in OPTIMIZERS for name in SCHEDULE)]
    return {"settings": files.hash_json([content["kind"], reduce(_without, apart, content["settings"])]),
            "rates": rates, "code": files.hash_json(content["code"]),
            "external": {key: files.hash_json(value) for key, value in content["external"].items()}}


def _without(settings: Any, key: str) -> Any:
    """Returns nested settings without a dotted key."""
    first, _, below = key.partition(".")
    return {name: _without(value, below) if name == first else value for name, value in settings.items()
            if name != first or below}


def _external(key: str, name: str, value: Any, root: str) -> Any:
    """Returns what enters an identity of the files that the setting `name` names."""
    if isinstance(value, StageModel):
        return os.path.basename(value)
    return digest_meaning(value, name) if key in BY_MEANING else digests(value, root, name)


def settings_of(kind: Kind, config: Config | dict) -> dict:
    """Selects the identity's settings from those that a stage receives."""
    return _select(config, _keys(kind, uses(kind, at(config, "algorithm.algorithm_type", "")))[0])


@cache
def _keys(kind: Kind, read: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Returns the keys in the identity of a stage with these settings, and its `how` and monitoring keys."""
    paths = kind.external
    watched = (*kind.watches, *BY_TASKS)
    leaves = [(key, about(item).how) for key, item in walk() if f"{key}.*" not in SECTIONS]
    return ([key for key, how in leaves if not how and key not in paths and is_below(key, read)],
            [key for key, how in leaves if how or key in paths or is_below(key, watched)])


def _without_defaults(used: dict) -> dict:
    """Returns the settings of an identity without those of LATER that are at their defaults."""
    for key, default in LATER.items():
        used = _lacking(used, key.split("."), default)
    return used


def _lacking(tree: Any, parts: list[str], default: Any) -> Any:
    """Returns nested settings without a key that is at its default; `*` is every element of a list or mapping."""
    if isinstance(tree, list):
        return [_lacking(one, parts[1:], default) for one in tree]
    if not isinstance(tree, dict):
        return tree
    first, *below = parts
    return {name: _lacking(value, below, default) if below and first in (name, "*") else value
            for name, value in tree.items() if below or (name, value) != (first, default)}


def _select(config: Config | dict, keys: list[str]) -> dict:
    """Returns the part of a configuration with these settings, as a file holds it.

    `*` in a key matches every element of a list or mapping; each is reduced to the selected settings.
    """
    tree: dict = {}
    for key in keys:
        branch = tree
        for part in key.split("."):
            branch = branch.setdefault(part, {})
    return _pruned(config, tree)


def _pruned(value: Any, tree: dict) -> Any:
    """Returns the part of a value whose keys are in a tree of keys; all of it where the tree ends."""
    if not tree:
        return plain(value)
    if isinstance(value, list):
        return [_pruned(element, tree["*"]) for element in value]
    held = dict(value)
    return {key: _pruned(held[key], tree.get("*", tree.get(key))) for key in (held if "*" in tree else tree)}
