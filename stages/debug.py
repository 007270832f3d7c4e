"""`ouro debug workflow`: one attempt at one task, in full: its calls of the model, rows, masks and reward.

Reads the recipe and its data, and writes nothing: a model that a recipe makes is made in a temporary directory. Tasks
are counted in the rows as they are read, because curation is a stage.
"""

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import Taskset, workflow_of
from ouroboros.pipeline.settings.row_columns import asked_columns
from ouroboros.pipeline.store import checkpoints, files, images, weights
from ouroboros.pipeline.store.digests import resolve
from ouroboros.pipeline.store.errors import ConfigError, DataError
from ouroboros.pipeline.store.harbor import read_task
from ouroboros.pipeline.store.light_imports import import_transformers_light
from ouroboros.pipeline.store.records import RawTask, Task
from ouroboros.stages import model as model_stage
from ouroboros.stages import tasks as tasks_stage
from ouroboros.workflows.attempts.isolated import Isolated
from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.attempts.traced import Traced
from ouroboros.workflows.attempts.user_reward import Rule
from ouroboros.workflows.engines import openai_engine
from ouroboros.workflows.engines.open import open_one, with_cache
from ouroboros.workflows.engines.vllm_tools import import_parsers
from ouroboros.workflows.protocol.engine import WAIT_SECONDS, BatchEngine, Engine, Reply, Request
from ouroboros.workflows.protocol.outcomes import Outcome, RewardFunction, Sampling, decode
from ouroboros.workflows.protocol.prompts import chat_template, end_tokens, load_tokenizer, prompt_tokens, turn_end
from ouroboros.workflows.rewards import Rewards, add_own_rewards
from ouroboros.workflows.single_turn import load_workflows
from ouroboros.workflows.task_at_hand import TaskAtHand, bound, calls_in, unwritable
from ouroboros.workflows.template_rows import task_prompts

ANSWER = "answer"  # a script of one reply: the task's own solution, or its truth
WIDEST = 2000  # characters of a text
IDS = 8  # token ids shown of a row


@dataclass(frozen=True)
class Asked:
    """What `ouro debug workflow` was asked for. In place of the recipe's model: checkpoint, the directory of another;
    script; server, the settings of a ouroboros.pipeline.settings.remote.Remote.
    """

    task: int = 0
    taskset: str | None = None
    checkpoint: Path | None = None
    script: str | None = None
    server: dict[str, str | None] | None = None


@dataclass
class Call:
    """A request to the model, and its reply if it came."""

    request: Request
    begun: float
    reply: Reply | None = None
    seconds: float = 0.0


class Watched(Engine):
    """An engine that keeps its requests and replies, with their times."""

    def __init__(self, engine: Engine):
        self._engine, self.version, self.calls = engine, engine.version, {}

    def submit(self, requests: Sequence[Request]) -> list[int]:
        numbers, now = self._engine.submit(requests), time.perf_counter()
        self.calls |= {number: Call(one, now) for number, one in zip(numbers, requests, strict=True)}
        return numbers

    def advance(self, seconds: float = WAIT_SECONDS) -> dict[int, Reply]:
        replies = self._engine.advance(seconds)
        for number, reply in replies.items():
            call = self.calls[number]
            call.reply, call.seconds = reply, time.perf_counter() - call.begun
        return replies

    def cancel(self, numbers) -> None:
        self._engine.cancel(numbers)

    def close(self) -> None:
        self._engine.close()


class Script(BatchEngine):
    """Replies with given texts, in order."""

    version = "script"

    def __init__(self, texts: Sequence[str], tokenizer):
        super().__init__()
        self._texts, self._left, self._tokenizer = len(texts), list(texts), tokenizer

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        return [self._next(request) for request in requests]

    def _next(self, request: Request) -> Reply:
        if not self._left:
            return openai_engine.Failed(f"the script has {self._texts} replies, and the workflow asks for another")
        tokens = self._tokenizer(self._left.pop(0), add_special_tokens=False)["input_ids"]
        said = [*tokens, turn_end(self._tokenizer)][: request.max_tokens]
        return Reply(said, [0.0] * len(said), "stop" if len(said) > len(tokens) else "length")

    def close(self) -> None:
        """Does nothing: there is no process."""


class _TracedRewards(Rewards):
    def of(self, taskset, tasks: Sequence = ()) -> list[RewardFunction]:
        return [replace(one, function=Traced(one.function)) if isinstance(one, Rule) else one
                for one in super().of(taskset, tasks)]


