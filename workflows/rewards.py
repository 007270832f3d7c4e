"""Reward functions by name, opened once, called with all responses of a step.

Functions of operators/reward.py and user functions are called through workflows/attempts/user_reward.py; a reward model
scores in batches; the length penalty needs no text. Each response gets components, or a reason for having none: a
response that cannot be scored does not get a reward of 0.
"""

import asyncio
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ouroboros.operators import shaping
from ouroboros.operators.reward import load_reward
from ouroboros.operators.turns import said
from ouroboros.pipeline.job import own_process
from ouroboros.pipeline.job.shares import auxiliary_gpus
from ouroboros.pipeline.settings.arguments.answers import REWARDS, ModelScore, OverlongPenalty
from ouroboros.pipeline.settings.arguments.base import unknown
from ouroboros.pipeline.settings.arguments.users import TOKENS, Signature
from ouroboros.pipeline.store.checkpoints import model_directory
from ouroboros.pipeline.store.digests import resolve
from ouroboros.pipeline.store.errors import ConfigError, DataError, StageError
from ouroboros.workflows.attempts.apart import apart
from ouroboros.workflows.attempts.code_reward import code_reward
from ouroboros.workflows.attempts.packaged_rewards import reasoning_gym_reward
from ouroboros.workflows.attempts.time_limit import limited
from ouroboros.workflows.attempts.user_reward import Rule, taken_arguments
from ouroboros.workflows.judge import Policy, judge_reward
from ouroboros.workflows.protocol.engine import Engine
from ouroboros.workflows.protocol.outcomes import Outcome, RewardFunction, add_rewards
from ouroboros.workflows.protocol.prompts import choices_of, columns_of, task_turns
from ouroboros.workflows.reward_model import RewardModel

OVERLONG_LENGTH = "max_response_length"
SCORE, OVERLONG = ModelScore(), OverlongPenalty()


