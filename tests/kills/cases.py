"""The configurations in which processes are killed: tiny models, six optimizer steps, a checkpoint at every second."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.plan.plan import Plan, make_plan
from tests.toy.conftest import SMALL, copy_upstream, small, stage_of

WATCHED = ("explorer.eval_interval=2", "monitor=mlflow")
REPLAY = "buffer.trainer_input.experience_buffer.replay_buffer"
TRANSFORMERS = "explorer.rollout_model.engine_type=transformers"
FIRST = ("tasks", "curate", "model", "sft")
ALL = (*FIRST, "evaluate_sft", "rft", "evaluate_rft")
# An agent's run: its model has learnt to call a calculator. The trainer scores what was sampled, because which requests
# an engine computes together, and with it the last bits of its log-probs, depends on time (docs/agents.md).
AGENT = (
    "recipe=products", "monitor=none", "algorithm.bypass_old_logprobs=false", "algorithm.rollout_correction.level=none",
    "data_processor.task_pipeline.generator_args={tasks: 60, demonstrations: 800, guesses: 0.2}",
    "buffer.batch_size=4", "algorithm.repeat_times=4", "buffer.total_steps=4", "trainer.save_interval=2",
    "algorithm.optimizer.lr_warmup_steps=0", "buffer.explorer_input.default_reward_fn_type=tests.kills.agents:digits",
    "stages.sft.buffer.batch_size=64", "stages.sft.buffer.total_steps=60", "stages.sft.algorithm.optimizer.lr=4e-3",
    "stages.sft.buffer.explorer_input.eval_tasksets=[]", "buffer.explorer_input.eval_tasksets.0.limit=4",
)
TOOLS = tuple(f"buffer.explorer_input.{one}.workflow_args={{tools: ['tests.kills.agents:calc'], max_rounds: 3}}"
              for one in ("taskset", "eval_tasksets.0"))
# Curation in three shards by three processes, with a deduplicator between two phases.
SHARDS = (
    "name=shards", "stages=[{stage_name: rft}]", "monitor=none", "buffer.batch_size=2", "algorithm.repeat_times=2",
    "data_processor.task_pipeline.generator_args={tasks: 2600, demonstrations: 0}",
    "data_processor.task_pipeline.num_process=3", "buffer.explorer_input.eval_tasksets=[]",
)
# Prompts with two images each, of a model that reads them and trains its tower too.
IMAGES = (
    "recipe=digits", "name=images", "monitor=none", "data_processor.task_pipeline.generator_args.tasks=24",
    "data_processor.task_pipeline.generator_args.tests=8", "buffer.batch_size=4", "algorithm.repeat_times=4",
    "buffer.total_steps=2", "trainer.save_interval=1", "trainer.freeze_vision_tower=false",
    "synchronizer.sync_interval=1", "synchronizer.sync_offset=0", "stages.sft.buffer.batch_size=32",
    "stages.sft.buffer.total_steps=2",
)


@dataclass(frozen=True)
class Case:
    """A configuration. kills: how many the long form makes at least. stage: name of the one that is started by hand;
    empty: the whole run, by `ouro run`. processes: those at whose write points it kills, by how their names begin; the
    others of a whole run are cheaper to kill in other configurations. complete: all stages are, when it begins; begun:
    the first ones are. settings: those that all configurations of its kind have.
    """

    name: str
    kills: int
    overrides: tuple[str, ...]
    stage: str = "rft"
    engine: str = "transformers"
    processes: tuple[str, ...] = ("stage", "trainer", "explorer", "evaluator", "engine")
    complete: bool = False
    begun: bool = False
    settings: tuple[str, ...] = tuple(SMALL)

    def words(self, root: Path) -> list[str]:
        engine = () if self.engine == "vllm" else (TRANSFORMERS,)
        return [f"checkpoint_root_dir={root}", *small(*engine, *self.overrides, settings=self.settings)]

    def plan(self, root: Path, source: Plan | None) -> Plan:
        """The plan in a new root, on complete stages of `source`. A whole run that begins there writes it itself."""
        plan = make_plan(compose(self.words(root)))
        names = [stage.name for stage in plan.stages]
        if self.complete:
            copy_upstream(source, plan, tuple(names))
        root.mkdir(parents=True, exist_ok=True)
        if self.stage or self.complete:
            plan.freeze()
        if self.complete:
            shutil.rmtree(root / "runs")
        elif source and (self.stage or self.begun):
            first = ALL if self.stage == "report" else FIRST
            copy_upstream(source, plan, tuple(name for name in first if name in names and name != self.stage))
        return plan

    def directories(self, plan: Plan) -> list[Path]:
        """Of the stages that are compared."""
        return [Path(stage_of(plan, self.stage).directory)] if self.stage else [
            Path(stage.directory) for stage in plan.stages]


CASES = [
    Case("grpo, ZeRO 1, evaluations, MLflow", 50, WATCHED), Case("mini-batches, one step off", 25, (
        "stages.rft.buffer.train_batch_size=16", "stages.rft.synchronizer.sync_offset=1",
        "stages.rft.synchronizer.sync_interval=1")),
    Case("two ranks, ZeRO 2, replay", 35, (
        "stages.rft.trainer.ranks=2", "stages.rft.trainer.zero_stage=2",
        *(f"stages.rft.{REPLAY}.{words}" for words in ("enable=true", "replay_ratio=0.25")), *WATCHED)),
    Case("two ranks, ZeRO 3, reference", 35, (
        "stages.rft.trainer.ranks=2", "stages.rft.trainer.zero_stage=3", "stages.rft.algorithm.kl_loss_fn=k3")),
    Case("ppo, critic, adaptive KL", 35, (
        "stages.rft.algorithm.algorithm_type=ppo", "stages.rft.algorithm.repeat_times=4",
        "stages.rft.algorithm.kl_penalty_fn=k3", "stages.rft.algorithm.kl_penalty_fn_args.adaptive=true",
        "stages.rft.algorithm.kl_penalty_fn_args.target_kl=0.01",
        "stages.rft.algorithm.kl_penalty_fn_args.horizon=100")),
    Case("LoRA, KL loss", 30, (
        "stages.rft.model.lora_configs=[{lora_rank: 4, lora_alpha: 8}]", "stages.rft.algorithm.optimizer.lr=5e-3",
        "stages.rft.algorithm.kl_loss_fn=k3")),
    Case("operators on experience", 20, (
        "stages.rft.data_processor.experience_pipeline.operators=[{name: data_juicer, args: {operators: [{name: "
        "text_length_filter, args: {min_len: 2}}, {name: document_deduplicator}]}}, {name: reward_shaping_mapper, "
        "args: {reward_shaping_configs: [{stats_key: text_len, weight: 0.01}]}}]",
        "stages.rft.synchronizer.sync_offset=1", "stages.rft.synchronizer.sync_interval=1")),
    Case("tasks chosen by experience", 20, (
        "stages.rft.buffer.explorer_input.taskset.data_selector.selector_type=solve_rate_pools",
        "stages.rft.buffer.explorer_input.taskset.limit=24",
        "stages.rft.synchronizer.sync_offset=1", "stages.rft.synchronizer.sync_interval=1")),
    Case("sft, two ranks", 15, ("stages.sft.trainer.ranks=2", "stages.sft.buffer.total_steps=8"), "sft"),
    Case("ouro run", 40, ("stages.sft.buffer.total_steps=6", "buffer.total_steps=4", *WATCHED), "",
         processes=("snakemake", "ouro")),
    Case("ouro run, nothing to do", 4, ("buffer.total_steps=1",), "", processes=("ouro",), complete=True),
    Case("agent, client of OpenAI", 20, ("name=client", "synchronizer.sync_offset=0"), "", begun=True, settings=AGENT),
    Case("agent, idempotent tool", 20, (
        "name=tool", "synchronizer.sync_offset=1", "buffer.explorer_input.default_workflow_type=tool_call_workflow",
        *TOOLS), "", begun=True, settings=AGENT),
    Case("curation in shards", 8, (), "curate", settings=SHARDS),
    Case("images, trained tower", 20, (), settings=IMAGES), Case("images, trained tower, of an agent", 10, (
        "stages.rft.buffer.explorer_input.default_workflow_type=tests.clients:draws",
        "stages.rft.model.max_prompt_tokens=64", "stages.rft.explorer.runner_concurrency=1",
        "stages.rft.explorer.eval_interval=1"), settings=IMAGES),
    *(Case(f"{name} of images", 6, (), name, settings=IMAGES) for name in ("tasks", "curate", "sft")),
    Case("vLLM, grpo, evaluations, MLflow", 45, WATCHED, engine="vllm"), Case("vLLM, LoRA", 20, (
        "stages.rft.model.lora_configs=[{lora_rank: 4, lora_alpha: 8}]",
        "stages.rft.algorithm.optimizer.lr=5e-3"), engine="vllm"),
    *(Case(f"{name} alone, MLflow", 4, ("buffer.total_steps=1", "monitor=mlflow"), name)
      for name in ("tasks", "curate", "model", "sft", "evaluate_sft", "report")),
]