def debug(settings: Config, asked: Asked, show: Callable[[str], object] = print) -> bool:
    """Runs the attempt by the settings of a stage, and shows it; returns whether it has a reward."""
    if asked.server:
        settings = settings.merged({"explorer": {"rollout_model": {"engine_type": "openai", "external": asked.server}}})
        if problems := list(settings.explorer.rollout_model.external.broken_rules("external")):
            raise ConfigError.of("the server cannot be asked:", problems)
    place, taskset = _taskset(settings, asked.taskset)
    task = _task(settings, taskset, place, asked.task)
    show(f"task {asked.task} of {taskset.name}, as read: {_short(task.question)}\ntruth: {_short(task.answer)}")
    with ExitStack() as stack:
        tokenizer, engine, settings = _opened(settings, asked, task, stack)
        watched = Watched(engine)
        stack.callback(watched.close)
        rewards = (opener := _TracedRewards(settings)).by_task(taskset, [task])[0]
        sampling = Sampling.of_set(settings.model, taskset.rollout_args)
        texts, reasons = task_prompts(tokenizer, [task], settings)
        workflow = unwritable(reasons[0]) if reasons else _workflow(settings, taskset, place, task, tokenizer, rewards)
        begin = time.perf_counter()
        [outcome] = roll_out(watched, [workflow], prompt_tokens(tokenizer, texts), [settings.seed], [sampling])
        decode([outcome], tokenizer)
        with opener.judged_by(engine, tokenizer):
            add_own_rewards([outcome], [task], [rewards], [0], settings)
        seconds = time.perf_counter() - begin
        for line in [*_calls(watched, tokenizer, settings), *_rows(outcome), *_ending(outcome, watched, seconds)]:
            show(line)
    return outcome.reward is not None


def _taskset(settings: Config, name: str | None) -> tuple[str, Taskset]:
    source = settings.buffer.explorer_input
    found = [(place, one) for place, one in source.places if name in (None, one.name)]
    if not found:
        raise ConfigError(f"no task set '{name}'; there are {', '.join(one.name for _, one in source.places)}.")
    return found[0]


def _task(settings: Config, taskset: Taskset, place: str, number: int) -> Task:
    """A row of a set that is a task. Raises DataError when it has fewer."""
    rows = ([row for row in tasks_stage.read_pool(settings) if row.solution is None] if taskset.path is None else
            tasks_stage.read_set(taskset.path, taskset.subset_name, taskset.split, taskset.format, "task",
                                 f"buffer.explorer_input.{place}.path",
                                 asked=asked_columns(taskset, settings.buffer.explorer_input, place)))
    usable: list[RawTask] = [row for row in rows if row.question and row.answer is not None and not row.problem]
    if not 0 <= number < len(usable):
        raise DataError(f"--task {number}: task set '{taskset.name}' has {len(usable)} tasks, counted from 0.")
    one = usable[number]
    if one.pictures:
        raise DataError(f"--task {number} of '{taskset.name}' has images, which ouro debug does not show to a model; "
                        "needed a task of text.")
    harbor_set = taskset.name in tasks_stage.harbor_sets(settings.buffer)
    answer = _in_image(settings, one.answer) if harbor_set else one.answer
    return Task("debug", one.row, "train", one.question, answer, one.solution, one.context, messages=one.messages,
                columns=one.columns)


def _in_image(settings: Config, truth: str) -> str:
    """The truth of a Harbor task with its image, if it has one. Raises DataError where that is not built yet."""
    task = read_task(Path(json.loads(truth)["directory"]))
    given, root = settings.environment.images, settings.checkpoint_root_dir
    if not task.is_built:
        return truth
    place = images.place_of(root, images.environment_of(task, given, root).key)
    if not place.exists():
        raise DataError(f"{task.directory} needs an image, which is not built yet: `ouro run` with this recipe and `-- "
                        "--until images` builds it.")
    return tasks_stage.with_image(truth, place, images.read_image(place).digest)


def _opened(settings: Config, asked: Asked, task: Task, stack: ExitStack):
    """The tokenizer and the engine, and the settings by which they are used."""
    if settings.explorer.rollout_model.engine_type == "openai" and asked.script is None:
        return openai_engine.text_tokenizer(), open_one(None, settings, [], False, None), openai_engine.limits(settings)
    if asked.script is not None:
        import_transformers_light()
        tokenizer = (_character_tokenizer(settings) if settings.model.init.enable else
                     load_tokenizer(_named_model(settings), settings.model))
        return tokenizer, Script(_replies(asked.script, task), tokenizer), settings
    directory = asked.checkpoint or _model(settings, stack)
    tokenizer = load_tokenizer(directory, settings.model)
    sized = with_cache(settings, directory)
    return tokenizer, open_one(directory, sized, end_tokens(tokenizer, directory), False, None), settings


