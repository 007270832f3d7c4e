"""The outcomes of attempts: what a workflow returned, its text and its rewards; failed attempts keep a reason.

workflows/attempts/schedule.py runs the attempts.
"""

import json
import math
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from ouroboros.pipeline.store.errors import ConfigError, StageError, masked
from ouroboros.pipeline.store.foreign_text import is_encodable
from ouroboros.workflows.protocol.engine import Reply, Request
from ouroboros.workflows.protocol.trajectory import Trajectory

LAST = 16  # tokens of a prompt in which a tag that it opens is looked for

# (prompts as messages {role, content}, responses, answers, number of policy tokens in each response)
# -> components of each response, empty where the function does not apply, or the reason for having none. One with
# `takes_groups` also gets the group of each response, one with `takes_rows` the ids of its sampled tokens, and columns
# of the record of its task. One with `blind`, a reason, has no reward for attempts that an agent showed images.
RewardFunction = Callable[..., list[dict[str, float] | str]]


@dataclass(slots=True, frozen=True)
class Sampling:
    """Sampling parameters of responses. temperature 0 = greedy. keeps: as of a Request."""

    temperature: float
    top_p: float
    top_k: int
    max_prompt_tokens: int
    max_response_tokens: int
    max_model_len: int  # tokens of a whole sequence
    min_p: float = 0.0
    keeps: bool = False

    @classmethod
    def of_set(cls, model, own) -> "Sampling":
        """The settings of section `model`, with what the section `rollout_args` of a set says over them."""
        return cls.of(model, own.temperature, own.top_p, own.top_k, own.max_tokens, own.min_p)

    @classmethod
    def of(cls, model, temperature=None, top_p=None, top_k=None, max_tokens=None, min_p=None) -> "Sampling":
        """The settings of section `model`; arguments that are not None override them."""
        return cls(
            model.temperature if temperature is None else temperature,
            model.top_p if top_p is None else top_p,
            model.top_k if top_k is None else top_k,
            model.max_prompt_tokens, model.max_response_tokens if max_tokens is None else max_tokens, model.longest,
            model.min_p if min_p is None else min_p,
        )


@dataclass(slots=True, frozen=True)
class Origin:
    """The request of an agent that a call comes from; see ouroboros.pipeline.store.records.Call."""

    api: str
    retokenized: bool
    wishes: str | None
    role: str | None = None


@dataclass(slots=True)
class Call:
    """One reply of the model to an attempt. seconds: from the request to the reply; origin: of the endpoint."""

    position: int
    request: Request
    reply: Reply
    seconds: float
    origin: Origin | None = None


@dataclass(slots=True, frozen=True)
class ToolUse:
    """One call of a tool, and its result; see ouroboros.pipeline.store.records.ToolCall."""

    name: str
    arguments: str
    idempotency_key: str
    result: str
    failed: bool
    seconds: float


@dataclass(slots=True)
class Outcome:
    """The result of one attempt; see ouroboros.pipeline.store.records.Experience for the statuses.

    trajectory, response: of the only turn or of the last one, which is rewarded. earlier: those of the turns before;
    None where the workflow returned no turns. own_text: what the reward functions see of a response that includes
    environment text, or what an agent returned as its answer. opened: the tag that its prompt ends with
    (<think>), for functions that judge the form. reason: with secrets removed, because exceptions of user
    code may quote them. calls: the model's replies to a workflow with its own process, in order. tool_calls: what
    its tools did.
    """

    status: str
    reason: str | None = None
    trajectory: Trajectory | None = None
    response: str = ""
    own_text: str | None = None
    opened: str = ""
    components: dict[str, float] = field(default_factory=dict)
    earlier: list[tuple[Trajectory, str]] | None = None
    calls: list[Call] = field(default_factory=list)
    tool_calls: list[ToolUse] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)  # the reason of a component of the reward
    dense: list[float] | None = None  # the part of the reward that single action tokens earned
    solved: float | None = None  # the accuracy, where it is no component

    def __post_init__(self) -> None:
        self.reason = self.reason and masked(self.reason)

    @property
    def reward(self) -> float | None:
        return sum(self.components.values()) if self.status in REWARDED else None

    @property
    def turns(self) -> list[tuple[int | None, Trajectory | None, str]]:
        """(number from 0, trajectory, response) of every turn; the number is None for a single trajectory."""
        if self.earlier is None:
            return [(None, self.trajectory, self.response)]
        return [(turn, *each) for turn, each in enumerate([*self.earlier, (self.trajectory, self.response)])]

    @property
    def token_rewards(self) -> list[float] | None:
        """The reward of each token of the last response [R], 0 at those of the environment; what the response earned as
        a whole is on its last action token. None where no function rewards single tokens."""
        if not self.dense or self.reward is None:
            return None
        earned = iter([*self.dense[:-1], self.dense[-1] + self.reward - math.fsum(self.dense)])
        return [next(earned) if acts else 0.0 for acts in self.trajectory.action_mask]

    @property
    def accuracy(self) -> float | None:
        return self.components.get("accuracy", self.solved)

    @property
    def noted(self) -> str | None:
        """The notes as JSON; None without any."""
        return json.dumps(self.notes, ensure_ascii=False) if self.notes else None

    def mark(self, status: str, reason: str | None = None) -> None:
        """Replaces the status and keeps the reward."""
        self.status, self.reason = status, reason and masked(reason)

    def fail(self, status: str, reason: str) -> None:
        """Removes the reward and records the reason."""
        self.mark(status, reason)
        self.components, self.dense, self.solved = {}, None, None


