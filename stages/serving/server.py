"""The standalone server of `ouro serve`: the endpoint for any client, with sessions and feedback.

    POST /v1/chat/completions, /v1/completions, /v1/messages, /v1/responses     every request is a separate row
    POST /sessions/NAME/v1/...                                                  requests of one conversation
    POST /feedback                                                              the reward of a response or session
"""

import asyncio
import contextlib
import hmac
import logging
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ouroboros.pipeline.job.context import commit
from ouroboros.pipeline.job.ending import SIGNALS
from ouroboros.pipeline.store import checkpoints, files
from ouroboros.pipeline.store.errors import ConfigError, OuroError
from ouroboros.pipeline.store.user_errors import brief
from ouroboros.stages.serving.attempts import Attempt, Feedback, Source, require_name
from ouroboros.stages.serving.engine_loop import EngineLoop
from ouroboros.stages.serving.recording import SECONDS, Recording
from ouroboros.stages.serving.sessions import Sampling, Session
from ouroboros.workflows.endpoint import server
from ouroboros.workflows.endpoint.dialect import MODEL, Refusal
from ouroboros.workflows.endpoint.guard import BODY_SECONDS, LOOPBACK, Impatient, protect
from ouroboros.workflows.engines.open import open_engine
from ouroboros.workflows.protocol.prompts import end_tokens, load_tokenizer

IDLE_SECONDS = 3600.0  # after which the conversation of a session is forgotten, if nothing is recorded
OPEN_SECONDS = 120  # for which a connection without requests stays open
GRACE_SECONDS = 5  # for requests in progress when the server is asked to end
CLOSE_SECONDS = 15  # for the engine, after them
TOGETHER_SECONDS = 0.02  # feedback of this time is written to the disk together


def _say(base_url: str) -> None:
    print(f"ouro: base_url={base_url} model={MODEL}", flush=True)


@dataclass(frozen=True)
class Options:
    """What `ouro serve` was asked for; see its help. token: None where none is needed.

    is_limited: whether model.max_prompt_tokens and max_response_tokens bound a request, besides model.max_model_len.
    listening: called with the base_url, before requests are answered.
    """

    host: str
    port: int
    token: str | None
    record: Path | None
    per_step: int
    wait: float
    keep: bool
    is_limited: bool = False
    listening: Callable[[str], None] = _say


class Standalone(server.Server):
    """The endpoint without attempts of an explorer: a request names its session, or is one by itself."""

    body_seconds = BODY_SECONDS

    def __init__(self, session: Callable[[str | None], Session], recording: Recording | None, options: Options):
        self._new, self._recording, self._options = session, recording, options
        self.sessions: dict[str, Session] = {}
        self._writing: asyncio.Task | None = None  # what comes before it begins to write is written with it
        self.lack: str | None = None  # why nothing can be recorded
        routes = [Route(prefix + one.path, self._handler(one), methods=["POST"])
                  for one in server.DIALECTS for prefix in ("", "/sessions/{session}")]
        routes += [Route(f"{prefix}/v1/models", self._models) for prefix in ("", "/sessions/{session}")]
        self.app = Starlette(routes=[*routes, Route("/feedback", self._feedback, methods=["POST"])])
        protect(self.app, LOOPBACK if options.token is None else None)

    def _speaker(self, request: Request) -> Session:
        self._require_token(request)
        name = request.path_params.get("session")
        if request.method == "POST" and self.lack:
            raise self._unwritten()
        if name is None or request.method == "GET":
            return self._new(None)
        require_name(name)
        return self.sessions.setdefault(name, self._new(name))

    def _require_token(self, request: Request) -> None:
        token = self._options.token
        if token is not None and not hmac.compare_digest(server.token_of(request).encode(), token.encode()):
            raise Refusal(401, "needed the token of `ouro serve` as api_key", "invalid_api_key")

    async def _feedback(self, request: Request) -> Response:
        try:
            self._require_token(request)
            if self._recording is None:
                raise Refusal(404, "nothing is recorded; start ouro serve with --record DIR", "not_recorded")
            attempt = await self._rewarded(Feedback.read(await server.body(request, self.body_seconds)))
        except ClientDisconnect:
            return Response(status_code=499)
        except Refusal as refusal:
            return JSONResponse(server.DIALECTS[0].error(refusal), refusal.status)
        if attempt.session in self.sessions:  # what the session asks next is another attempt
            self.sessions.pop(attempt.session).close()
        return JSONResponse({"attempt": attempt.id, "reward": sum(attempt.components.values())})

    async def _rewarded(self, feedback: Feedback) -> Attempt:
        """Records feedback; it is on the disk then, or this raises Refusal."""
        attempt = None
        try:
            attempt = self._recording.rewarded(feedback)
            return attempt
        finally:  # what is refused as recorded is on the disk too
            if self._writing is None:
                self._writing = asyncio.create_task(self._write())
            await asyncio.shield(self._writing)
            if self.lack or (attempt and attempt.components is None):
                raise self._unwritten()

    async def _write(self) -> None:
        await asyncio.sleep(TOGETHER_SECONDS)
        self._writing = None
        self.write(self._recording.keep)

    def write(self, work: Callable[[], None]) -> None:
        """Writes what was recorded. Replies that cannot be written stay in memory; `lack` and the terminal say why."""
        before, self.lack = self.lack, None
        try:
            work()
        except (OSError, OuroError) as error:
            self.lack = " ".join(str(error).split())
        except Exception as error:
            logging.getLogger(__name__).exception("recording failed")
            self.lack = brief(error)
        if self.lack != before:
            print(f"ouro: {self.lack or 'recording goes on'}", file=sys.stderr, flush=True)

    def _unwritten(self) -> Refusal:
        return Refusal(507, f"not recorded, send it again later: {self.lack or 'writing failed'}", "not_recorded")

    def forget_idle(self) -> None:
        wait = self._options.wait if self._recording else IDLE_SECONDS
        for name in [name for name, one in self.sessions.items() if time.monotonic() - one.touched > wait]:
            self.sessions.pop(name).close()