def _character_tokenizer(settings: Config):
    """The tokenizer of a model that the recipe makes, with the recipe's chat template."""
    tokenizer = model_stage.character_tokenizer(settings.model.longest)
    tokenizer.chat_template = chat_template(settings.model) or tokenizer.chat_template
    return tokenizer


def _model(settings: Config, stack: ExitStack) -> Path:
    """The recipe's model; a random one in a temporary directory where the recipe makes its own."""
    if settings.model.init.enable:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model_stage.work(SimpleNamespace(config=settings, directory=directory, inputs={}, made={}))
        return directory
    return weights.whole_model(_named_model(settings), "model.model_path")


def _named_model(settings: Config) -> Path:
    if not settings.model.model_path:
        raise ConfigError("the recipe names no model: set model.model_path, or give --checkpoint, --script or --url.")
    return checkpoints.model_directory(resolve(settings.model.model_path))


def _replies(script: str, task: Task) -> list[str]:
    if script == ANSWER:
        return [task.solution or task.answer]
    try:
        texts = json.loads(files.require_file(Path(script), f"--script {script}").read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"--script {script} is no JSON ({error}); needed a list of texts.") from error
    if not (isinstance(texts, list) and all(isinstance(one, str) for one in texts)):
        raise DataError(f"--script {script}: needed a JSON list of texts, one for each reply.")
    return texts


def _workflow(settings: Config, taskset: Taskset, place: str, task: Task, tokenizer, rewards: list[RewardFunction]):
    """The workflow of a set, for the task."""
    name = workflow_of(taskset, settings.buffer.explorer_input, place)
    [loaded] = load_workflows(name, [task], taskset.workflow_args, settings.explorer.max_timeout)
    if getattr(loaded, "speaks", False) and settings.explorer.rollout_model.engine_type != "openai":
        import_parsers()  # takes seconds, and is no part of the attempt
    traced = replace(loaded, function=Traced(loaded.function)) if isinstance(loaded, Isolated) else Traced(loaded)
    return bound(traced, lambda: TaskAtHand(task, rewards, tokenizer, settings))


# ------------------------------------------------------------------------------------------------------- what is shown


def _calls(watched: Watched, tokenizer, settings: Config) -> list[str]:
    """Each call of the model: what is new in its prompt, the reply, its tool calls, its time."""
    lines, before = [], []
    for place, call in enumerate(watched.calls.values()):
        prompt = call.request.prompt_tokens
        same = prompt[: len(before)] == before
        new = tokenizer.decode(prompt[len(before):] if same else prompt)
        known = f", {len(before)} as before" if same and before else ""
        lines.append(f"\n[call {place}] prompt {len(prompt)} tokens{known}\n{_short(new)}")
        if call.reply is None or not call.reply.tokens:
            lines.append("[no reply]")
            continue
        lines.append(f"[reply] {len(call.reply.tokens)} tokens, {call.reply.finish_reason}, {call.seconds:.2f} s\n"
                     f"{_short(tokenizer.decode(call.reply.tokens))}")
        said = tokenizer.decode([one for one in call.reply.tokens if one != turn_end(tokenizer)])
        lines += [f"[tool call] {name}({arguments})" for name, arguments in calls_in(said, tokenizer, settings)]
        before = [*prompt, *call.reply.tokens]
    return lines


def _rows(outcome: Outcome) -> list[str]:
    """Each row to train on: its tokens, and runs of its mask."""
    lines = []
    for turn, row, _ in outcome.turns:
        if row is None:
            continue
        runs = " ".join(f"{value}x{len(list(same))}" for value, same in groupby(row.action_mask))
        lines.append(f"\n[row {turn or 0}] prompt {len(row.prompt_tokens)} tokens {_ids(row.prompt_tokens)}, response "
                     f"{len(row.response_tokens)} tokens {_ids(row.response_tokens)}, mask {runs}"
                     + (f", reward of the turn {row.reward:g}" if row.reward is not None else ""))
    return lines


def _ending(outcome: Outcome, watched: Watched, seconds: float) -> list[str]:
    model = sum(call.seconds for call in watched.calls.values())
    parts = ", ".join(f"{name}={value:g}" for name, value in outcome.components.items())
    result = (f"reward {outcome.reward:g} ({parts})" if outcome.reward is not None else
              f"{outcome.status}: {outcome.reason}")
    return [f"\n{result}\n{seconds:.2f} s, of which the model {model:.2f} s in {len(watched.calls)} calls "
            f"({watched.version})"]


def _ids(tokens: Sequence[int]) -> str:
    return f"[{' '.join(map(str, tokens[:IDS]))}{' …' * (len(tokens) > IDS)}]"


def _short(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[:WIDEST]}… ({len(text)} characters)"
