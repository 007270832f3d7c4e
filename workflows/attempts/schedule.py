"""Runs many attempts on one engine: each advances as soon as its own reply is there, whatever the others do.

A reply goes to its workflow at once, and the workflow's next request joins those in progress. All first requests are
submitted together, so a batch of single-turn tasks is one engine call. Timing decides which requests are computed
together, and so how log-probs are rounded, which training enlarges (docs/inside.md); seeds are functions of attempt and
turn, outcomes are in the order of the prompts.
"""

import hashlib
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from ouroboros.pipeline.job.progress import thousands
from ouroboros.pipeline.store.pictures import Picture
from ouroboros.workflows.attempts.concurrency import Concurrency
from ouroboros.workflows.attempts.continued import origins, sampled_versions
from ouroboros.workflows.attempts.interleaved import InterleavedAttempt
from ouroboros.workflows.attempts.isolated import Isolated, IsolatedAttempt, host
from ouroboros.workflows.attempts.pace import Pace
from ouroboros.workflows.attempts.recording import Event, Journal, Replayed
from ouroboros.workflows.protocol.engine import WAIT_SECONDS, Engine, Reply, Request, Stop
from ouroboros.workflows.protocol.kept import Kept
from ouroboros.workflows.protocol.outcomes import LATE, Call, Origin, Outcome, Sampling, finished
from ouroboros.workflows.protocol.roles import settle
from ouroboros.workflows.protocol.seeds import request_seed
from ouroboros.workflows.protocol.trajectory import Attempt, Trajectory

LISTEN_SECONDS = 0.002  # for an engine in another process, while attempts may send messages
MOST_CALLS = 1000  # of the model in one attempt: a workflow that asks for ever must not hold up the step
IDLE_SECONDS = 1.0  # between two looks at deadlines that are further away
PRESSURE_SECONDS = 1.0  # between two looks at the engine's key/value cache
REPORT_SECONDS = 1.0  # between two reports of how far the attempts are


def roll_out(
    engine: Engine, workflows: Sequence[Callable[[list[int]], Attempt] | Isolated], prompts: Sequence[list[int]],
    seeds: Sequence[int], samplings: Sequence[Sampling], concurrency: int | Concurrency | None = None,
    journal: Journal | None = None, names: Sequence[str] | None = None,
    report: Callable[["Progress"], None] = lambda progress: None,
    enough: Callable[[Sequence[Outcome | None]], bool] | None = None, ends: list[float] | None = None,
    retries: int = 0, pace: Pace | None = None, pictures: Sequence[tuple[Picture, ...]] | None = None,
) -> list[Outcome]:
    """Attempts every prompt once, and one whose workflow failed up to `retries` times more.

    Rewards are computed separately (workflows/protocol/outcomes.py).

    workflows, samplings: one for each prompt. seeds: of the attempts; the seeds of further turns are derived from them.
    concurrency: attempts in progress at once; None: all; a Concurrency follows the engine. journal: records what
    attempts with their own processes do; names: of the attempts in it, where one journal is used for several calls.
    report: called every second. enough: from the outcomes so far, whether to cancel the attempts that have none; they
    get the status LATE. ends: to which the time of each attempt's end is added, seconds of the monotonic clock. A
    further attempt begins when all have ended, with its own seed and name; the outcome is that of the last one.
    pace: limits the time of each attempt. pictures: in each prompt, whose tokens are in it.
    """
    schedule = _Schedule(engine, journal or Journal(), report, [] if ends is None else ends, pace)
    named = names or [str(index) for index in range(len(prompts))]
    given = list(zip(workflows, prompts, seeds, samplings, named, pictures or [()] * len(prompts), strict=True))
    places = [_Place(schedule, *each) for each in given]

    def ended() -> bool:
        return enough is not None and enough([place.outcome for place in places])

    try:
        schedule.run(deque(places), concurrency or len(places), ended)
        for turn in range(1, retries + 1):
            failed = [index for index, place in enumerate(places)
                      if place.outcome and place.outcome.status == "workflow_failed"]
            if not failed or ended():
                break
            for index in failed:
                workflow, prompt, seed, sampling, name, shown = given[index]
                places[index] = _Place(schedule, workflow, prompt, request_seed(f"{seed}/again", turn, 0), sampling,
                                       f"{name}/again/{turn}", shown)
            schedule.run(deque(places[index] for index in failed), concurrency or len(places), ended)
        for place in places:
            if place.outcome is None:
                place.drop()
        schedule.journal.commit()
    finally:
        schedule.abandon()
    return [place.outcome for place in places]


