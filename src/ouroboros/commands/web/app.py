"""The server of `ouro view`: who may ask, which address answers what, and how errors are said.

It listens on this machine alone. The page reads the token of the address that is printed, and sends it with each
request: a browser would send a cookie to every port of this machine. Requests of other web pages, and under other names
of the host, are refused; connections, slow and large requests have the limits of `ouro serve` (workflows/endpoint).
"""

import hmac
import json
import secrets
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from ouroboros.commands.web import command, counted, curves, details, distributions, overview, question, rollouts
from ouroboros.pipeline.results import compare, difference, doctor, logs, policies, query, sweep_view
from ouroboros.pipeline.results.machine import machine
from ouroboros.pipeline.results.view import Node, View
from ouroboros.pipeline.store.errors import DataError, OuroError, QueryError, message
from ouroboros.workflows.endpoint import server
from ouroboros.workflows.endpoint.dialect import Refusal
from ouroboros.workflows.endpoint.guard import BODY_SECONDS, LOOPBACK, Impatient, protect

STATIC = Path(__file__).parent / "static"
TYPES = {".css": "text/css", ".js": "text/javascript"}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
                               "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "cache-control": "no-store",
}
QUESTIONS = 2  # of the SQL box that are answered at the same time
RECORDS = 500  # of logs
GRACE_SECONDS = 5  # for requests in progress when the server is asked to end
FIELDS = ("run", "stage", "table", "start", "latest", "text")  # of an address, besides the columns to choose rows by