REWARDED = ("ok", "no_variance", "baseline")  # statuses of rows that have a reward
LATE = "late"  # status of attempts that were not waited for


def finished(returned: Any, longest: int) -> Outcome:
    """The outcome of a workflow's return value; one invalid turn fails the whole attempt."""
    turns = returned if isinstance(returned, list) else [returned]
    if not turns:
        return Outcome("workflow_failed", "the workflow returned an empty list, needed at least one turn")
    for number, turn in enumerate(turns):
        if problem := _problem(turn, longest):
            where = f"turn {number} of {len(turns)}: " if isinstance(returned, list) else ""
            return Outcome("workflow_failed", where + problem)
    earlier = [(turn, "") for turn in turns[:-1]] if isinstance(returned, list) else None
    return Outcome("ok", trajectory=turns[-1], earlier=earlier)


def _problem(returned: Any, longest: int) -> str | None:
    """Why a workflow's return value cannot be rewarded and trained on, or None."""
    if not isinstance(returned, Trajectory):
        return f"the workflow returned {type(returned).__name__}, needed a Trajectory"
    lengths = len(returned.response_tokens), len(returned.logprobs), len(returned.action_mask)
    if len(set(lengths)) != 1 or 0 in lengths:
        found = "{} response tokens, {} log-probs and an action mask of {}".format(*lengths)
        return f"the workflow returned {found}; needed one length, at least 1"
    if not returned.prompt_tokens or len(returned.prompt_tokens) + lengths[0] > longest:
        return (f"the workflow returned {len(returned.prompt_tokens)} prompt and {lengths[0]} response tokens; needed "
                f"at least 1 of each and at most {longest} together (model.max_model_len, or prompt + response)")
    return _turn_problem(returned)


def _turn_problem(turn: Trajectory) -> str | None:
    if turn.state is not None and not isinstance(turn.state, str):
        return f"the workflow returned a state that is {type(turn.state).__name__}, needed a text or None"
    if turn.state is not None and not is_encodable(turn.state):
        return "the workflow returned a state with half of a surrogate pair, needed Unicode"
    if turn.reward is not None and not (isinstance(turn.reward, (int, float)) and math.isfinite(turn.reward)):
        return f"the workflow returned the reward {turn.reward!r} of a turn, needed a finite number or None"
    return None


def decode(outcomes: Sequence[Outcome], tokenizer) -> None:
    """Fills in the response text of every attempt that has one, turn by turn, without special tokens.

    Where the action mask has zeros, also `own_text`: only the model's turns, joined by line breaks.
    """
    finished = [outcome for outcome in outcomes if outcome.trajectory]
    if not finished:
        return  # a tokenizer makes one text of no rows
    tokens = [done.response_tokens for outcome in finished for _, done, _ in outcome.turns]
    texts = iter(tokenizer.batch_decode(tokens, skip_special_tokens=True))
    prompts = tokenizer.batch_decode([outcome.trajectory.prompt_tokens[-LAST:] for outcome in finished],
                                     skip_special_tokens=False)
    for outcome, prompt in zip(finished, prompts, strict=True):
        if outcome.earlier is not None:
            outcome.earlier = [(done, next(texts)) for done, _ in outcome.earlier]
        outcome.response = next(texts)
        outcome.opened = opened_tag(prompt)
        if outcome.own_text is None and not all(outcome.trajectory.action_mask):
            own = tokenizer.batch_decode(_own_turns(outcome.trajectory), skip_special_tokens=True)
            outcome.own_text = "\n".join(own)


