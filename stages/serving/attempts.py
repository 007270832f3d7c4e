"""Attempts of a running application: the replies that it got, the feedback that it gave, and the rows of both."""

import json
import re
import time
from dataclasses import dataclass, field
from typing import Any

from ouroboros.pipeline.store import records
from ouroboros.workflows.endpoint.dialect import Refusal
from ouroboros.workflows.endpoint.merging import merged
from ouroboros.workflows.protocol.prompts import prompt_hash
from ouroboros.workflows.protocol.trajectory import Trajectory

LONGEST_NAME = 1000  # characters of a session, a group, a component
LARGEST_REWARD = 1e6  # of a component and of their sum, in absolute value
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # a terminal may obey them
NO_FEEDBACK = "no_feedback"  # status of rows that were not rewarded in time


@dataclass(frozen=True)
class Reply:
    """One reply of the model and the request that it answers, as the journal keeps it."""

    api: str
    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    finish: str
    retokenized: bool
    wishes: str | None
    temperature: float
    top_p: float
    top_k: int
    seed: int
    seconds: float
    unix: float  # when it was complete
    min_p: float = 0.0


@dataclass
class Attempt:
    """One conversation, or one request without a session. components: the reward; None before the feedback."""

    id: str
    session: str | None
    replies: list[Reply] = field(default_factory=list)
    components: dict[str, float] | None = None
    group: str | None = None
    metadata: str | None = None
    touched: float = field(default_factory=time.time)

    @property
    def task(self) -> str:
        """What its group answers: as the feedback names it, else its first prompt."""
        return self.group or prompt_hash(self.replies[0].prompt)

    @property
    def turns(self) -> list[Trajectory]:
        """Its rows: replies whose contexts extend each other are one."""
        return merged([Trajectory(one.prompt, one.tokens, one.logprobs, [1] * len(one.tokens), one.finish)
                       for one in self.replies])


@dataclass(frozen=True)
class Feedback:
    """What an application says of its requests: `ids` of responses or a `session`, and the reward."""

    components: dict[str, float]
    ids: tuple[str, ...] = ()
    session: str | None = None
    group: str | None = None
    metadata: str | None = None

    @classmethod
    def read(cls, body: Any) -> "Feedback":
        """The feedback in the body of a request. Raises Refusal."""
        if not isinstance(body, dict) or (unknown := body.keys() - {"id", "session", "reward", "group", "metadata"}):
            what = f"unknown {', '.join(sorted(unknown))[:200]}" if isinstance(body, dict) else "no object"
            raise Refusal(400, f"{what}; needed id or session, and reward, group or metadata", "invalid_request")
        ids = body.get("id") or []
        ids = tuple(ids) if isinstance(ids, list) else (ids,)
        texts = [*ids, *(body[name] for name in ("session", "group") if body.get(name) is not None)]
        if not all(isinstance(one, str) for one in texts) or bool(ids) == bool(body.get("session")):
            raise Refusal(400, "needed the id of a response, a list of ids, or a session: texts", "invalid_request")
        for one in texts:
            require_name(one)
        metadata = None if body.get("metadata") is None else json.dumps(body["metadata"], ensure_ascii=False)
        return cls(_components(body.get("reward")), ids, body.get("session"), body.get("group"), metadata)


def require_name(text: str) -> None:
    """Raises Refusal for a text that cannot be shown as a name."""
    if len(text) > LONGEST_NAME or CONTROL.search(text):
        raise Refusal(400, f"{text[:80]!r} is no name; needed at most {LONGEST_NAME} characters, none of them a "
                           "control character", "invalid_request")


def _components(reward: Any) -> dict[str, float]:
    parts = reward if isinstance(reward, dict) else {"reward": reward}
    for name in parts:
        require_name(name)
    fine = parts and all(type(value) in (int, float) and abs(value) <= LARGEST_REWARD for value in parts.values())
    if not fine or abs(sum(parts.values())) > LARGEST_REWARD or not 0 <= parts.get("accuracy", 0) <= 1:
        raise Refusal(400, f"reward is {str(reward)[:200]}; needed a number or {{component: number}}, each and their "
                           f"sum from -{LARGEST_REWARD:.0f} to {LARGEST_REWARD:.0f}, accuracy from 0 to 1",
                      "invalid_request")
    return {name: float(value) for name, value in parts.items()}


@dataclass(frozen=True)
class Source:
    """What made the replies: columns that all rows share. stage: the name of the record's directory."""

    stage: str
    weights_hash: str
    config_hash: str
    commit: str
    engine: str


def experience(attempt: Attempt, source: Source, step: int, slot: int, run: int, decode) -> list[records.Experience]:
    """The rows of an attempt. run: which attempt of its group. decode: token ids and whether to skip special ones."""
    first, reward = attempt.replies[0], attempt.components
    shared = {
        "stage": source.stage, "step": step, "taskset": "serve", "slot": slot, "task_id": attempt.task,
        "group_id": attempt.task,
        "run_index": run, "resample_round": 0, "state_hash": None, "step_reward": None,
        "reward": None if reward is None else sum(reward.values()), "reward_components": list((reward or {}).items()),
        "accuracy": (reward or {}).get("accuracy"), "status": NO_FEEDBACK if reward is None else "ok",
        "reason": "no feedback came in time" if reward is None else None, "weights_version": 0,
        "weights_hash": source.weights_hash, "config_hash": source.config_hash, "commit": source.commit,
        "engine": source.engine, "temperature": first.temperature, "top_p": first.top_p, "top_k": first.top_k,
        "min_p": first.min_p, "seed": first.seed, "unix_seconds": attempt.replies[-1].unix}
    return [records.Experience(
        experience_id=f"{source.stage}/{attempt.id}/{turn}", turn=turn, prompt=decode(row.prompt_tokens, False),
        response=decode(row.response_tokens, True), prompt_tokens=row.prompt_tokens,
        response_tokens=row.response_tokens, rollout_logprobs=row.logprobs, action_mask=row.action_mask,
        finish_reason=row.finish_reason, prompt_hash=prompt_hash(row.prompt_tokens), **shared)
        for turn, row in enumerate(attempt.turns)]


def calls(attempt: Attempt, source: Source, step: int, slot: int) -> list[records.Call]:
    """Its replies, each a row."""
    return [records.Call(
        attempt=f"{source.stage}/{attempt.id}", stage=source.stage, step=step, slot=slot, position=position,
        prompt_hash=prompt_hash(one.prompt), prompt_length=len(one.prompt), tokens=one.tokens, logprobs=one.logprobs,
        finish_reason=one.finish, weights_version=0, temperature=one.temperature, top_p=one.top_p, top_k=one.top_k,
        seed=one.seed, seconds=one.seconds, api=one.api, retokenized=one.retokenized, wishes=one.wishes)
        for position, one in enumerate(attempt.replies)]