class Progress(NamedTuple):
    """Attempts: all, those that ended, those that wait for a reply of the model, those that wait for a tool; tokens of
    the replies so far."""

    attempts: int
    ended: int
    ask: int
    call: int
    tokens: int

    def __str__(self) -> str:
        waiting = [f"{number} {doing}" for number, doing in ((self.ask, "ask the model"), (self.call, "call a tool"))
                   if number]
        return ", ".join([f"{self.ended} of {self.attempts} attempts ended", f"{thousands(self.tokens)} tokens",
                          *waiting])


class _Schedule:
    """The attempts in progress, and their requests: those to submit, and those at the engine by number."""

    def __init__(self, engine: Engine, journal: Journal, report: Callable[[Progress], None], ends: list[float],
                 pace: Pace | None = None):
        self.engine, self.journal, self.report, self.ends, self.pace = engine, journal, report, ends, pace
        self.active: dict[_Place, None] = {}  # in order of their start
        self.isolated: dict[IsolatedAttempt, _Place] = {}  # those of them with their own processes
        self.new: list[tuple[_Place, int, Request]] = []
        self.flying: dict[int, tuple[_Place, int]] = {}
        self.looked, self.tokens = monotonic(), 0  # looked: at the engine's pressure

    def run(self, waiting: "deque[_Place]", concurrency: int | Concurrency, ends: Callable[[], bool]) -> None:
        total, reported = len(waiting), monotonic()
        while (waiting or self.active) and not ends():
            if monotonic() - reported > REPORT_SECONDS:
                self.report(self._progress(total, len(waiting)))
                reported = monotonic()
            limit = self._limit(concurrency)
            while waiting and len(self.active) < limit:
                waiting.popleft().begin()
            if self.new:
                self._submit()
            if self.isolated:
                self._listen()
                self.journal.commit()  # once for all calls of tools that began or ended meanwhile
            if self.flying:
                replies = self.engine.advance(LISTEN_SECONDS if self.isolated else WAIT_SECONDS)
                self.tokens += sum(len(reply.tokens) for reply in replies.values())
                landed = [(*self.flying.pop(number), reply) for number, reply in replies.items()]
                for place, call, reply in landed:
                    if call in place.pending:  # an earlier one may have ended the attempt
                        place.answer(call, reply)
            if self.pace:
                self._time_out(self.pace)

    def _time_out(self, pace: Pace) -> None:
        """Ends the attempts that have used up the time that `pace` leaves them."""
        now, limit = monotonic(), pace.limit
        while limit is not None and self.active and now - (oldest := next(iter(self.active))).begun > limit:
            oldest.fail(pace.reason(now - oldest.begun))

    def _limit(self, concurrency: int | Concurrency) -> int:
        """Attempts in progress at most, for now."""
        if not isinstance(concurrency, Concurrency):
            return concurrency
        if monotonic() - self.looked > PRESSURE_SECONDS:
            self.looked = monotonic()
            if pressure := self.engine.pressure():
                concurrency.update(pressure, len(self.active))
        return concurrency.limit

    def _progress(self, total: int, waiting: int) -> Progress:
        calling = sum(attempt.calling > 0 for attempt in self.isolated)
        return Progress(total, total - waiting - len(self.active), sum(bool(one.pending) for one in self.active),
                        calling, self.tokens)

    def _submit(self) -> None:
        numbers = self.engine.submit([request for _, _, request in self.new])
        for number, (place, call, _) in zip(numbers, self.new, strict=True):
            self.flying[number] = place, call
            place.pending[call] = place.last = number
        self.new = []

    def _listen(self) -> None:
        """Handles the messages of attempts in other processes, and ends those that have used up their time."""
        now = monotonic()
        soonest = min((one.deadline for one in self.isolated if one.deadline is not None), default=now + IDLE_SECONDS)
        patience = 0.0 if self.flying or self.new else min(max(soonest - now, 0.0), IDLE_SECONDS)
        for attempt, message in host().listen(patience):
            if attempt in self.isolated:
                attempt.take(*message)
        now = monotonic()
        for attempt in [one for one in self.isolated if one.deadline is not None and now >= one.deadline]:
            attempt.time_out()

    def cancel(self, place: "_Place", calls: list[int]) -> None:
        """Drops requests of an attempt."""
        numbers = {call: place.pending.pop(call, None) for call in calls}
        if None in numbers.values():
            self.new = [one for one in self.new if one[0] is not place or one[1] not in numbers]
        if submitted := [number for number in numbers.values() if number in self.flying]:
            self.engine.cancel(submitted)
            for number in submitted:
                del self.flying[number]

    def abandon(self) -> None:
        """Ends the processes that an error left; the engine is of no use after one."""
        for attempt in self.isolated:
            attempt.close()