def opened_tag(prompt: str) -> str:
    """The tag that a prompt ends with, such as <think>, which a response then only closes; else an empty text."""
    found = re.search(r"<[a-zA-Z]\w*>\s*$", prompt)
    return found.group() if found else ""


def _own_turns(done: Trajectory) -> list[list[int]]:
    """The runs of response tokens that the model sampled."""
    runs = groupby(zip(done.response_tokens, done.action_mask, strict=True), key=lambda pair: bool(pair[1]))
    return [[token for token, _ in run] for own, run in runs if own]


def _sampled(done: Trajectory) -> list[int]:
    return [token for token, acts in zip(done.response_tokens, done.action_mask, strict=True) if acts]


def add_rewards(
    outcomes: Sequence[Outcome], prompts: Sequence[list[dict]], answers: Sequence[str],
    functions: Sequence[RewardFunction], groups: Sequence[Hashable] | None = None,
    columns: Sequence[dict[str, Any]] | None = None,
) -> None:
    """Fills in the reward components of every attempt with a response that has none yet; marks those that fail.

    prompts: messages {role, content}. functions: all are called, and their components summed. groups: equal for
    attempts that are compared with each other; None: each is alone. columns: of the records of the tasks.
    """
    rated = [row for row in zip(outcomes, prompts, answers, groups or range(len(outcomes)),
                                columns or [{}] * len(outcomes), strict=True)
             if row[0].status == "ok" and not row[0].components]
    if not rated:
        return
    outcomes, prompts, answers, groups, columns = map(list, zip(*rated, strict=True))
    responses = [one.response if one.own_text is None else one.own_text for one in outcomes]
    whole = [outcome.opened + response for outcome, response in zip(outcomes, responses, strict=True)]
    lengths = [sum(outcome.trajectory.action_mask) for outcome in outcomes]
    for function in functions:
        seen = whole if getattr(function, "counts_opened", False) else responses
        more = [groups] if getattr(function, "takes_groups", False) else []
        if getattr(function, "takes_rows", False):
            more = [[_sampled(outcome.trajectory) for outcome in outcomes], columns]
        blind = getattr(function, "blind", None)
        for outcome, components in zip(outcomes, function(prompts, seen, answers, lengths, *more), strict=True):
            _add(outcome, blind if blind and any(turn.pictures for _, turn, _ in outcome.turns) else components)
    for outcome in outcomes:
        if outcome.status == "ok" and not outcome.components:
            outcome.fail("reward_failed", "no reward function applies to the response: each of them returned None")


def _add(outcome: Outcome, found: dict[str, float] | str) -> None:
    """Adds the components of one reward function; if it failed, the attempt has no reward."""
    if isinstance(found, str):
        outcome.fail("reward_failed", outcome.reason or found)
    elif outcome.status == "ok" and not math.isfinite(sum((*outcome.components.values(), *found.values()))):
        outcome.fail("reward_failed", "the sum of the reward components is not finite")
    elif outcome.status == "ok":
        if twice := outcome.components.keys() & found.keys():
            raise ConfigError(f"two reward functions give a component '{min(twice)}': one would hide the other. Leave "
                              "one of them out of default_reward_fn_type.")
        outcome.components |= found
        outcome.notes |= getattr(found, "notes", {})
        outcome.solved = getattr(found, "solved", None) if outcome.solved is None else outcome.solved
        if (tokens := getattr(found, "tokens", None)) is not None:
            outcome.dense = [a + b for a, b in zip(outcome.dense or [0.0] * len(tokens), tokens, strict=True)]


def check_failures(rows: Sequence, allowed: float) -> list:
    """Returns the rows that failed, over-long prompts excepted; raises StageError for more than the share `allowed`.

    rows: of ouroboros.pipeline.store.records.Experience or Sample. Late ones do not count.
    """
    rows = [row for row in rows if row.status != LATE]
    failed = [row for row in rows if row.status in ("reward_failed", "workflow_failed")]
    if len(failed) > allowed * len(rows):
        raise StageError(
            f"{len(failed)} of {len(rows)} rollouts failed, allowed {allowed:.0%} (explorer.max_failed_ratio). "
            f"The first, task {failed[0].task_id}: {failed[0].reason.removesuffix('.')}. Mend what it names (a reward "
            "function, a workflow, a server), or allow more."
        )
    return failed
