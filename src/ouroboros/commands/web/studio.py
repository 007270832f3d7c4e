"""The server of `ouro studio`: the page of `ouro view`, and on it the tab "new run", recipes in a form.

It writes recipes below the directory where it was started, and starts runs with `ouro run`, which outlive it.
"""

import re
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from starlette.concurrency import run_in_threadpool
from starlette.routing import Route

from ouroboros.commands.web import drafts, overview
from ouroboros.commands.web.app import App, listen
from ouroboros.commands.web.command import command
from ouroboros.pipeline.check.fields import fields
from ouroboros.pipeline.results import sweep_view
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import ConfigError, DataError, OuroError
from ouroboros.pipeline.store.yaml_aliases import refuse_large

KINDS = {"task": int, "words": list, "field": dict}  # of what a request gives; of others a text
WORD = re.compile(r"[A-Za-z][\w.]*=.+")  # of a sweep
RUN = re.compile(  # in what `ouro run --detach` prints
    r"^(?:ouro: (.+) runs in the background as process|nothing to do: all \d+ stages of (.+) are complete$)", re.M)
QUESTIONS = [  # of the page for beginners: title, what is asked, settings
    ("run", "What is it called?", ["project", "name", "seed"]),
    ("model", "Which model is trained?", [
        "model.model_path", "model.init.enable", "model.max_prompt_tokens", "model.max_response_tokens",
        "model.temperature"]),
    ("data", "What is it asked?", [
        "buffer.explorer_input.taskset.path", "buffer.explorer_input.taskset.format.prompt_key",
        "buffer.explorer_input.taskset.format.response_key", "data_processor.task_pipeline.inputs",
        "data_processor.task_pipeline.format.prompt_key", "data_processor.task_pipeline.format.response_key",
        "data_processor.task_pipeline.generator", "data_processor.task_pipeline.generator_args",
        "buffer.explorer_input.system_prompt", "buffer.explorer_input.eval_tasksets",
        "buffer.trainer_input.experience_buffer.path"]),
    ("reward", "When is an answer good?", [
        "buffer.explorer_input.default_reward_fn_type", "buffer.explorer_input.taskset.reward_fn_args",
        "buffer.explorer_input.default_workflow_type"]),
    ("algorithm", "How does it learn?", [
        "algorithm.algorithm_type", "algorithm.repeat_times", "algorithm.optimizer.lr",
        "algorithm.optimizer.lr_scheduler_type", "algorithm.optimizer.lr_warmup_steps"]),
    ("resources", "How long, and on what?", [
        "buffer.batch_size", "buffer.total_epochs", "buffer.total_steps", "mode", "cluster.gpu_per_node",
        "cluster.gpu_memory_gib", "trainer.max_token_len_per_gpu", "trainer.save_interval"]),
]