class _Place:
    """An attempt and its outcome, None until it has one.

    pending: its calls without a reply, with their numbers at the engine, None before they are submitted. last: number
    of its latest request.
    """

    def __init__(self, schedule: _Schedule, workflow: Callable[[list[int]], Attempt] | Isolated, prompt: list[int],
                 seed: int, sampling: Sampling, name: str, pictures: tuple[Picture, ...] = ()):
        self.schedule, self.prompt, self.seed, self.sampling = schedule, prompt, seed, sampling
        self.pictures = pictures
        self.outcome: Outcome | None = None
        self.pending: dict[int, int | None] = {}
        self.asked: dict[int, tuple[int, Request, float, Origin | None, Event | None]] = {}  # by call, from position on
        self.same: Counter[str] = Counter()  # calls with equal prompts
        self.calls: list[Call] = []
        self.said: list[tuple[list[int], Reply, tuple]] = []  # prompts, replies with versions or experts, images
        self.turns, self.last, self.begun, self.replayed = 0, None, 0.0, False
        kind = IsolatedAttempt if isinstance(workflow, Isolated) else InterleavedAttempt
        self.attempt = kind(workflow, prompt, self)
        self.recording = schedule.journal.recording(name) if isinstance(workflow, Isolated) else None

    def begin(self) -> None:
        allowed = self.sampling.max_prompt_tokens
        if len(self.prompt) > allowed:
            reason = f"{len(self.prompt)} prompt tokens, limit model.max_prompt_tokens={allowed}"
            self.outcome, self.attempt = Outcome("prompt_too_long", reason), None
            return
        self.begun = monotonic()
        self.schedule.active[self] = None
        if isinstance(self.attempt, IsolatedAttempt):
            self.schedule.isolated[self.attempt] = self
        self.attempt.begin()

    def answer(self, call: int, reply: Reply) -> None:
        del self.pending[call]
        position, request, begin, origin, event = self.asked.pop(call)
        if reason := getattr(reply, "reason", None):  # of a server (workflows/engines/openai_engine.py)
            return self.fail(reason)
        self._note(request, reply)
        if self.recording:
            seconds = monotonic() - begin
            self.recording.replied(event, reply, seconds)
            self.calls.append(Call(position, request, reply, seconds, origin))
        return self.attempt.answer(call, reply)

    def ask(self, call: int, prompt: list[int], limit: int | None = None, origin: Origin | None = None,
            schema: str | None = None, stop: Stop | None = None, pictures: tuple[Picture, ...] = ()) -> None:
        """Asks the model to continue token ids. call: by which the attempt knows the reply.

        limit: tokens of the reply, if less than the settings allow. origin: of a request to the endpoint. schema,
        stop, pictures: of a Request to the endpoint; others have the images of the task.
        """
        pictures = pictures if origin else self.pictures
        sampling, seed = self.sampling, self._seed(prompt, origin, pictures)
        if self.turns == MOST_CALLS:
            self.fail(f"the workflow called the model {MOST_CALLS} times and did not end; needed fewer calls in an "
                      "attempt")
        elif not origin and pictures and prompt[: len(self.prompt)] != self.prompt:
            self.fail("the workflow asks the model with another prompt than that of its task, which has images; needed "
                      "one that begins with the task's own, as simple_workflow asks, or an agent's endpoint")
        elif 0 < len(prompt) < sampling.max_model_len:
            room = min(sampling.max_response_tokens, sampling.max_model_len - len(prompt), limit or sys.maxsize)
            request = Request(prompt, room, sampling.temperature, sampling.top_p, sampling.top_k, seed, self.last,
                              schema, stop, sampling.min_p, sampling.keeps, pictures)
            self._request(call, request, origin)
        else:  # the engine would reject it, and with it every other request of the call
            self.fail(f"the workflow wants {len(prompt)} tokens continued; needed at least 1, and fewer than "
                      f"{sampling.max_model_len} (model.max_model_len, or prompt + response)")

    def _request(self, call: int, request: Request, origin: Origin | None) -> None:
        """Passes a request to the engine, unless its reply is recorded."""
        position, event, recorded = self.turns, None, None
        self.turns += 1
        if self.recording:
            try:
                event, recorded = self.recording.reply(request)
            except Replayed as error:
                return self.fail(str(error))
        if recorded:
            self.replayed = True
            self._note(request, recorded[0])
            self.calls.append(Call(position, request, *recorded, origin))
            return self.attempt.answer(call, recorded[0])
        self.schedule.new.append((self, call, request))
        self.asked[call] = position, request, monotonic(), origin, event
        self.pending[call] = None
        return None

    def _note(self, request: Request, reply: Reply) -> None:
        if any(said is not None for said in (reply.versions, reply.experts, reply.kept)):
            self.said.append((request.prompt_tokens, reply, request.pictures))

    def _seed(self, prompt: list[int], origin: Origin | None, pictures: tuple[Picture, ...]) -> int:
        """By the number of the call; of the endpoint's by prompt, role and images: parallel requests have no order."""
        if origin is None:
            return request_seed(self.seed, self.turns, 0) if self.turns else self.seed
        asked = (origin.role, prompt) if origin.role else prompt
        asked = (asked, [one.hash for one in pictures]) if pictures else asked
        name = hashlib.sha256(repr(asked).encode()).hexdigest()
        self.same[name] += 1
        return request_seed(f"{self.seed}/{name}", self.same[name], 0)

    def cancel(self, call: int) -> None:
        """Withdraws a question to the model."""
        if call in self.pending:
            self.schedule.cancel(self, [call])

    def finish(self, returned: Any, text: str | None = None, components: dict[str, float] | None = None) -> None:
        """Ends the attempt with what the workflow returned. text, components: what to reward; its reward, if known."""
        if reason := self.recording and self.recording.unused():
            return self.fail(reason)
        outcome = finished(returned, self.sampling.max_model_len)
        if outcome.status == "ok":
            outcome.own_text, outcome.components = text, components or {}
            outcome.notes = getattr(components, "notes", {})
            if reason := settle(outcome):
                return self.fail(reason)
            keeps = self.sampling.keeps
            reasons = [_complete(turn, [(prompt, reply) for prompt, reply, shown in self.said
                                        if turn.pictures is None or turn.pictures[: len(shown)] == shown], keeps)
                       for _, turn, _ in outcome.turns] if self.said or keeps else []
            if reason := next(filter(None, reasons), None):
                return self.fail(reason)
        return self._end(outcome)

    def fail(self, reason: str) -> None:
        self._end(Outcome("workflow_failed", reason))

    def drop(self) -> None:
        """Cancels the attempt, whether it has begun or not."""
        late = Outcome(LATE, "not waited for: enough other groups of the step were complete (explorer.over_rollout)")
        if self in self.schedule.active:
            self._end(late)
        else:
            self.outcome, self.attempt = late, None

    def _end(self, outcome: Outcome) -> None:
        self.outcome, now = outcome, monotonic()
        self.schedule.ends.append(now)
        if self.schedule.pace and outcome.status == "ok" and not self.replayed:  # a replay takes no time
            self.schedule.pace.ended(now - self.begun)
        outcome.calls = sorted(self.calls, key=lambda call: call.position)
        outcome.tool_calls = self.recording.tool_calls if self.recording else []
        del self.schedule.active[self]
        self.schedule.isolated.pop(self.attempt, None)
        self.attempt.close()
        self.attempt = None  # it refers to this: the two, with all that was sampled, would wait for a garbage collector
        if self.pending:
            self.schedule.cancel(self, list(self.pending))