class App:
    """What the addresses answer, over the runs below `root`. ADDED: files of further tabs of the page."""

    ADDED: ClassVar[tuple[str, ...]] = ()

    def __init__(self, root: Path, token: str):
        self.root, self.token, self._asking = root, token, 0

    def asgi(self) -> Starlette:
        app = Starlette(routes=self.routes())
        protect(app, LOOPBACK)
        return app

    def routes(self) -> list[Route]:
        answers = {"runs": lambda _: overview.runs(self.root), "machine": lambda _: machine(),
                   "run": lambda request: overview.run(self._run(request)),
                   "scores": lambda request: overview.scores(self._run(request)),
                   "doctor": lambda request: doctor.rows(doctor.of_run(self._run(request))),
                   "onset": lambda request: doctor.onset_question(_one(request, "predicate")),
                   "table": lambda _: overview.table(self.root),
                   "settings": lambda request: difference.values([one.path for one in self._runs(request)]),
                   "logs": self._logs,
                   "distributions": lambda request: distributions.of_run(self._run(request)),
                   "differences": self._differences, "columns": self._columns, "curves": self._curves,
                   "rows": self._rows, "row": self._row, "task": self._task, "search": self._search}
        return [
            Route("/", lambda _: Response(page(*self.ADDED), headers=HEADERS, media_type="text/html")),
            Route("/static/{name:path}", self._static),
            *(Route(f"/api/{name}", self._answering(answer)) for name, answer in answers.items()),
            self.posted("sql", self._sql),
            self.posted("rewards", partial(run_in_threadpool, partial(command.rewards, self.root))),
        ]

    def _answering(self, answer: Callable[[Request], Any]) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            if not self._let_in(request):
                return refused()
            try:
                found = answer(request)
                return found if isinstance(found, Response) else answered(found)
            except (OuroError, OSError) as error:
                return answered({"error": message(error)}, 400)

        return respond

    def posted(self, name: str, answer: Callable[[dict[str, Any]], Awaitable]) -> Route:
        """Returns the route of an address that is given a JSON object, and answers while other requests run."""

        async def respond(request: Request) -> Response:
            if not self._let_in(request):
                return refused()
            try:
                asked = await server.body(request, BODY_SECONDS)
                if not isinstance(asked, dict):
                    raise Refusal(400, "needed a JSON object")
                return answered(await server.unless_gone(request, answer(asked)))
            except ClientDisconnect:
                return Response(status_code=499)
            except Refusal as refusal:
                return answered({"error": refusal.message}, refusal.status)
            except (OuroError, OSError) as error:
                return answered({"error": message(error)}, 400)

        return Route(f"/api/{name}", respond, methods=["POST"])

    def _let_in(self, request: Request) -> bool:
        return hmac.compare_digest(server.token_of(request).encode(), self.token.encode())

    def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in scripts():
            return answered({"error": f"no file {name}"}, 404)
        return FileResponse(STATIC / name, media_type=TYPES[Path(name).suffix], headers=HEADERS)

    def _run(self, request: Request) -> View:
        return self._run_of(_one(request, "run"))

    def _run_of(self, name: str) -> View:
        return policies.single(sweep_view.find(self.root, name))

    def _runs(self, request: Request) -> list[View]:
        return [self._run_of(name) for name in request.query_params.getlist("run")]

    def _logs(self, request: Request) -> list[str]:
        """Returns the last records of a run's stages."""
        if (level := request.query_params.get("level", "INFO")) not in logs.LEVELS:
            raise QueryError(f"no level '{level}'; needed one of {', '.join(logs.LEVELS)}.")
        lines: list[str] = []
        logs.show(self._run(request).stages, level, RECORDS, follow=False, out=lines.append)
        return lines

    def _stage(self, request: Request) -> Node:
        run, name = self._run(request), _one(request, "stage")
        if found := [stage for stage in run.stages if stage.name == name]:
            return found[0]
        raise QueryError(f"{run.run} has no stage '{name}'; it has {', '.join(one.name for one in run.stages)}.")

    def _differences(self, request: Request) -> list[str]:
        """Returns what the other runs are better by than the first, paired over the tasks of their last evaluations."""
        runs = self._runs(request)
        return compare.paired(runs, compare.metric_of(runs)) if runs else []

    def _columns(self, request: Request) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for run in self._runs(request):
            for one in curves.columns(run):
                known = found.setdefault(one["name"], one)
                known["stages"] = list(dict.fromkeys([*known["stages"], *one["stages"]]))
        return list(found.values())

    def _curves(self, request: Request) -> list[dict[str, Any]]:
        column, axis = _one(request, "column"), request.query_params.get("axis", "step")
        return [made for run in self._runs(request) for made in curves.of_run(run, column, axis)]

    def _rows(self, request: Request) -> dict[str, Any]:
        stage, table, asked = self._stage(request).directory, _table(request), request.query_params
        wanted = _wanted(stage, table, asked)
        start = rollouts.Address.read(asked["start"]) if asked.get("start") else None
        return rollouts.page(stage, table, wanted, start, asked.get("latest") == "1")

    def _row(self, request: Request) -> dict[str, Any]:
        node, table = self._stage(request), _table(request)
        at = (rollouts.address_of(node.directory, request.query_params["id"]) if "id" in request.query_params
              else rollouts.Address.read(_one(request, "row")))
        return details.of_row(self._run(request), node, table, at)

    def _task(self, request: Request) -> dict[str, Any]:
        return counted.of_task(self._stage(request).directory, _table(request), _one(request, "task_id"))

    def _search(self, request: Request) -> Response:
        stage, table, text = self._stage(request).directory, _table(request), _one(request, "text")
        wanted = _wanted(stage, table, request.query_params)
        return StreamingResponse(_lines(rollouts.search(stage, table, text, wanted)),
                                 media_type="application/x-ndjson", headers=HEADERS)

    async def _sql(self, asked: dict[str, Any]) -> dict[str, Any]:
        runs, asks = asked.get("runs"), asked.get("question")
        if not (isinstance(asks, str) and isinstance(runs, list) and all(isinstance(name, str) for name in runs)):
            raise QueryError("needed {runs: [NAME], question: SQL}")
        if self._asking >= QUESTIONS:
            raise QueryError(f"{QUESTIONS} questions are being answered. Ask again when one of them is.")
        self._asking += 1
        try:
            return await question.answer(self.root, runs, asks)
        finally:
            self._asking -= 1