class Rewards:
    """Opens the reward functions of task sets. A model used by several of them is loaded once."""

    def __init__(self, config, directory: Path | None = None):
        """config: settings with sections buffer, explorer, model, and mode. directory: of the stage, if it is one."""
        self.config = config
        self._apart = own_process.functions(directory)
        self._models: dict[int, RewardModel] = {}
        self.runner = asyncio.Runner()
        self._policy: Policy | None = None

    @contextmanager
    def judged_by(self, engine: Engine, tokenizer) -> Iterator[None]:
        """Lets the policy judge in the block, in which its engine has no other requests."""
        self._policy = Policy(engine, tokenizer, self.config.model)
        try:
            yield
        finally:
            self._policy = None

    def judge(self) -> Policy:
        """The policy as a judge. Raises StageError where it cannot be asked."""
        if self._policy is None:
            raise StageError("judge_reward without judge_model asks the policy, which is not to be asked here: the "
                             "stage has no engine (mode=score), or the engine is answering (task.judge of a workflow). "
                             "Name a judge_model of explorer.auxiliary_models, or of a judge_url.")
        return self._policy

    def of(self, taskset, tasks: Sequence = ()) -> list[RewardFunction]:
        """The functions of a task set, for these tasks; their components are summed.

        Raises ConfigError for an argument that none of them takes, and for a reward model of tasks with images.
        """
        chosen = taskset.default_reward_fn_type or self.config.buffer.explorer_input.default_reward_fn_type
        names = [chosen] if isinstance(chosen, str) else chosen
        if "reward_model" in names and (seen := [task.task_id for task in tasks if task.pictures]):
            raise ConfigError(f"task set '{taskset.name}': reward_model reads texts alone, and {len(seen)} of "
                              f"{len(tasks)} tasks have images, such as {seen[0]}; needed other reward functions for "
                              "these.")
        functions = [OPENED.get(name) or self._loaded(name) for name in names]
        given, key = taskset.reward_fn_args, f"reward_fn_args of task set '{taskset.name}'"
        takers = [REWARDS.get(name) or Signature.of(function) for name, function in zip(names, functions, strict=True)]
        wrong = [line for taker in takers if taker for line in taker.wrong_values(key, given)]
        if wrong := [*(f"{key}: {line}" for line in unknown(", ".join(names), takers, given)), *wrong]:
            raise ConfigError(" ".join(wrong))
        if longest := taskset.rollout_args.max_tokens:  # where responses of this set are cut
            cut = {OVERLONG_LENGTH: given.get(OVERLONG_LENGTH) or longest}
            given = {**given, **cut} if "overlong_penalty" in names else given
        taken = [taken_arguments(function, given) for function in functions]
        retries = self.config.explorer.max_retry_times
        rows = taskset if taskset.path is not None else self.config.data_processor.task_pipeline
        return [function(self, **own) if name in OPENED else
                Rule(function, own, retries, "reward" if len(names) == 1 else name.rpartition(":")[2], self.runner,
                     name, rows.format.prompt_type)
                for name, function, own in zip(names, functions, taken, strict=True)]

    def by_task(self, taskset, tasks: Sequence) -> list[list[RewardFunction]]:
        """The functions of each task of a set: those that its row names (`choices` of pipeline/store/task_records.py),
        else those of the set; tasks with the same have one list. Where rows name some, each takes those of
        reward_fn_args that it has."""
        default = taskset.default_reward_fn_type or self.config.buffer.explorer_input.default_reward_fn_type
        own = (default,) if isinstance(default, str) else tuple(default)
        names = [tuple(choices_of(task).get("reward_fn", own)) for task in tasks]
        if set(names) <= {own}:
            return [self.of(taskset, tasks)] * len(tasks)
        opened = {one: self.of(taskset.model_copy(update={
            "default_reward_fn_type": list(one), "reward_fn_args": _taken(one, taskset.reward_fn_args)}),
            [task for task, name in zip(tasks, names, strict=True) if name == one]) for one in dict.fromkeys(names)}
        return [opened[one] for one in names]

    def _loaded(self, name: str) -> Callable:
        function, limit = _function(name), self.config.explorer.max_timeout
        if ":" not in name:
            return function
        return apart(function, name, limit) if name in self._apart else limited(function, limit)

    def model(self, name: str | None) -> RewardModel:
        """The model of explorer.auxiliary_models with that name; None: the only one."""
        models = self.config.explorer.auxiliary_models
        index = next((i for i, model in enumerate(models) if name in (None, model.name)), None)
        if index is None:
            raise ConfigError("a row names the reward function reward_model, which needs a model of "
                              "explorer.auxiliary_models; set one.")
        if index not in self._models:
            devices = _devices(self.config, index)
            self._models[index] = RewardModel(model_directory(resolve(models[index].model_path)), models[index],
                                              devices, self.config.model.trust_remote_code)
        return self._models[index]


def _taken(names: Sequence[str], given: dict) -> dict:
    """The arguments that one of these functions takes."""
    takers = [REWARDS.get(name) or Signature.of(load_reward(name)) for name in names]
    return {key: value for key, value in given.items()
            if any(taker.takes_anything or key in taker.names() for taker in takers)}


def _function(name: str) -> Callable:
    return ISOLATING.get(name) or load_reward(name)


def of_texts(name: str, given: dict[str, Any]) -> Callable[[str, str], dict[str, float]]:
    """Returns a reward function as one of (response, answer) that returns components; errors: `ouroboros.reward`."""
    if name in OPENED:
        raise ConfigError(f"{name} judges with what a stage has (a model, a judge or lengths), and not texts alone.")
    function = _function(name)
    taker = REWARDS.get(name) or Signature.of(function)
    wrong = [*unknown(name, [taker], given), *(taker.wrong_values(name, given) if taker else ())]
    if wrong:
        raise ConfigError(" ".join(map(str, wrong)))
    rule = Rule(function, taken_arguments(function, given), retries=0, title=name)

    def rewarded(response: str, answer: str) -> dict[str, float]:
        if rule.names_tokens:
            raise DataError(f"{name} takes {TOKENS}, ids of sampled tokens, and here are texts alone.")
        (found,) = rule([[{"role": "user", "content": ""}]], [response], [answer], [None])
        if isinstance(found, str):  # why there is none
            raise DataError(found)
        return found

    return rewarded