def _complete(turn: Trajectory, said: list[tuple[list[int], Reply]], keeps: bool) -> str | None:
    """Adds what the replies to an attempt's calls say of the tokens of a turn; returns why it cannot be trained on.

    keeps: of its requests.
    """
    first = said[0][1] if said else Reply([], [], "")
    if first.versions is not None:
        turn.versions = sampled_versions(turn.prompt_tokens, turn.response_tokens, said)
    if first.experts is None and not keeps:
        return None
    found = origins(turn.prompt_tokens, turn.response_tokens, said)
    acts = [one for one, acts in zip(found, turn.action_mask, strict=True) if acts]
    if first.experts is not None:
        turn.experts = np.stack([reply.experts[place] for reply, place in acts]) if acts and all(acts) else None
    if keeps and not all(acts):
        return ("the workflow trains on tokens that no reply of the model has: what they were sampled among is not "
                "known (top_k of the set or of model). Needed an action_mask of 0 there")
    turn.kept = _kept(found, turn.action_mask) if keeps else None
    return None


def _kept(found: list[tuple[Reply, int] | None], mask: list[int]) -> Kept:
    """What each token of a turn was sampled among. found: of `origins`."""
    replies = {id(reply): reply for reply, _ in filter(None, found)}
    if len(replies) == 1 and all(found) and all(mask):
        (reply,) = replies.values()
        if [place for _, place in found] == list(range(len(reply.kept.counts))):  # the usual turn
            return reply.kept
    sets = {key: reply.kept.sets() for key, reply in replies.items()}  # once a reply: a split of all of its tokens
    nothing = np.empty(0, np.int32)
    return Kept.of([sets[id(one[0])][one[1]] if acts else nothing for one, acts in zip(found, mask, strict=True)])
