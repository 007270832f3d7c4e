"""A second reward, by which nothing is trained: it scores a sample of the attempts of a step (explorer.watch)."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from ouroboros.stages.explorer.prompts import Prompts
from ouroboros.stages.explorer.resample import Filled, Group
from ouroboros.workflows.rewards import add_own_rewards


class Watch:
    """Its reward functions by set, opened once; none where none are named."""

    def __init__(self, config, prompts: Prompts):
        self.config, self.prompts, watch = config, prompts, config.explorer.watch
        chosen = {"default_reward_fn_type": watch.default_reward_fn_type, "reward_fn_args": watch.reward_fn_args}
        self.functions = {one.name: prompts.rewards.of(one.model_copy(update=chosen), tasks)
                          for one, tasks in prompts.given} if watch.default_reward_fn_type else {}

    def scores(self, filled: Filled, name: Callable[[Group, int], str]) -> dict[str, float]:
        """Returns the reward of each attempt of the sample by its name; without those that it could not score.

        name: of an attempt, by its group and number; it decides alone whether an attempt is in the sample.
        """
        share = self.config.explorer.watch.share if self.functions else 0
        asked = [(name(group, run), group, replace(outcome, components={}, notes={}, dense=None, solved=None))
                 for group in filled.final for run, outcome in enumerate(group.sampled)
                 if outcome.status == "ok" and Random(name(group, run)).random() < share]
        add_own_rewards([one for _, _, one in asked], [self.prompts.tasks[group.task] for _, group, _ in asked],
                        [self.functions[self.prompts.set_of(group.task).name] for _, group, _ in asked],
                        [group.name for _, group, _ in asked], self.config)
        return {attempt: one.reward for attempt, _, one in asked if one.reward is not None}
