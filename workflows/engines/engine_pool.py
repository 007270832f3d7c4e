"""A pool of engines behind one interface, each in its own process with its own GPUs or CPU cores.

vLLM's own data parallelism is for servers: `vllm.LLM(data_parallel_size=2)` raises an error. An answer does not depend
on the number of engines, because a request contains everything that determines it (workflows/protocol/engine.py).

The processes are started as commands, not by multiprocessing's spawn, which would import the parent's main module again
and allows no separate log or environment. Messages are length-prefixed pickles (multiprocessing.connection) of numbers,
texts and our dataclasses, through the processes' standard input and output: no other process can open these, and
SLURM's `srun` carries them to other nodes, so that nothing listens on a network.
"""

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from ouroboros.pipeline.job import step
from ouroboros.pipeline.job.context import ending, our_environment
from ouroboros.pipeline.job.devices import visible_gpus
from ouroboros.pipeline.job.ending import SIGNALS, Stopped
from ouroboros.pipeline.job.shares import cores, deal, deal_cores
from ouroboros.pipeline.job.threads import thread_environment
from ouroboros.pipeline.store import launch
from ouroboros.pipeline.store.errors import StageError
from ouroboros.pipeline.store.pictures import Picture
from ouroboros.workflows.protocol.engine import (
    ERROR,
    PRESSURE,
    REPLIES,
    VALUE,
    WAIT_SECONDS,
    Engine,
    Pressure,
    Reply,
    Request,
)

PROCESS = "ouroboros.workflows.engines.engine_process"
GRACE_SECONDS = 10.0  # for a process to exit by itself after it was asked to


@dataclass
class Member:
    """One process of the pool, identified by its log name."""

    name: str
    process: subprocess.Popen
    questions: Connection  # write end
    answers: Connection  # read end
    log: Path
    costs: dict[int, int] = field(default_factory=dict)  # of its requests in progress: number -> tokens at most
    pressure: Pressure | None = None  # as it was last sent


