"""Runs many attempts at tasks against one engine, and rewards them. A failed attempt is a row with a reason.

Attempts advance in rounds: all that want a continuation are answered in one engine call, so a batch of single-turn
tasks costs exactly one call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pipeline.config import longest_sequence
from pipeline.errors import ConfigError, StageError
from workflows.engine import Engine, Reply, Request
from workflows.rewards import RewardFunction
from workflows.seeds import request_seed
from workflows.single_turn import Attempt, Trajectory


@dataclass(slots=True, frozen=True)
class Sampling:
    """How responses are drawn. temperature 0 = greedy."""

    temperature: float
    top_p: float
    top_k: int
    max_prompt_tokens: int
    max_response_tokens: int
    max_model_len: int  # tokens of a whole sequence

    @classmethod
    def of(cls, model, temperature=None, top_p=None, top_k=None) -> "Sampling":
        """What the section `model` says; None: as there."""
        return cls(
            model.temperature if temperature is None else temperature,
            model.top_p if top_p is None else top_p,
            model.top_k if top_k is None else top_k,
            model.max_prompt_tokens, model.max_response_tokens,
            longest_sequence(model),
        )


@dataclass(slots=True)
class Outcome:
    """What became of one attempt; see pipeline.records.Experience for the statuses."""

    status: str
    reason: str | None = None
    trajectory: Trajectory | None = None
    response: str = ""
    components: dict[str, float] = field(default_factory=dict)

    @property
    def reward(self) -> float | None:
        return sum(self.components.values()) if self.status in REWARDED else None

    @property
    def accuracy(self) -> float | None:
        return self.components.get("accuracy")

    def fail(self, status: str, reason: str) -> None:
        """Takes the reward away, and says why."""
        self.status, self.reason, self.components = status, reason, {}


REWARDED = ("ok", "no_variance", "baseline")  # statuses of rows that have a reward


def roll_out(
    engine: Engine, workflows: Sequence[Callable[[list[int]], Attempt]], prompts: Sequence[list[int]],
    seeds: Sequence[int], samplings: Sequence[Sampling],
) -> list[Outcome]:
    """Attempts every prompt once. Rewards are not computed here (see `reward`).

    workflows, samplings: one for each prompt. seeds: of the attempts; every further turn of one has a seed of its own,
    made of it.
    """
    outcomes: list[Outcome | None] = [None] * len(prompts)
    waiting: dict[int, tuple[Attempt, list[int]]] = {}
    turn = 0
    for index, (workflow, prompt, sampling) in enumerate(zip(workflows, prompts, samplings, strict=True)):
        if len(prompt) > sampling.max_prompt_tokens:
            reason = f"{len(prompt)} prompt tokens, limit model.max_prompt_tokens={sampling.max_prompt_tokens}"
            outcomes[index] = Outcome("prompt_too_long", reason)
        else:
            _advance(index, partial(_begin, workflow, prompt), waiting, outcomes, sampling)
    while waiting:
        indices = list(waiting)
        replies = engine.generate([
            _request(waiting[i][1], request_seed(seeds[i], turn, 0) if turn else seeds[i], samplings[i])
            for i in indices])
        for index, reply in zip(indices, replies, strict=True):
            attempt, _ = waiting.pop(index)
            _advance(index, partial(_go_on, attempt, reply), waiting, outcomes, samplings[index])
        turn += 1
    assert all(outcomes)
    return outcomes


def _request(prompt: list[int], seed: int, sampling: Sampling) -> Request:
    room = min(sampling.max_response_tokens, sampling.max_model_len - len(prompt))
    return Request(prompt, room, sampling.temperature, sampling.top_p, sampling.top_k, seed)


def _begin(workflow: Callable[[list[int]], Attempt], prompt: list[int]) -> tuple[Attempt, list[int]]:
    attempt = workflow(prompt)
    return attempt, next(attempt)


def _go_on(attempt: Attempt, reply: Reply) -> tuple[Attempt, list[int]]:
    return attempt, attempt.send(reply)


def _advance(
    index: int, move: Callable[[], tuple[Attempt, list[int]]], waiting: dict, outcomes: list, sampling: Sampling
) -> None:
    """Lets an attempt make its next move; it then waits for a reply, is finished, or has failed."""
    try:
        attempt, prompt = move()
        if 0 < len(prompt) < sampling.max_model_len:
            waiting[index] = attempt, prompt
        else:  # the engine would refuse it, and every other request of the call with it
            problem = (f"the workflow wants {len(prompt)} tokens continued; needed at least 1, and fewer than "
                       f"{sampling.max_model_len} (model.max_model_len, or prompt + response)")
            outcomes[index] = Outcome("workflow_failed", problem)
    except StopIteration as done:
        problem = _problem(done.value, sampling.max_model_len)
        outcomes[index] = Outcome("workflow_failed", problem) if problem else Outcome("ok", trajectory=done.value)
    except Exception as error:  # the user's workflow: its failure is this row's, not the stage's
        outcomes[index] = Outcome("workflow_failed", f"{type(error).__name__}: {error}")


def _problem(returned: Any, longest: int) -> str | None:
    """Why what a workflow returned cannot be rewarded and trained on, or None."""
    if not isinstance(returned, Trajectory):
        return f"the workflow returned {type(returned).__name__}, needed a Trajectory"
    lengths = len(returned.response_tokens), len(returned.logprobs), len(returned.action_mask)
    if len(set(lengths)) != 1 or 0 in lengths:
        found = "{} response tokens, {} log-probs and an action mask of {}".format(*lengths)
        return f"the workflow returned {found}; needed one length, at least 1"
    if not returned.prompt_tokens or len(returned.prompt_tokens) + lengths[0] > longest:
        return (f"the workflow returned {len(returned.prompt_tokens)} prompt and {lengths[0]} response tokens; needed "
                f"at least 1 of each and at most {longest} together (model.max_model_len, or prompt + response)")
    return None


def decode(outcomes: Sequence[Outcome], tokenizer) -> None:
    """Fills in the response text of every attempt that has one, special tokens left out."""
    finished = [outcome for outcome in outcomes if outcome.trajectory]
    texts = tokenizer.batch_decode([o.trajectory.response_tokens for o in finished], skip_special_tokens=True)
    for outcome, text in zip(finished, texts, strict=True):
        outcome.response = text


def reward(
    outcomes: Sequence[Outcome], prompts: Sequence[list[dict]], answers: Sequence[str],
    functions: Sequence[RewardFunction],
) -> None:
    """Fills in the reward components of every attempt that has a response; one that cannot be rewarded is marked.

    prompts: messages {role, content}. functions: all are asked, their components are summed.
    """
    rated = [row for row in zip(outcomes, prompts, answers, strict=True) if row[0].status == "ok"]
    if not rated:
        return
    responses = [outcome.response for outcome, _, _ in rated]
    lengths = [sum(outcome.trajectory.action_mask) for outcome, _, _ in rated]
    for function in functions:
        found = function([prompt for _, prompt, _ in rated], responses, [answer for _, _, answer in rated], lengths)
        for (outcome, _, _), components in zip(rated, found, strict=True):
            _add(outcome, components)


def _add(outcome: Outcome, found: dict[str, float] | str) -> None:
    """Adds the components of one reward function; without them the attempt has no reward at all."""
    if isinstance(found, str):
        outcome.fail("reward_failed", outcome.reason or found)
    elif outcome.status == "ok":
        if twice := outcome.components.keys() & found.keys():
            raise ConfigError(f"two reward functions give a component '{min(twice)}': one would hide the other. Leave "
                              "one of them out of default_reward_fn_type.")
        outcome.components |= found


def check_failures(rows: Sequence, allowed: float) -> None:
    """Raises StageError when more than the share `allowed` of the rows failed; over-long prompts are no failures.

    rows: of pipeline.records.Experience or Sample.
    """
    failed = [row for row in rows if row.status in ("reward_failed", "workflow_failed")]
    if len(failed) > allowed * len(rows):
        raise StageError(
            f"{len(failed)} of {len(rows)} rollouts failed, allowed {allowed:.0%} (explorer.max_failed_ratio). "
            f"The first, task {failed[0].task_id}: {failed[0].reason}. Mend the reward function or the workflow, or "
            "allow more."
        )
