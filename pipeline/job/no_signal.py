"""Detects what rewards cannot teach: first scores and steps without a difference, and steps without a learning signal,
with their usual causes, from the records of evaluations and steps."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from ouroboros.pipeline.settings.algorithms import learns_by_variance
from ouroboros.pipeline.store.evaluation_records import Score
from ouroboros.pipeline.store.records import Step

FEW = 30  # optimizer steps below which a learning curve shows little but noise
STEPS = 10  # consecutive steps without a gradient or a learning rate before a report
ASK = "See ouro sql \"select {} limit 8\" {{run}}."  # run: to be filled in last
FAILED = "status, reason, count(*) from experience where status <> 'ok' group by all order by 3 desc"

# what gives a model that never, or always, solves its tasks rewards that differ
NEVER = ("rewards teach only where some replies are better than others. Show worked examples in the prompt "
         "(buffer.explorer_input.system_prompt), train on demonstrations first (a warmup stage with "
         "algorithm.algorithm_type=sft), or sample otherwise (model.temperature, top_p, top_k, min_p)")
ALWAYS = ("rewards teach only where some replies are better than others. Take harder tasks, drop worked examples from "
          "the prompt, or sample more widely (model.temperature)")
EITHER = ("rewards teach only where some replies are better than others. Look at what the reward function pays, take "
          "easier or harder tasks, or sample more widely (model.temperature)")


def base_accuracies(scores: Iterable[Score]) -> list[str]:
    """Returns a sentence for each set of tasks that a model which is not trained here never solves, or always."""
    return [f"base accuracy on {score.taskset} is {score.value:.0%}: {ALWAYS if score.value else NEVER}"
            for score in scores if (score.metric, score.step) == ("sampled_accuracy", 0) and score.value in (0, 1)]


class Signals:
    """Checks the steps of one stage as they arrive. settings: of the stage; missing ones skip their causes.

    run: project/name, for queries in the messages.
    """

    def __init__(self, settings: Any, run: str):
        self.settings, self.run, self.last, self.known = settings, run, deque(maxlen=STEPS), set()

    def after(self, step: Step) -> str | None:
        """Returns why the last STEPS steps had no learning signal, the first time each cause holds; else None.

        Steps that train only a critic do not count. Step 1 is reported by itself where no group's rewards differ.
        """
        self.last.append(step)
        if step.step == 1 and not step.failed_rows and _is_flat(step, self.settings):
            return f"in no group of step 1 do rewards differ: {({0: NEVER, 1: ALWAYS}).get(step.solve_rate, EITHER)}"
        if len(self.last) < STEPS or any(not _is_idle(one, self.settings) for one in self.last):
            return None
        reason, words = next((name, words) for name, holds, words in REASONS if holds(self.last, self.settings))
        if reason in self.known:
            return None
        self.known.add(reason)
        return f"steps {self.last[0].step} to {step.step} taught nothing, {reason}: {words.format(run=self.run)}"


def no_signals(steps: Iterable[Step], settings: Any, run: str) -> list[str]:
    """Returns the messages for all steps of a stage of that run."""
    signals = Signals(settings, run)
    return list(filter(None, map(signals.after, steps)))


def _is_idle(step: Step, settings: Any) -> bool:
    """Returns whether neither the policy nor, in its warmup (trainer.critic_warmup), only the critic learns; a gradient
    may be of the KL to the reference or the entropy alone."""
    of_critic = step.lr == 0 and step.grad_norm == 0 and bool(step.critic_lr)
    return (step.lr == 0 or step.grad_norm == 0 or _is_flat(step, settings)) and not of_critic


def _is_flat(step: Step, settings: Any) -> bool:
    return learns_by_variance(getattr(settings, "algorithm", None)) and _without_variance([step], settings)


def _failed(last: Sequence[Step], settings: Any) -> bool:
    return all((step.failed_rows or 0) > step.trained_rows for step in last)


def _truncated(last: Sequence[Step], settings: Any) -> bool:
    longest = getattr(getattr(settings, "model", None), "max_response_tokens", None)
    return longest is not None and all((step.response_tokens_mean or 0) >= longest for step in last)


def _without_variance(last: Sequence[Step], settings: Any) -> bool:
    """Returns whether all groups have equal rewards; single-turn groups have at most repeat_times rows."""
    repeats = getattr(getattr(settings, "algorithm", None), "repeat_times", None)
    return repeats is not None and all(
        step.zero_variance_groups and step.zero_variance_groups * repeats >= step.trained_rows for step in last)


# name, (steps, settings) -> whether it holds, description and advice; the first that holds is reported
REASONS = [
    ("learning rate 0", lambda last, settings: all(step.lr == 0 for step in last),
     "set algorithm.optimizer.lr."),
    ("most rows failed", _failed,
     "more rows failed than were trained on. "
     f"{ASK.format(FAILED)}"),
    ("all responses truncated", _truncated,
     "they end at model.max_response_tokens, before there is an answer to judge. Raise it, or look at their ends. "
     f"{ASK.format('finish_reason, reward, right(response, 200) from experience')}"),
    ("all rewards equal",
     lambda last, settings: _without_variance(last, settings) and len({step.reward for step in last}) == 1,
     "the tasks are too hard or too easy for the model, or the reward function does not see the answers. "
     f"{ASK.format('reward, reward_components, response, task_id from experience')}"),
    ("no group with variance", _without_variance,
     "no response to a task is better than another. Give tasks that the model solves now and then, more "
     "algorithm.repeat_times, or algorithm.max_resample_rounds. "
     f"{ASK.format('group_id, min(reward), max(reward) from experience group by 1')}"),
    ("gradient 0", lambda last, settings: True,
     "every advantage is 0, or the loss (algorithm.policy_loss_fn, the loss mask) leaves out all tokens. "
     f"{ASK.format('train_step, min(advantage), max(advantage) from trained group by 1 order by 1 desc')}"),
]