def page(*added: str) -> str:
    """Returns the page. added: further styles and scripts below STATIC, which run before the page is first drawn."""
    last = '<script src="static/view.js"></script>\n'
    form = {".css": '<link rel="stylesheet" href="static/{}">\n', ".js": '<script src="static/{}"></script>\n'}
    more = "".join(form[Path(name).suffix].format(name) for name in added)
    return (STATIC / "index.html").read_text(encoding="utf-8").replace(last, more + last)


@cache
def scripts() -> list[str]:
    """Returns the scripts and styles of the pages below STATIC, those of others in vendor/ too."""
    return sorted(str(path.relative_to(STATIC)) for path in STATIC.rglob("*.*") if path.suffix in TYPES)


def _lines(found: Iterator[dict[str, Any]]) -> Iterator[str]:
    """Each as a line of JSON; a damaged file ends the search with the reason."""
    try:
        for one in found:
            yield json.dumps(one, allow_nan=False) + "\n"
    except (OuroError, OSError) as error:
        yield json.dumps({"error": message(error)}) + "\n"


def _wanted(stage: Path, table: str, asked: Mapping[str, str]) -> rollouts.Wanted:
    """The rows that an address chooses: by their columns, and by the optimizer step that trained on them."""
    given = {name: value for name, value in asked.items() if name not in FIELDS and value != ""}
    step = given.pop("train_step", None)
    wanted = rollouts.Wanted.read(table, given)
    if step is None:
        return wanted
    if table != "experience":
        raise QueryError("rows of evaluations are not trained on.")
    return wanted.trained_by(rollouts.trained_in(stage, _number(step, "train_step")))


def _one(request: Request, name: str) -> str:
    if not (value := request.query_params.get(name)):
        raise QueryError(f"needed {name}=… in the address.")
    return value


def _number(text: str, name: str) -> int:
    if not rollouts.is_number(text):
        raise QueryError(f"{name}={text}: needed a number.")
    return int(text)


def _table(request: Request) -> str:
    table = request.query_params.get("table", "experience")
    if table not in rollouts.KEYS:
        raise QueryError(f"no table '{table}' of rollouts; needed {' or '.join(rollouts.KEYS)}.")
    return table


def answered(content: Any, status: int = 200) -> Response:
    """content: as JSON in ASCII, for names of files may be no Unicode."""
    return Response(json.dumps(query.plain(content), allow_nan=False), status, HEADERS, "application/json")


def refused() -> Response:
    return answered({"error": "this page is opened with the address that its command printed."}, 403)


def serve(root: Path, port: int, opened: Callable[[str], None], run: str | None = None) -> None:
    """Answers until it is interrupted. opened: called with the address, token included, before the first request.

    run: that the page begins with, or a sweep, whose first point it is; None: the latest, and where there is none yet
    the page waits for it. Raises DataError where there is no such run, or the port is taken.
    """
    shown = next(iter(sweep_view.runs_of(sweep_view.find(root, run)))) if run or sweep_view.known(root) else None
    if shown:  # imports what the first page needs while a browser starts, and counts what others may ask
        threading.Thread(target=_warm, args=(shown,), daemon=True).start()
    listen(partial(App, root), port, opened, f"#/run/{shown.run}" if shown else "")


def _warm(run: View) -> None:
    with suppress(OuroError, OSError):  # which the page says
        overview.run(run)
        for stage in run.stages:
            counted.of_task(stage.directory, "experience", "")
        distributions.of_run(run)


def listen(app: Callable[[str], App], port: int, opened: Callable[[str], None], place: str) -> None:
    """Does so for an app, made of the token. place: what the page begins with, after the token in the address."""
    import socket

    import uvicorn

    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen()
        except OSError as error:
            raise DataError(f"port {port} cannot be used ({error.strerror}). Give another one: --port 0 takes a free "
                            "one.") from error
        port, token = listening.getsockname()[1], secrets.token_urlsafe(16)
        opened(f"http://127.0.0.1:{port}/?token={token}{place}")
        config = uvicorn.Config(app(token).asgi(), lifespan="off", log_config=None, access_log=False, http=Impatient,
                                ws="none", timeout_graceful_shutdown=GRACE_SECONDS,
                                loop="asyncio")  # uvloop starts no process in a group (question.py)
        uvicorn.Server(config).run([listening])