def add_own_rewards(outcomes: Sequence[Outcome], tasks: Sequence, functions: Sequence[list[RewardFunction]],
                    groups: Sequence[Hashable], config) -> None:
    """`add_rewards` for attempts at tasks (pipeline/store/task_records.py), each with its own functions; those with
    one list are rewarded together. config: settings with section buffer."""
    together: dict[int, list[int]] = {}
    for place, own in enumerate(functions):
        together.setdefault(id(own), []).append(place)
    for places in together.values():
        those = [tasks[place] for place in places]
        add_rewards([outcomes[place] for place in places], [_texts(task, config) for task in those],
                    [task.answer for task in those], functions[places[0]], [groups[place] for place in places],
                    [columns_of(task) for task in those])


def _texts(task, config) -> list[dict]:
    """The turns of a task's prompt, whose images are marks in their texts."""
    turns = task_turns(task, config)
    return [{**turn, "content": said(turn)} for turn in turns] if task.pictures else turns


def _devices(config, index: int) -> list[str]:
    """torch's device names for an auxiliary model: its own GPUs after earlier models', or the CPU."""
    import torch

    if not torch.cuda.is_available():
        return ["cpu"] * config.explorer.auxiliary_models[index].engine_num
    return [f"cuda:{gpu}" for gpu in auxiliary_gpus(config, index)]


def reward_model(rewards: Rewards, model=SCORE.model, weight=SCORE.weight) -> RewardFunction:
    """weight x the score of a model of explorer.auxiliary_models. model: its name, if there are several."""
    scorer = rewards.model(model)

    def score(prompts: Sequence[list[dict]], responses: Sequence[str], answers, lengths) -> list:
        scores = scorer.score(prompts, responses)
        return [s if isinstance(s, str) else {"reward_model": weight * s} if math.isfinite(weight * s) else
                f"reward_model returned reward_model={weight * s}" for s in scores]

    score.blind = ("reward_model reads texts alone, and the attempt's agent showed the model an image; needed another "
                   "reward function, or an agent without images")
    return score


def overlong_penalty(rewards: Rewards, cache_length=OVERLONG.cache_length,
                     max_response_length=OVERLONG.max_response_length,
                     penalty_factor=OVERLONG.penalty_factor) -> RewardFunction:
    """The length penalty of operators/shaping.py, to combine with a correctness reward.

    max_response_length: null: rollout_args.max_tokens of the set, else model.max_response_tokens, at which a
    response is cut. cache_length: length of the
    penalised range at its end; null: a fifth of it, as in the paper (4096 of 20480). Environment tokens do not count.
    """
    longest = max_response_length or rewards.config.model.max_response_tokens
    penalty = partial(shaping.overlong_penalty, max_response_length=longest, penalty_factor=penalty_factor,
                      cache_length=max(longest // 5, 1) if cache_length is None else cache_length)
    penalty(0)  # reject wrong arguments before anything is generated

    def punish(prompts, responses, answers, lengths: Sequence[int]) -> list:
        return [{"overlong_penalty": penalty(length)} for length in lengths]

    return punish


# functions like those of operators/reward.py, with their own processes
ISOLATING = {"code_reward": code_reward, "reasoning_gym_reward": reasoning_gym_reward}
# opened once, with the settings; all other functions are called with a response and its truth
OPENED = {"judge_reward": judge_reward, "overlong_penalty": overlong_penalty, "reward_model": reward_model}