class Studio(App):
    ADDED: ClassVar = ("studio.css", "studio_form.js", "studio_panel.js", "studio.js")

    def __init__(self, token: str):
        super().__init__(Path(), token)
        self._drafts = drafts.Drafts()

    def routes(self) -> list[Route]:
        answers = {
            "form": lambda _: {"fields": fields(), "questions": QUESTIONS, "recipes": drafts.recipes(self.root),
                               "suggestions": drafts.suggestions(self.root), "paces": overview.paces(self.root),
                               "directory": str(self.root.resolve())},
            "columns": self._with(drafts.columns, "path", "prompt_key", "response_key"),
            "open": self._with(drafts.opened, "file"), "save": self._with(drafts.save, "file", "text", "digest"),
            "new": self._with(new, "data", "model", "name", "prompt_key", "response_key"),
            "start": self._start,
            "edit": lambda asked: drafts.edited(*_given(asked, "text", "stage", "key", "value", "field")),
            "judge": lambda asked: self._drafts.judge(*_given(asked, "text", "file")),
            "measure": lambda asked: measured(*_given(asked, "text", "file")),
            "prompt": lambda asked: prompted(*_given(asked, "text", "file", "stage", "task")),
        }
        return [*super().routes(), *(self.posted(f"studio/{name}", partial(run_in_threadpool, answer))
                                     for name, answer in answers.items())]

    def warm(self) -> None:
        """Judges a recipe once, which imports what that takes: seconds that the first page would wait."""
        self._drafts.judge("name: run\n", "warm.yaml")

    def _with(self, work: Callable, *names: str) -> Callable[[dict[str, Any]], Any]:
        return lambda asked: work(self.root, *_given(asked, *names))

    def _start(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Starts the run of a recipe that was saved, in the background; returns what `ouro run` printed, and the
        address of its page."""
        file, words = _given(asked, "file", "words")
        path = drafts.place(self.root, file)
        said = started(file, words)
        found = RUN.search(said)
        if not found or (self.root / drafts.root_of(path, words)).resolve() != self.root.resolve():
            return {"said": said, "page": None}
        (first, *_) = sweep_view.runs_of(sweep_view.find(self.root, found[1] or found[2]))
        return {"said": said, "page": f"#/run/{first.run}"}


def _given(asked: dict[str, Any], *names: str) -> list[Any]:
    """Returns the fields of a request, null for absent ones. Raises ConfigError for another type, or a large text."""
    found = [asked.get(name) for name in names]
    for name, value in zip(names, found, strict=True):
        refuse_large(len(str(value)), name)
        kind = KINDS.get(name, str)
        if name in ("path", "data", "model", "name", "stage") and not str(value).isprintable():
            raise ConfigError(f"{name}={value!r}: needed letters that can be printed.")
        if not isinstance(value, kind) and not (value is None and name in (
                "value", "digest", "prompt_key", "response_key")):
            raise ConfigError(f"needed {name}, found {value!r}.")
    return found


def measured(text: str, file: str) -> dict[str, Any]:
    """Returns what `ouro config check` says of a draft, with samples of data, sizes of models, code and rewards of the
    user: in its own process."""
    with tempfile.TemporaryDirectory() as directory:
        path = drafts.written(text, directory)
        done = command("config", "check", f"recipe={path}", "--format", "json")
        try:
            return drafts.named(done.stdout, path, file)
        except ValueError as error:
            said = done.stderr.strip().removeprefix("ouro: ")
            raise OuroError(said or "`ouro config check` printed nothing.") from error


def prompted(text: str, file: str, stage: str, task: int) -> dict[str, Any]:
    """Returns what `ouro debug workflow` prints of a task whose reply is its own truth: the prompt as the model sees
    it, tokens, and the reward. stage: "" for the first that explores."""
    with tempfile.TemporaryDirectory() as directory:
        path = drafts.written(text, directory)
        done = command("debug", "workflow", str(path), "--script", "answer", "--task", str(task),
                        *(["--stage", stage] if stage else []))
    said = "\n".join(filter(None, (done.stdout.strip(), done.stderr.strip())))
    return {"text": said.replace(str(path), file)}


def started(file: str, words: list[str]) -> str:
    """Starts `ouro run` in the background, a sweep where there are words `key=a,b`; returns what it printed."""
    if wrong := [word for word in words if not (isinstance(word, str) and WORD.fullmatch(word) and word.isprintable())]:
        raise ConfigError(f"{wrong[0]!r}: needed a setting and its values, key=a,b.")
    done = command("run", "--detach", *(["--multirun"] if words else []), f"recipe={file}", *words)
    if done.returncode:
        raise OuroError((done.stderr.strip() or done.stdout.strip()).removeprefix("ouro: "))
    return "\n".join(filter(None, (done.stdout.strip(), done.stderr.strip())))


def new(root: Path, data: str, model: str, name: str, prompt_key: str | None, response_key: str | None
        ) -> dict[str, Any]:
    """Returns a recipe for data and a model, as `ouro init` writes it, and what was guessed; its other files (a reward,
    rows that are rewritten) are written. Raises DataError where one of them is there already."""
    from ouroboros.commands.init.command import project_files

    file = str(drafts.GROUP / f"{name}.yaml")
    if drafts.own_place(root, file).exists():
        raise DataError(f"{file} exists. Give this recipe another name, or open that one.")
    keys = {"prompt_key": prompt_key or None, "response_key": response_key or None}
    written, notes = project_files(data, model, keys, re.sub(r"\W", "_", name), root)
    text = written.pop(str(drafts.GROUP / "project.yaml"))
    beside = {one: content for one, content in written.items() if one != "README.md"}
    if there := [one for one in beside if (root / one).exists()]:
        raise DataError(f"{', '.join(there)}: there already, and the recipe would write another. Start `ouro "
                        "studio` in another directory.")
    for one, content in beside.items():
        files.write_atomic(root / one, partial(Path.write_text, data=content, encoding="utf-8"))
    return {"text": text, "file": file, "digest": None, "notes": notes + [f"{one}: written" for one in beside]}


def serve(port: int, opened: Callable[[str], None], file: str | None = None) -> None:
    """Answers until it is interrupted, for recipes of the current directory. opened: as of app.serve. file: that the
    page begins with. Raises OuroError for one that cannot be opened."""
    from urllib.parse import urlencode

    if file is not None:
        drafts.opened(Path(), file)

    def begun(token: str) -> Studio:
        made = Studio(token)
        threading.Thread(target=made.warm, daemon=True).start()
        return made

    listen(begun, port, opened, f"#/new?{urlencode({'file': file})}" if file else "#/new")