class EnginePool(Engine):
    """An Engine of several processes. Deals requests, broadcasts the rest; a failure ends all.

    The number of a request modulo the number of engines is the index of its engine.
    """

    def __init__(self, model: Path, config, end_tokens: list[int], sleeps: bool, logs: Path, adapter=None,
                 shared_by: int = 1, device_free: Callable[[], object] = lambda: None, name: str = "engine",
                 gpus: list[str] | None = None, begun: Sequence[Member] = ()):
        """shared_by: the number of engines on each GPU. device_free: as in `open_engine`. name, gpus: as in `begin`.
        begun: what it returned."""
        self._members = [*(begun or begin(config, shared_by, logs, name, gpus))]
        self._serial, self.number = count(), len(self._members)
        given = model, _part(config, shared_by), end_tokens, sleeps, adapter
        with ended_on_error(self._members):
            device_free()
        versions, started = zip(*self._ask_all("open", *given), strict=True)
        self.version = versions[0]
        self.started = {part: max(one[part] for one in started) for part in started[0]}

    def submit(self, requests: Sequence[Request]) -> list[int]:
        numbers = [next(self._serial) * len(self._members) + place for place in self._places(requests)]
        with ended_on_error(self._members):
            for index, member in enumerate(self._members):
                own = [(n, r) for n, r in zip(numbers, requests, strict=True) if n % len(self._members) == index]
                member.costs |= {number: _cost(request) for number, request in own}
                if own:
                    self._send(member, ("submit", tuple(map(list, zip(*own, strict=True)))))
        return numbers

    def _places(self, requests: Sequence[Request]) -> list[int]:
        """The index of an engine for each request.

        The first ones are dealt by cost; later ones go where the request that they follow was answered, or to the
        engine with the least left to do.
        """
        if not any(member.costs for member in self._members):
            dealt = deal([_cost(one) for one in requests], len(self._members))
            places = [place for place, part in enumerate(dealt) for _ in requests[part]]
        else:
            left = [sum(member.costs.values()) for member in self._members]
            places = []
            for one in requests:
                places.append(left.index(min(left)))
                left[places[-1]] += _cost(one)
        return [place if one.follows is None else one.follows % len(self._members)
                for place, one in zip(places, requests, strict=True)]

    def advance(self, seconds: float = WAIT_SECONDS) -> dict[int, Reply]:
        """Waits at most so long for replies of any engine."""
        found: dict[int, Reply] = {}
        with ended_on_error(self._members):
            busy = {member.answers: member for member in self._members if member.costs}
            for ready in wait(list(busy), seconds):
                kind, replies = self._receive(busy[ready])
                if kind == PRESSURE:
                    busy[ready].pressure = replies
                    continue
                found |= {n: reply for n, reply in replies.items() if busy[ready].costs.pop(n, None) is not None}
            self._check(busy.values())
        return found

    def cancel(self, numbers: Iterable[int]) -> None:
        dropped = set(numbers)
        with ended_on_error(self._members):
            for member in self._members:
                if own := dropped & member.costs.keys():
                    member.costs = {n: cost for n, cost in member.costs.items() if n not in own}
                    self._send(member, ("cancel", (own,)))

    def interrupt(self) -> dict[int, Reply]:
        found: dict[int, Reply] = {}
        parts = self._ask("interrupt", [() if member.costs else None for member in self._members], found)
        for member, part in zip(self._members, parts, strict=True):
            found |= part or {}
            member.costs = {}
        return found

    def pressure(self) -> Pressure | None:
        """Of the fullest cache, and all preemptions, as of the last call: engines send theirs while they compute."""
        with ended_on_error(self._members):
            for member in self._members:
                if member.costs:
                    self._send(member, ("pressure", ()))
        known = [member.pressure for member in self._members if member.pressure]
        return Pressure(max(one.usage for one in known), sum(one.preemptions for one in known)) if known else None

    def score(self, sequences: Sequence[list[int]]) -> list[list[float]]:
        return self._dealt("score", sequences)

    def prompt_logprobs(self, sequences: Sequence[list[int]], count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        return self._dealt("prompt_logprobs", sequences, count)

    def _dealt(self, method: str, sequences: Sequence[list[int]], *others) -> list:
        parts = [sequences[part] for part in deal([len(tokens) for tokens in sequences], len(self._members))]
        found = self._ask(method, [(part, *others) if part else None for part in parts])
        return [answer for answers in found for answer in answers or ()]

    def probe(self, sequence: list[int], pictures: tuple[Picture, ...] = ()) -> list[list[float]]:
        return [scored for found in self._ask_all("probe", sequence, pictures) for scored in found]

    def likeliest(self, sequence: list[int], temperature: float, pictures: tuple[Picture, ...] = ()
                  ) -> list[dict[int, float]]:
        return [found for part in self._ask_all("likeliest", sequence, temperature, pictures) for found in part]

    def load_weights(self, directory: Path) -> None:
        self._ask_all("load_weights", directory)

    def sleep(self) -> None:
        self._ask_all("sleep")

    def wake(self) -> None:
        self._ask_all("wake")

    def close(self) -> None:
        self._ask_all("close")
        self._end()  # they have answered: nothing is lost, and a process with vLLM takes seconds to end by itself

    def _ask_all(self, method: str, *arguments) -> list:
        return self._ask(method, [arguments] * len(self._members))

    def _ask(self, method: str, arguments: Sequence[tuple | None], replies: dict[int, Reply] | None = None) -> list:
        """One answer from each engine, in order; None for engines with arguments None, which are skipped.

        No request may be in progress, unless `replies` takes those that come before the answers. Raises what an engine
        raised, StageError when its process died or Stopped when a signal ended it, after ending all engines.
        """
        idle = not any(member.costs for member in self._members)
        assert idle or replies is not None, "engines answer one method at a time"
        answers: dict[str, object] = {}
        with ended_on_error(self._members):
            asked = [pair for pair in zip(self._members, arguments, strict=True) if pair[1] is not None]
            for member, given in asked:
                self._send(member, (method, given))
            waiting = {member.answers: member for member, _ in asked}
            while waiting:
                for ready in wait(list(waiting), WAIT_SECONDS):
                    kind, value = self._receive(waiting[ready])
                    if kind == REPLIES and replies is not None:
                        replies |= {n: one for n, one in value.items() if n in waiting[ready].costs}
                    if kind == VALUE:  # not the late replies to cancelled requests
                        answers[waiting.pop(ready).name] = value
                self._check(waiting.values())
        return [answers.get(member.name) for member in self._members]

    def _check(self, waiting: Iterable[Member]) -> None:
        """Raises if the process of an engine that is waited for has died."""
        for member in waiting:
            if member.process.poll() is not None and not member.answers.poll():
                raise self._died(member)

    def _send(self, member: Member, message: tuple) -> None:
        try:
            member.questions.send(message)
        except OSError as error:
            while member.answers.poll():  # it may have said why, after other answers
                self._receive(member)
            raise self._died(member) from error

    def _receive(self, member: Member) -> tuple[str, Any]:
        try:
            kind, value = member.answers.recv()
        except (EOFError, OSError) as error:
            raise self._died(member) from error
        if kind == ERROR:
            raise type(value)(f"{self._called(member)} failed: {value}\n  its log: {member.log}") from value
        return kind, value

    def _died(self, member: Member) -> StageError | Stopped:
        try:
            code = member.process.wait(GRACE_SECONDS)
            if -code in SIGNALS:
                return Stopped(-code)
            how = ending(code)
        except subprocess.TimeoutExpired:
            how = "closed its connection"
        return StageError(f"{self._called(member)} died: {how}\n  its log: {member.log}")

    def _called(self, member: Member) -> str:
        return f"{member.name} (of {len(self._members)}, process {member.process.pid})"

    def _end(self) -> None:
        _end(self._members)


@contextmanager
def ended_on_error(members: Sequence[Member]) -> Iterator[None]:
    """Ends all processes, those that the block adds too, where it raises."""
    try:
        yield
    except BaseException:
        _end(members)
        raise


def _end(members: Sequence[Member]) -> None:
    """Ends all processes."""
    for member in members:
        member.questions.close()
        member.answers.close()
        if member.process.poll() is None:
            member.process.kill()
        member.process.wait()


def _cost(request: Request) -> int:
    return len(request.prompt_tokens) + request.max_tokens


def _part(config, shared_by: int):
    """Returns the settings of an engine that shares its GPUs: its part of their memory and of the sequences."""
    model = config.explorer.rollout_model
    if shared_by == 1:
        return config
    return config.but("explorer.rollout_model", model.merged({
        "engines_per_gpu": shared_by, "gpu_memory_utilization": model.gpu_memory_utilization / shared_by,
        "max_num_seqs": -(-model.max_num_seqs // shared_by)}))


def begin(config, shared_by: int, logs: Path, name: str = "engine", gpus: list[str] | None = None) -> list[Member]:
    """Starts the processes of a pool, which import their libraries until it is opened. shared_by: as in EnginePool.
    name: of their logs. gpus: those of all engines, which a signal to this process's group does not reach then; None:
    those visible here."""
    members: list[Member] = []
    with ended_on_error(members):
        for index, (command, environment) in enumerate(_commands(config, shared_by, gpus)):
            members.append(_start(f"{name}_{index}", command, environment, logs, gpus is not None))
        for member in members:  # a process that still starts does not read yet
            with suppress(OSError):  # it died: opening says so
                member.questions.send(("import_libraries", (config,)))
    return members


def _commands(config, shared_by: int, gpus: list[str] | None = None) -> list[tuple[list[str], dict[str, str]]]:
    """Returns command and environment of every engine: with its own GPUs if there are any, or those of its neighbours
    that share them, else its own cores. With several nodes, each has the same number of engines."""
    model = config.explorer.rollout_model
    gpus = visible_gpus(config.cluster.gpu_per_node) if gpus is None else gpus
    number, each, available = model.engine_num, model.tensor_parallel_size, cores()
    if config.cluster.node_num > 1:
        on_node, taken = number // config.cluster.node_num, each if config.cluster.gpu_per_node else 0
        places = [(index - on_node) * each for index in range(on_node)]  # the trainer's ranks are on the first GPUs
        return [(step.command([PROCESS], place, taken, [node], 1), {}) for node in step.nodes() for place in places
                for _ in range(shared_by)]
    if gpus:
        assert len(gpus) >= number * each, "the stage has counted them"
        shares = [({"CUDA_VISIBLE_DEVICES": ",".join(gpus[i * each : (i + 1) * each])}, available)
                  for i in range(number) for _ in range(shared_by)]
    else:
        shares = [(thread_environment(len(own)), own) for own in deal_cores(available, number)]
    return [(launch.command(PROCESS, ",".join(map(str, own))), environment) for environment, own in shares]


def _start(name: str, command: list[str], environment: dict[str, str], logs: Path, apart: bool) -> Member:
    with open(logs / f"{name}.log", "ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                   env={**our_environment(), **environment}, start_new_session=apart)
    questions = Connection(os.dup(process.stdin.fileno()), readable=False)
    answers = Connection(os.dup(process.stdout.fileno()), writable=False)
    process.stdin.close()
    process.stdout.close()
    return Member(name, process, questions, answers, logs / f"{name}.log")