def serve(model: Path, config, options: Options) -> None:
    """Answers requests until SIGINT or SIGTERM. config: settings with sections model, explorer and cluster."""
    for name in ("ouroboros.workflows.endpoint.speaker", "transformers.tokenization_utils_base"):
        logging.getLogger(name).disabled = True  # they warn of no mistake, as of lengths that bound nothing
    tokenizer = load_tokenizer(model, config.model)
    if not tokenizer.chat_template:
        print(f"ouro: {model} has no chat template: conversations are its plain turns, as in training, and requests "
              "with tools are refused. model.chat_template_path=FILE names one.", file=sys.stderr)
    if options.record is not None and options.record.exists() and not options.record.is_dir():
        raise ConfigError(f"--record {options.record} is a file; needed a directory, which is new or was recorded.")
    listener = _listener(options)
    logs = Path(tempfile.mkdtemp(prefix="ouro-serve-"))  # of engines in their own processes
    engine = EngineLoop(lambda: open_engine(model, config, end_tokens(tokenizer, model), logs=logs))
    made = config.model
    asks_server = config.explorer.rollout_model.engine_type == "openai"
    sampling = Sampling(made.temperature, made.top_p, made.top_k, made.longest, fixed=options.record is not None,
                        min_p=made.min_p, prompt=made.max_prompt_tokens if options.is_limited else None,
                        reply=made.max_response_tokens if options.is_limited or asks_server else None)
    recording = None
    try:
        if options.record is not None:
            recording = _recording(model, options, engine.engine.version, sampling, tokenizer, not asks_server)
        asyncio.run(_serve(listener, options, engine, recording,
                           lambda name: Session(name, engine, sampling, tokenizer, config,
                                                recording.replied if recording else lambda *_: None)))
    finally:
        try:
            if recording:
                waiting = recording.close()
                print(f"recorded {recording.step - 1} steps in {options.record}; {waiting} attempts wait for feedback "
                      "in its journal", file=sys.stderr, flush=True)
        finally:
            engine.close(CLOSE_SECONDS)


def _recording(model: Path, options: Options, engine: str, sampling: Sampling, tokenizer, known: bool) -> Recording:
    """known: whether its weights are; those of a server are its name and address."""
    weights = checkpoints.weights_hash(model) if known else engine
    config_hash = files.hash_json([weights, engine, sampling.temperature, sampling.top_p, sampling.top_k,
                                    *([sampling.min_p] if sampling.min_p else [])])
    source = Source(options.record.resolve().name, weights, config_hash, commit(), engine)
    made = Recording(options.record, source, lambda tokens, skip: tokenizer.decode(tokens, skip_special_tokens=skip),
                     options.per_step, options.wait, options.keep)
    if made.torn:
        print(f"left out: attempts with replies that are in no part of the journal: {', '.join(sorted(made.torn))}",
              file=sys.stderr)
    return made


def _listener(options: Options) -> socket.socket:
    """The listening socket. Raises ConfigError without a token beyond loopback, or for an address that is in use."""
    if options.host not in LOOPBACK and options.token is None:
        raise ConfigError(f"--host {options.host} lets other machines ask: that needs a token. Add --token, which "
                          "prints a new one, or --token-env NAME, which takes that of an environment variable.")
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        return socket.create_server((options.host, options.port), family=family, backlog=1024)
    except OSError as error:
        raise ConfigError(f"--host {options.host} --port {options.port}: {error}. Name another port, or 0 for any."
                          ) from error


async def _serve(listener: socket.socket, options: Options, engine: EngineLoop, recording: Recording | None,
                 session: Callable) -> None:
    app = Standalone(session, recording, options)
    http = server._Uvicorn(uvicorn.Config(
        app.app, lifespan="off", log_config=None, log_level="critical", access_log=False,
        http=Impatient, ws="none", timeout_keep_alive=OPEN_SECONDS, timeout_graceful_shutdown=GRACE_SECONDS))

    def end() -> None:
        http.should_exit = True

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, end)
    running = asyncio.create_task(engine.run())
    running.add_done_callback(lambda _: end())
    regular = asyncio.create_task(_regularly(app, recording))
    regular.add_done_callback(lambda _: end())
    host, port = listener.getsockname()[:2]
    options.listening(f"http://{f'[{host}]' if ':' in host else host}:{port}/v1")
    try:
        await http.serve([listener])
    finally:
        for task in (running, regular):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _regularly(app: Standalone, recording: Recording | None) -> None:
    """Writes what was recorded, and forgets idle sessions."""
    while True:
        await asyncio.sleep(SECONDS)
        app.forget_idle()
        if recording:
            app.write(recording.flush)
