"""Reward functions at work: chosen by name, opened once, called with all responses of a step together.

A rule (operators/reward.py, or the user's own) sees one response at a time; a reward model scores all at once; the
penalty on length needs no text. Either way a response has components, or a reason why it has none: what cannot be
judged is no reward of 0.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from operators import shaping
from operators.reward import load_reward
from pipeline.errors import ConfigError, nearest
from pipeline.external import resolve
from pipeline.shares import first_auxiliary_gpu
from workflows.reward_model import RewardModel

Components = dict[str, float]
# (prompts as messages {role, content}, responses, answers, tokens of each response that are the policy's own)
# -> of each response its components, or why there are none
RewardFunction = Callable[[Sequence[list[dict]], Sequence[str], Sequence[str], Sequence[int]], list[Components | str]]


class Rewards:
    """Opens the reward functions of task sets. A model that several of them ask is loaded once."""

    def __init__(self, config):
        """config: settings with sections buffer, explorer, model, and mode."""
        self.config = config
        self._models: dict[int, RewardModel] = {}

    def of(self, taskset) -> list[RewardFunction]:
        """Those of a task set; their components are summed. Raises ConfigError for an argument that none has."""
        chosen = taskset.default_reward_fn_type or self.config.buffer.explorer_input.default_reward_fn_type
        names = [chosen] if isinstance(chosen, str) else chosen
        functions = [OPENED.get(name) or load_reward(name) for name in names]
        taken = [_taken(function, taskset.reward_fn_args) for function in functions]
        for argument in taskset.reward_fn_args:
            if not any(argument in own for own in taken):
                known = [p for function in functions for p in inspect.signature(function).parameters]
                raise ConfigError(f"reward_fn_args of task set '{taskset.name}': no reward function of "
                                  f"{', '.join(names)} has an argument '{argument}'.{nearest(argument, known)}")
        retries = self.config.explorer.max_retry_times
        return [function(self, **own) if name in OPENED else Rule(function, own, retries)
                for name, function, own in zip(names, functions, taken, strict=True)]

    def model(self, name: str | None) -> RewardModel:
        """The model of explorer.auxiliary_models with that name; None: the only one."""
        models = self.config.explorer.auxiliary_models
        index = next(i for i, model in enumerate(models) if name in (None, model.name))
        if index not in self._models:
            devices = _devices(self.config, index)
            self._models[index] = RewardModel(resolve(models[index].model_path), models[index], devices)
        return self._models[index]


def _taken(function: Callable, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments among `given` that a function has a parameter for."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return given
    return {name: value for name, value in given.items() if name in parameters}


def _devices(config, index: int) -> list[str]:
    """torch's names of the devices of an auxiliary model: its own GPUs behind those before it, or the CPU."""
    import torch

    models = config.explorer.auxiliary_models
    if not torch.cuda.is_available():
        return ["cpu"] * models[index].engine_num
    first = first_auxiliary_gpu(config) + sum(model.engine_num for model in models[:index])
    return [f"cuda:{first + copy}" for copy in range(models[index].engine_num)]


@dataclass
class Rule:
    """A function of one response and its truth, asked again as often as `retries` when it raises."""

    function: Callable[..., Components]
    arguments: dict[str, Any]
    retries: int

    def __call__(
        self, prompts: Sequence[list[dict]], responses: Sequence[str], answers: Sequence[str], lengths: Sequence[int]
    ) -> list[Components | str]:
        return [self._one(response, answer) for response, answer in zip(responses, answers, strict=True)]

    def _one(self, response: str, answer: str) -> Components | str:
        called = getattr(self.function, "__name__", type(self.function).__name__)
        for left in range(self.retries, -1, -1):
            try:
                found = self.function(response, answer, **self.arguments)
                components = {name: float(value) for name, value in found.items()}
            except Exception as error:  # the user's reward function: its failure is this row's, not the stage's
                if left == 0:
                    return f"{called} raised {type(error).__name__}: {error}"
                continue
            return _checked(called, components)
        raise AssertionError("unreachable: the last attempt returns")


def _checked(called: str, components: Components) -> Components | str:
    """The components, or what is wrong with them."""
    bad = [name for name, value in components.items() if not math.isfinite(value)]
    if bad or not components:
        return f"{called} returned " + (f"{bad[0]}={components[bad[0]]}" if bad else "no components")
    if not 0 <= components.get("accuracy", 0) <= 1:
        return f"{called} returned accuracy={components['accuracy']}; needed 1 for solved, 0 for not, or between"
    return components


def reward_model(rewards: Rewards, model: str | None = None, weight: float = 1.0) -> RewardFunction:
    """weight x the score of a model of explorer.auxiliary_models. model: its name, when there are several."""
    scorer = rewards.model(model)

    def score(prompts: Sequence[list[dict]], responses: Sequence[str], answers, lengths) -> list:
        scores = scorer.score(prompts, responses)
        return [s if isinstance(s, str) else _checked("reward_model", {"reward_model": weight * s}) for s in scores]

    return score


def overlong_penalty(
    rewards: Rewards, cache_length: int | None = None, max_response_length: int | None = None,
    penalty_factor: float = 1.0,
) -> RewardFunction:
    """The penalty on length of operators/shaping.py, beside a function that says what is right.

    max_response_length: null: model.max_response_tokens, at which a response is cut. cache_length: its last tokens,
    which cost; null: a fifth of it, as in the paper (4096 of 20480). The environment's tokens do not count.
    """
    longest = max_response_length or rewards.config.model.max_response_tokens
    penalty = partial(shaping.overlong_penalty, max_response_length=longest, penalty_factor=penalty_factor,
                      cache_length=max(longest // 5, 1) if cache_length is None else cache_length)
    penalty(0)  # wrong arguments are refused before anything is generated

    def punish(prompts, responses, answers, lengths: Sequence[int]) -> list:
        return [{"overlong_penalty": penalty(length)} for length in lengths]

    return punish


# opened with the settings, once; every other function is called with a response and its truth
OPENED = {"overlong_penalty": overlong_penalty, "reward_model": reward_model}
