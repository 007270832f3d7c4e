"""The kinds of stages, a row each: what a stage reads, writes and computes, and what enters its identity.

Whatever plans, checks, runs or shows stages asks the row of a stage's kind. `mode` and the algorithm determine the kind
(pipeline/settings/config.py); `both` and `colocate` make the same one, so the setting itself is in no identity.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ouroboros.pipeline.settings.algorithm import RolloutRejection

SETS = ("buffer.explorer_input.taskset", "buffer.explorer_input.tasksets.*", "buffer.explorer_input.eval_tasksets.*",
        "buffer.trainer_input.experience_buffer", "buffer.trainer_input.auxiliary_buffers.*")
RECIPES = "data_processor.experience_pipeline.operators.*.args.config_path"
TASKSETS_EACH = SETS[:2]
PATHS = tuple(f"{one}.path" for one in SETS)
ASKED, HELD_OUT, EXPERTS = PATHS[:2], PATHS[2], PATHS[4]
SHOWN_ROWS, TASK_ROWS, TEST_ROWS = "train", "rft", "evaluate"  # which sets of the configuration a stage reads


@dataclass(frozen=True, eq=False, repr=False)
class Kind(str):
    """A kind of stage: its name, a text as in files and identities, with what is true of every such stage.

    The module stages/<name>.py runs it. modes: those that make this kind of a stage that learns from rollouts -> their
    meaning. rows: which sets of the configuration it reads. reads: roles of its inputs. writes: tables that each such
    stage writes. engine: it opens the engine of explorer.rollout_model. aside: the report draws it next to the chain
    from data to model. brings: kinds of the stages that are made for it. shown: what `ouro config check` says it does,
    where that depends on no setting. uses: settings in its identity (a prefix includes everything below it; `how`
    settings never are). watches: settings with which it monitors its own work: they change its reports, not its
    outputs for other stages, so they are in no identity, and a complete stage is not run again to report more.
    external: settings that name a file or directory whose content is in the identity. entries: the definitions where
    its computation begins; all that they use is in the identity.
    """

    name: str
    modes: dict[str, str] = field(default_factory=dict)
    rows: str | None = None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    engine: bool = False
    aside: bool = False
    brings: tuple[str, ...] = ("evaluate", "curate", "model")
    shown: tuple[str, str] | None = None
    uses: tuple[str, ...] = ()
    watches: tuple[str, ...] = ()
    external: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()

    def __new__(cls, name: str, **_):
        return super().__new__(cls, name)

    @cached_property
    def builds(self) -> bool:
        """Returns whether it builds images: of what its settings name, its identity has the environments alone."""
        return "images" in self.writes

    @cached_property
    def trains(self) -> bool:
        """Returns whether it makes a model, step by step."""
        return "steps" in self.writes

    @cached_property
    def learns_from_rollouts(self) -> bool:
        return "trained" in self.writes

    @cached_property
    def learns_from_given(self) -> bool:
        """Returns whether it trains on demonstrations, pairs or texts."""
        return self.trains and not self.learns_from_rollouts

    @cached_property
    def makes_experience(self) -> bool:
        """Returns whether it rewards responses to train on."""
        return "experience" in self.writes

    @cached_property
    def explores(self) -> bool:
        """Returns whether it samples responses to train on."""
        return self.makes_experience and self.engine

    @cached_property
    def is_online(self) -> bool:
        """Returns whether it trains on what it explores itself."""
        return self.explores and self.trains

    @cached_property
    def is_offline(self) -> bool:
        """Returns whether it trains on what an earlier stage explored."""
        return self.learns_from_rollouts and not self.explores

    @cached_property
    def only_rewards(self) -> bool:
        """Returns whether it rewards what an earlier stage explored, so that it needs no engine."""
        return self.makes_experience and not self.engine

    @cached_property
    def evaluates(self) -> bool:
        return self.rows == TEST_ROWS

    @cached_property
    def benches(self) -> bool:
        """Returns whether it evaluates policies of every step that another stage keeps."""
        return self.evaluates and bool(self.modes)

    @cached_property
    def attempts(self) -> str | None:
        """Returns the table with an attempt a row, each rewarded."""
        return next((table for table in ("experience", "samples") if table in self.writes), None)

    @cached_property
    def asks_models(self) -> bool:
        """Returns whether it may have an engine, or models that its reward functions ask."""
        return "explorer.auxiliary_models" in self.uses

    @cached_property
    def steps(self) -> str:
        """Returns the table with a step a row, by which its progress is shown."""
        return "rollouts" if self.makes_experience and not self.trains else "steps"

    @cached_property
    def computes(self) -> bool:
        """Returns whether it has models or reward functions to compute: it is a separate job, and may hold GPUs."""
        return self.trains or self.attempts is not None

    @cached_property
    def is_job(self) -> bool:
        """Returns whether it takes the cores and the memory of a machine, so that it is a separate job."""
        return self.computes or self == "quantized"

    @cached_property
    def module(self) -> str:
        return f"ouroboros.stages.{self}"


REWRITING = ("rope_scaling", "rope_theta", "override_config")  # of the section model: changes of config.json
REWRITES = tuple(f"model.{name}" for name in REWRITING)  # made by the stage model
LIMITS = ("model.max_prompt_tokens", "model.max_response_tokens", "model.max_model_len", "model.trust_remote_code")
SAMPLING = (*LIMITS, "model.dtype",
            "model.temperature", "model.top_p", "model.top_k", "model.min_p", "explorer.rollout_model.engine_type",
            "explorer.rollout_model.seed", "explorer.rollout_model.extra_engine_args", "explorer.max_retry_times",
            "explorer.env_vars", "explorer.tool_call_parser",
            "buffer.explorer_input.default_workflow_type", "buffer.explorer_input.default_reward_fn_type",
            "explorer.auxiliary_models")
PROMPTS = ("buffer.explorer_input.system_prompt", "model.custom_chat_template", "model.enable_thinking")
TASKSETS = ("buffer.explorer_input.taskset", "buffer.explorer_input.tasksets")
SHOWN = tuple(f"buffer.trainer_input.experience_buffer.{name}" for name in
              ("name", "path", "storage_type", "subset_name", "split", "format"))
EVALUATION_SETS = ("buffer.explorer_input.eval_tasksets", "buffer.explorer_input.default_eval_workflow_type")
STEPS = ("buffer.train_batch_size", "buffer.total_epochs", "buffer.total_steps")
ANEW = ("seed", "repetition")  # what makes a stage that explores or trains another one, though all else is equal
FROZEN = ("model.lora_configs", "model.load_in_4bit")
TOWER = "trainer.freeze_vision_tower"
CURATION = ("stages.curation:Curation",)  # where operators on experience are set
TRAINER = ("changes", "trainer.grad_clip", "trainer.critic", "trainer.critic_warmup", "model.critic_model_path",
           *FROZEN, "trainer.ppo_epochs", "trainer.ppo_mini_batch_size", "trainer.shuffle_mini_batches",
           "trainer.reference_update", TOWER)

JUDGES, ADAPTERS = "explorer.auxiliary_models.*.model_path", "model.lora_configs.*.path"
TEMPLATE, CRITIC = "model.chat_template_path", "model.critic_model_path"

# what prompts and responses are
TOKENIZER = ("workflows.protocol.prompts:load_tokenizer", "workflows.protocol.prompts:end_tokens")
EXPLORER = ("stages.explorer.groups:Groups", *TOKENIZER)  # chooses tasks and seeds, and which groups are kept
LEARNER = ("operators.algorithm:Algorithm", "stages.learner.steps:Steps", "stages.learner.actor:Actor",
           "stages.learner.objective:Objective")  # a step
ESTIMATES = "stages.learner.estimates:Estimates"  # columns that models compute

# what evaluates the models of a run, and of a bench
EVALUATION = {
    "rows": TEST_ROWS, "reads": ("tasks", "model"), "writes": ("samples", "scores"), "engine": True, "aside": True,
    "external": (HELD_OUT, JUDGES, TEMPLATE),
    "entries": ("workflows.evaluation:read_sets", "workflows.evaluation:evaluate", *TOKENIZER)}

ROWS = (
    Kind("images", writes=("images",), uses=("images.max_gib", *(f"{one}.subset_name" for one in SETS)),
         external=(*PATHS, "environment.images")),
    Kind("tasks", reads=("images",), writes=("raw",),
         entries=("operators.formats:read_records", "operators.features:featured", "operators.columns:keeping",
                  "operators.columns:with_columns"),
         uses=("seed", *(f"data_processor.task_pipeline.{name}" for name in
                         ("generator", "generator_args", "inputs", "split", "format")),
               *(f"{one}.{name}" for one in SETS for name in ("name", "path", "subset_name", "split", "format")),
               *(f"{one}.data_selector.feature_keys" for one in TASKSETS_EACH),
               *(f"{one}.columns" for one in SETS[:3])),
         external=("data_processor.task_pipeline.inputs", *PATHS)),
    Kind("curate", reads=("tasks",), writes=("tasks", "rejected"),
         uses=tuple(f"data_processor.task_pipeline.{name}" for name in (
             "config_path", "operators", "target_fields", "priority_weights", "top_k")),
         external=("data_processor.task_pipeline.config_path",),
         entries=("operators.juicer_recipes:read_recipe", "operators.juicer_recipes:inline_recipe",
                  "operators.juicer:build", "operators.juicer:required", "operators.shards:run")),
    Kind("model", aside=True, uses=("seed", "model.init", *REWRITES, *LIMITS), entries=("stages.model:work",)),
    Kind("quantized", reads=("model",), aside=True, uses=("model.dtype", "model.trust_remote_code"),
         entries=("stages.quantized:work",)),
    Kind("train", rows=SHOWN_ROWS, reads=("tasks", "model"), writes=("steps",), entries=LEARNER,
         uses=(*ANEW, "changes", "algorithm.algorithm_type", "algorithm.loss_agg_mode", "algorithm.optimizer",
               "buffer.batch_size", *STEPS, *SHOWN, "trainer.grad_clip", TOWER, "model.dtype", *FROZEN, *LIMITS,
               *PROMPTS),
         external=("buffer.trainer_input.experience_buffer.path", TEMPLATE, ADAPTERS)),
    Kind("rft", rows=TASK_ROWS, reads=("tasks", "model"), writes=("experience", "rollouts", "trained", "steps"),
         modes={"both": "explorer and trainer side by side",
                "colocate": "both on the same devices, in turns or at once (trainer.overlap)"},
         engine=True,
         uses=(*ANEW, "algorithm", "buffer.batch_size", *STEPS, *TASKSETS,
               "buffer.trainer_input.experience_buffer.replay_buffer", "buffer.trainer_input.auxiliary_buffers",
               *TRAINER, "synchronizer", "explorer.over_rollout", "explorer.dynamic_timeout", "explorer.watch",
               "explorer.partial_rollout", "explorer.trained_roles",
               "data_processor.experience_pipeline", *SAMPLING, *PROMPTS),
         watches=EVALUATION_SETS, external=(*ASKED, EXPERTS, JUDGES, TEMPLATE, CRITIC, ADAPTERS, RECIPES),
         entries=(*EXPLORER, *CURATION, *LEARNER, ESTIMATES, "stages.learner.batches.rollouts:Rollouts")),
    Kind("rollout", rows=TASK_ROWS, reads=("tasks", "model"), writes=("experience", "rollouts"), engine=True,
         modes={"explore": "the explorer alone, no model is made"}, brings=("server", "evaluate", "curate", "model"),
         uses=(*ANEW, *(f"algorithm.{name}" for name in
                        ("repeat_times", "max_resample_rounds", "resample_metric", "greedy_baseline")),
               "buffer.batch_size", *STEPS[1:], *TASKSETS, "explorer.over_rollout", "explorer.dynamic_timeout",
               "explorer.watch", "explorer.trained_roles", "data_processor.experience_pipeline", *SAMPLING, *PROMPTS),
         external=(*ASKED, JUDGES, TEMPLATE, RECIPES),
         entries=(*EXPLORER, *CURATION, "stages.explorer.profiles:write_profile")),
    Kind("offline", reads=("experience", "model"), writes=("trained", "steps"),
         brings=("recorded", "evaluate", "curate", "model"),
         modes={"train": "the trainer alone, on what an earlier stage explored (sft: as always)"},
         uses=(*ANEW, "algorithm", *STEPS, *TRAINER, "model.dtype", "model.temperature", *LIMITS, *PROMPTS),
         external=(TEMPLATE, CRITIC, ADAPTERS),
         entries=(*LEARNER, ESTIMATES, "stages.learner.batches.recorded:Recorded")),
    Kind("scored", reads=("experience", "tasks", "model"), writes=("experience", "rollouts"),
         modes={"score": "what an earlier stage explored is rewarded again, without an engine"},
         shown=("rewards", "what the stage before it explored, again"),
         uses=(*TASKSETS, "buffer.explorer_input.default_reward_fn_type", "buffer.explorer_input.default_workflow_type",
               "explorer.auxiliary_models", "explorer.max_retry_times", "explorer.env_vars",
               "data_processor.experience_pipeline", *LIMITS, *PROMPTS),
         external=(*ASKED, JUDGES, TEMPLATE, RECIPES), entries=("stages.rescore:Scorer", *CURATION, *TOKENIZER)),
    Kind("recorded", external=("buffer.trainer_input.experience_buffer.path",)),
    Kind("server", uses=("explorer.rollout_model.external",),
         entries=("workflows.engines.openai_engine:text_tokenizer",)),
    Kind("evaluate", **EVALUATION, uses=("seed", *EVALUATION_SETS, *SAMPLING, *PROMPTS)),
    Kind("bench", **EVALUATION, brings=("server", "evaluate", "curate", "model"),
         modes={"bench": "no training, every checkpoint kept of the stages before is evaluated"},
         uses=("seed", *EVALUATION_SETS, *SAMPLING, *PROMPTS, "explorer.bench_steps")),
    Kind("report", uses=("project", "name")),
)

KINDS: dict[str, Kind] = {kind.name: kind for kind in ROWS}
IMAGES, TASKS, CURATE, MODEL, QUANTIZED, FROM_GIVEN, ONLINE, RECORDED, SERVER, EVALUATE, REPORT = map(KINDS.get, (
    "images", "tasks", "curate", "model", "quantized", "train", "rft", "recorded", "server", "evaluate", "report"))
MODES: dict[str, Kind] = {mode: kind for kind in ROWS for mode in kind.modes}
WHAT_MODES_DO = "; ".join(f"{mode}: {kind.modes[mode]}" for mode, kind in MODES.items())

# settings that older stages did not have -> the default under which those keep their identity
LATER = {"repetition": None, "changes": {}, **dict.fromkeys(REWRITES[:2]), REWRITES[2]: {},
         "model.trust_remote_code": False, "model.load_in_4bit": False,
         "algorithm.enable_router_replay": False, "explorer.bench_steps": None,
         "explorer.tool_call_parser": None, "explorer.partial_rollout": False, "explorer.trained_roles": [],
         "synchronizer.max_staleness": None,
         "trainer.ppo_epochs": 1, "trainer.ppo_mini_batch_size": None, "trainer.shuffle_mini_batches": False,
         "trainer.reference_update": {"interval": None, "mix": 1.0}, TOWER: True,
         "algorithm.reward_weights": {}, "algorithm.top_entropy_quantile": 1.0,
         "algorithm.mask_truncated_completions": False,
         **{f"{one}.{name}": default for one in ("algorithm.optimizer", "trainer.critic.optimizer")
            for name, default in (("optimizer_type", "adamw"), ("fused", None))},
         **{f"algorithm.rollout_rejection.{name}": None for name in RolloutRejection.model_fields},
         "algorithm.rollout_rejection": {},
         "explorer.over_rollout": {"ratio": 0.0, "wait_after_min": 0.0},
         "explorer.dynamic_timeout": {"enable": False, "ratio": 3.0, "warmup_min_steps": 1},
         "explorer.watch": {"default_reward_fn_type": None, "reward_fn_args": {}, "share": 0.1},
         "data_processor.experience_pipeline.operators": [], "data_processor.experience_pipeline": {},
         **{f"explorer.auxiliary_models.*.{name}": unset for name, unset in (
             ("engine_type", "vllm"), ("enable_thinking", None), ("max_prompt_tokens", None),
             ("max_response_tokens", None))},
         "data_processor.task_pipeline.priority_weights": {}, "data_processor.task_pipeline.top_k": -1,
         "data_processor": {}, "model.min_p": 0.0, "model.init.image_size": None,
         **{f"{one}.rollout_args.{name}": None for one in SETS[:3] for name in ("max_tokens", "min_p")},
         **{f"{one}.columns": [] for one in SETS[:3]},
         **{f"{one}.format.{name}": unset for one in (*SETS, "data_processor.task_pipeline")
            for name, unset in (("unsupported", "error"), ("tools_key", "tools"), ("workflow_key", None),
                                 ("reward_fn_key", None), ("reply_prefix", None), ("margin_key", None),
                                ("image_key", None))},
         **{f"{one}.data_selector{name}": unset for name, unset in (
             (".feature_keys", []), (".kwargs", {}), ("", {})) for one in TASKSETS_EACH}}


def is_below(key: str, prefixes: tuple[str, ...]) -> bool:
    return any(key == p or key.startswith(p + ".") for p in prefixes)


def completed(kind: Kind, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the plain settings of a stage with those of LATER that its kind reads and an older one did not have."""
    for key in (key for key in LATER if is_below(key, (*kind.uses, *kind.watches))):
        settings = _holding(settings, key.split("."), LATER[key])
    return settings


def _holding(tree: Any, parts: list[str], default: Any) -> Any:
    """Returns nested settings with a key, at its default where it is absent; `*` is every element that is there."""
    if isinstance(tree, list):
        return [_holding(one, parts[1:], default) for one in tree]
    first, *below = parts
    if not below:
        return {first: default} | tree
    if below[0] == "*" and first not in tree:
        return tree
    return tree | {name: _holding(tree.get(name, {}), below, default) for name in (tree if first == "*" else [first])}
