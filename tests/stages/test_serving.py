"""`ouro serve`: clients ask a scripted engine by HTTP, and what is recorded is what the engine sampled."""

import asyncio
import contextlib
import errno
import json
import logging
import os
import re
import shutil
import signal
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from ouroboros.pipeline.results.models import model_of
from ouroboros.pipeline.store import files, records, tables
from ouroboros.pipeline.store.checkpoints import model_directory
from ouroboros.pipeline.store.errors import ConfigError, DataError, StageError
from ouroboros.pipeline.store.files import HOME
from ouroboros.stages import recorded
from ouroboros.stages.serving import server
from ouroboros.stages.serving.attempts import Attempt, Feedback, Reply, Source
from ouroboros.stages.serving.engine_loop import EngineLoop
from ouroboros.stages.serving.model import settings_of, settings_of_server
from ouroboros.stages.serving.recording import Recording, journal_of
from ouroboros.stages.serving.sessions import Sampling, Session
from ouroboros.workflows.endpoint import guard
from ouroboros.workflows.endpoint.server import DIALECTS
from ouroboros.workflows.engines.openai_engine import OpenAIEngine, text_tokenizer
from tests import models
from tests.damage import flip
from tests.factories import row
from tests.fake_run import FakeRun
from tests.golden.messages import refuses
from tests.servers import chat_app, serving
from tests.workflows.test_endpoint import EOS, TOKENIZER, Scripted, Slow, tokens

SOURCE = Source("rec", "w", "c", "k", "scripted")


def chat(text, *before, **more):
    messages = [{"role": ("user", "assistant")[i % 2], "content": one} for i, one in enumerate([*before, text])]
    return {"model": "policy", "messages": messages, **more}


@pytest.fixture
def opened(tmp_path, settings):
    """opened(engine, ...): the application on an engine, what it records, and its engine."""
    config = settings("model.max_model_len=200", "model.max_prompt_tokens=100", "model.max_response_tokens=8")

    def make(*texts, engine=None, per_step=2, wait=60.0, keep=True, record=True, token=None):
        loop = EngineLoop(lambda: engine or Scripted(*texts))
        recording = recorder(tmp_path, per_step, wait, keep) if record else None
        sampling = Sampling(1.0, 1.0, -1, 200, fixed=record)
        options = server.Options("127.0.0.1", 0, token, tmp_path / "rec", per_step, wait, keep)
        app = server.Standalone(
            lambda name: Session(name, loop, sampling, TOKENIZER, config,
                                 recording.replied if recording else lambda *_: None), recording, options)
        return SimpleNamespace(app=app, recording=recording, loop=loop, engine=loop.engine)

    return make


def recorder(tmp_path, per_step=2, wait=60.0, keep=True):
    return Recording(tmp_path / "rec", SOURCE, lambda ids, skip: TOKENIZER.decode(ids, skip_special_tokens=skip),
                     per_step, wait, keep)


def posted(made, *requests, headers=(), declared=(("content-type", "application/json"),)):
    """The responses to (path, body) in order; a body may be a function of the responses before it."""
    async def run():
        running = asyncio.create_task(made.loop.run())
        transport = httpx.ASGITransport(made.app.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=dict(headers)) as client:
            found = []
            for path, body in requests:
                body = body(found) if callable(body) else body
                content = body if isinstance(body, bytes) else json.dumps(body)
                found.append(await client.post(path, content=content, headers=list(declared)))
        running.cancel()
        return found

    return asyncio.run(run())


def read(tmp_path, name, step=1):
    record = records.TABLES[name]
    return [record(**row) for row in tables.read(tables.step_file(tmp_path / "rec", name, step), record).to_pylist()]


CHAT, IN_SESSION = "/v1/chat/completions", "/sessions/s/v1/chat/completions"


def recorded_stage(config, directory):
    context = SimpleNamespace(config=config, directory=directory, made={})
    recorded.work(context)
    return context.made


def test_a_session_is_one_attempt_whose_calls_are_one_row(opened, tmp_path):
    made = opened("two", "2", "ab")
    found = posted(made, (IN_SESSION, chat("1+1")), (IN_SESSION, chat("sure?", "1+1", "two")), (CHAT, chat("x")),
                   ("/feedback", {"session": "s", "reward": {"accuracy": 1, "style": 0.5}, "metadata": {"user": 7}}),
                   ("/feedback", lambda found: {"id": found[2].json()["id"], "reward": -1, "group": "g"}))
    assert [one.status_code for one in found] == [200] * 5
    assert made.recording.close() == 0
    first, second = read(tmp_path, "experience")
    assert (first.reward, first.accuracy, first.status, first.slot) == (1.5, 1.0, "ok", 0)
    assert first.prompt_tokens == tokens("1+1:")
    assert first.response_tokens == [*tokens("two"), EOS, *tokens("sure?:2"), EOS]
    assert first.action_mask == [1] * 4 + [0] * 6 + [1] * 2
    assert first.rollout_logprobs[:4] == [0.0, -1.0, -2.0, -3.0]
    assert (second.reward, second.group_id, second.response, second.slot) == (-1.0, "g", "ab", 1)
    (rollout,) = read(tmp_path, "rollouts")
    assert (rollout.attempts, rollout.rows) == (2, 2)
    assert [call.position for call in read(tmp_path, "calls")] == [0, 1, 0]
    notes = read(tmp_path, "feedback")
    assert [(note.session, note.metadata) for note in notes] == [("s", '{"user": 7}'), (None, None)]
    assert list(journal_of(tmp_path / "rec").glob("*.json")) == []


def test_a_server_is_passed_on_to_and_its_rows_are_not_trained_on(tmp_path, settings):
    with serving(chat_app(lambda body, headers: f"{body['model']}: {body['messages'][-1]['content']}")) as address:
        config = settings_of_server(f"{address}/v1", ["explorer.rollout_model.external.model_name=theirs"])
        loop, recording = EngineLoop(lambda: OpenAIEngine(None, config, [], False)), recorder(tmp_path)
        made = SimpleNamespace(loop=loop, app=server.Standalone(
            lambda name: Session(name, loop, Sampling(1.0, 1.0, -1, config.model.longest, True, reply=9),
                                 text_tokenizer(), config, recording.replied), recording,
            server.Options("127.0.0.1", 0, None, tmp_path / "rec", 2, 60.0, True)))
        found = posted(made, (IN_SESSION, chat("one")), (IN_SESSION, chat("two", "one", "theirs: one")),
                       ("/feedback", {"session": "s", "reward": 1}), (CHAT, chat("x", logprobs=True)))
        loop.close(5)
    assert [one.status_code for one in found] == [200, 200, 200, 400]
    recording.close()
    said = [text_tokenizer().decode(one.response_tokens, skip_special_tokens=True)
            for one in read(tmp_path, "experience")]
    assert said == ["theirs: one", "theirs: two"]
    with pytest.raises(DataError):
        recorded_stage(settings(f"buffer.trainer_input.experience_buffer.path={tmp_path / 'rec'}"), tmp_path / "stage")


def test_a_server_whose_model_has_no_name_is_refused():
    with refuses(ConfigError, "model_name"):
        settings_of_server("http://127.0.0.1:9/v1", [])


def test_several_responses_are_one_attempt_and_a_session_begins_another_after_its_feedback(opened, tmp_path):
    made = opened("a", "b", "c", "d", per_step=3)
    posted(made, (CHAT, chat("x")), (CHAT, chat("y")),
           ("/feedback", lambda found: {"id": [one.json()["id"] for one in found], "reward": 2}),
           (IN_SESSION, chat("z")), ("/feedback", {"session": "s", "reward": 0}),
           (IN_SESSION, chat("z")), ("/feedback", {"session": "s", "reward": 1}))
    made.recording.close()
    rows = read(tmp_path, "experience")
    assert [(row.slot, row.turn, row.response, row.reward, row.run_index) for row in rows] == [
        (0, 0, "a", 2.0, 0), (0, 1, "b", 2.0, 0), (1, 0, "c", 0.0, 0), (2, 0, "d", 1.0, 1)]
    assert rows[2].group_id == rows[3].group_id  # the same first prompt


def test_what_the_client_wishes_is_used_unless_it_is_recorded(opened):
    class Asked(Scripted):
        def reply(self, request):
            self.prompts.append((request.temperature, request.top_k, request.max_tokens))
            return super().reply(request)

    wishes = chat("x", temperature=0.25, top_k=5, max_tokens=3)
    for record, sampled in ((False, (0.25, 5, 3)), (True, (1.0, -1, 3))):
        made = opened(engine=Asked("ab"), record=record)
        assert posted(made, (CHAT, wishes))[0].status_code == 200
        assert made.engine.prompts[0] == sampled
    assert posted(opened("a", record=False), (CHAT, chat("x", temperature=-1)))[0].status_code == 400


@pytest.mark.parametrize(("body", "status"), [
    ({"id": "zz-0", "reward": 1}, 404), ({"session": "zz", "reward": 1}, 404), ({"reward": 1}, 400),
    ({"session": "s", "reward": "good"}, 400), ({"session": "s", "reward": None}, 400),
    ({"session": "s", "reward": {"accuracy": 2}}, 400), ({"session": "s", "reward": {}}, 400), ([], 400),
    *(({"session": "s", "reward": reward}, 400) for reward in (
        1e30, 10**400, {"a": 9e5, "b": 9e5}, {"a": -1e6, "b": -1}, {"\ud800": 1.0}, [1], {"a": [1]})),
    *(({"session": "s", "reward": reward}, 400) for reward in (True, {"accuracy": True}, {"a\n": 1}, {"a" * 1001: 1})),
    ({"session": "s", "reward": 1, "group": "\x1b[2J"}, 400), ({"id": ["a\0"], "reward": 1}, 400),
    ({"session": "\ud800", "reward": 1}, 400), ({"session": "s", "reward": 1, "group": "\udfff"}, 400),
    ({"session": "s", "reward": 1, "metadata": {"\ud800": 1}}, 400), ({"\ud800": 1}, 400), ({"id": ["\ud800"]}, 400),
    ({"session": "s", "id": "x", "reward": 1}, 400), ({"session": "s", "reward": 1, "stars": 5}, 400),
    # what files cannot hold
    *((body, 400) for body in (
        b'{"session": "s", "reward": NaN}', b'{"session": "s", "reward": 1e999}',
        b'{"session": "s", "reward": Infinity}', b'{"session": "s", "reward": 1, "metadata": -Infinity}',
        b'{"session": "s", "reward": 1, "metadata": "\xed\xa0\x80"}',
        '{"session": "s", "reward": 1}'.encode("utf-16"), b'{"reward": ' + b"9" * 5000 + b"}",
        b'{"session": "s", "reward": 1, "metadata": ' + b"[" * 500 + b"]" * 500 + b"}", b"", b"null",
        b'{"session": "s", "reward": 1, "reward": -1}',
        b'{"session": "s", "reward": 1, "metadata": {"a": 1, "a": 2}}'))])
def test_feedback_that_cannot_be_used_is_refused(opened, body, status):
    *_, found = posted(opened("a"), (IN_SESSION, chat("x")), ("/feedback", body))
    assert found.status_code == status


def test_one_bad_event_does_not_end_a_recording(opened, tmp_path):
    """The largest reward counts, and a reply whose text is no Unicode costs no other row."""
    made = opened("a", "b")
    bad = {"session": "s", "reward": 1, "metadata": "\ud800"}
    *_, refused, fine = posted(made, (IN_SESSION, chat("x")), ("/feedback", bad),
                               ("/feedback", {"session": "s", "reward": 1e6}))
    assert (refused.status_code, fine.status_code) == (400, 200)
    made.recording.open["odd"] = odd = Attempt("odd", "\ud800", next(iter(made.recording._ready.values())).replies)
    made.recording.rewarded(Feedback({"reward": 0.0}, session="\ud800"))
    assert odd.components == {"reward": 0.0}
    made.recording.flush()
    assert sorted(row.reward for row in read(tmp_path, "experience")) == [0.0, 1e6]


@pytest.mark.parametrize(("path", "body"), [
    *((CHAT, chat("x", **more)) for more in ({"n": True}, {"n": "2"}, {"max_tokens": True}, {"max_tokens": 10.0},
                                             {"logprobs": "yes"}, {"stream": 1}, {"stop": [5]}, {"model": "p" * 9999})),
    (CHAT, {"model": "policy", "messages": [{"role": "user", "content": ""}] * 300}), (CHAT, chat("x" * 10**6)),
    *(("/v1/completions", {"model": "policy", "prompt": ids}) for ids in ([True], [-1], [10**6], [10**30])),
    *(("/v1/responses", {"model": "policy", "input": given}) for given in (
        [], [{"type": "function_call", "call_id": "a", "name": "f", "arguments": 5}],
        [{"type": "function_call", "call_id": None, "name": {}, "arguments": "{}"}],
        [{"type": "function_call_output", "call_id": ["a"], "output": "x"}])),
    *(("/v1/responses", {"model": "policy", "input": "x", "tools": [{"type": "function", "name": "f", **more}]})
      for more in ({"parameters": 5}, {"description": {"a": 1}})),
    ("/v1/messages", {"model": "policy", "max_tokens": 1, "messages": [
        {"role": "assistant", "content": [{"type": "tool_use", "id": 5, "name": ["f"], "input": {}}]}]}),
    ("/sessions/a%0Ab/v1/chat/completions", chat("x")), ("/sessions/" + "a" * 2000 + "/v1/chat/completions", chat("x")),
    ("/nothing", {}), ("/v1/models", {})])
def test_what_no_dialect_allows_is_refused_in_one_short_sentence(opened, path, body):
    """With any engine, before it is asked: none of these may hold the others up or be a failure of the server."""
    (found,) = posted(opened(), (path, body))
    assert 400 <= found.status_code < 500
    message = found.json()["error"]["message"]
    assert 0 < len(message) < 400
    assert "\n" not in message


def test_a_failure_of_the_server_is_one_sentence_and_does_not_end_it(opened, monkeypatch):
    made = opened("a")
    monkeypatch.setattr(type(DIALECTS[1]), "read", lambda *_: 1 / 0)
    failed, fine = posted(made, ("/v1/completions", {}), (CHAT, chat("x")))
    assert (failed.status_code, fine.status_code) == (500, 200)
    assert "ZeroDivisionError" not in failed.json()["error"]["message"]


def test_feedback_that_is_acknowledged_is_on_the_disk(opened, tmp_path):
    """A server that is killed after the answer knows it, though no part of the journal was due."""
    made = opened("a", "b")
    rewarded = [("/feedback", lambda found, i=i: {"id": found[i].json()["id"], "reward": i}) for i in (0, 1)]
    posted(made, (CHAT, chat("x")), (CHAT, chat("y")), *rewarded)
    made.recording._lock.close()  # killed
    assert len(list(journal_of(tmp_path / "rec").glob("*.json"))) == 1  # which was written twice
    again = recorder(tmp_path)
    assert again.close() == 0
    assert [(row.response, row.reward) for row in read(tmp_path, "experience")] == [("a", 0.0), ("b", 1.0)]


def test_a_full_disk_refuses_and_loses_nothing(opened, tmp_path, monkeypatch):
    made = opened("a", "b")
    first, *_ = posted(made, (CHAT, chat("x")))
    feedback = "/feedback", {"id": first.json()["id"], "reward": 1}
    with monkeypatch.context() as full:
        def write(*_):
            raise OSError(errno.ENOSPC, "No space left on device")

        full.setattr(files, "write_json", write)
        answers = posted(made, feedback, feedback, (CHAT, chat("y")), ("/feedback", {"session": "s", "reward": 1}))
        assert [one.status_code for one in answers] == [507] * 4
        assert all("No space left" in one.json()["error"]["message"] for one in answers)
    made.app.write(made.recording.flush)
    assert [one.status_code for one in posted(made, feedback, feedback, (CHAT, chat("y")))] == [200, 409, 200]
    assert made.recording.close() == 1
    assert [row.reward for row in read(tmp_path, "experience")] == [1.0]


PAGE = {"origin": "http://evil.example"}
OWN = {"origin": "http://127.0.0.1", "sec-fetch-site": "same-origin"}
KEY = {"x-api-key": "secret"}


@pytest.mark.parametrize(("headers", "status"), [
    ({"x-api-key": "other"}, 401), (KEY, 200), (KEY | {"host": "gpu7:8000"}, 200), (KEY | PAGE, 403)])
def test_a_token_is_required_where_there_is_one_and_lets_other_names_in(opened, headers, status):
    made = opened("a", token="secret", record=False)
    assert posted(made, (CHAT, chat("x")), headers=headers)[0].status_code == status


def test_without_a_token_other_hosts_are_not_listened_to(opened):
    assert posted(opened("a"), (CHAT, chat("x")), headers={"host": "evil.example"})[0].status_code == 400
    with refuses(ConfigError, "--token"):
        server._listener(server.Options("0.0.0.0", 0, None, None, 1, 1.0, True))


@pytest.mark.parametrize(("headers", "status"), [
    (PAGE, 403), ({"origin": "null"}, 403), ({"origin": "http://127.0.0.1:81"}, 403), ({"sec-fetch-site": "none"}, 404),
    ({"sec-fetch-site": "cross-site"}, 403), ({"sec-fetch-site": "same-site"}, 403), (OWN, 404),
    ({"host": "evil.example", "origin": "http://evil.example"}, 400), ({"host": "localhost:8000"}, 404),
    ({"host": "[::1]:80"}, 404), ({"host": "[::1].evil"}, 400), ({"host": "127.0.0.1:80:evil"}, 400)])
def test_pages_of_other_sites_are_refused(opened, headers, status):
    """404: the request is read, and its session is not known."""
    (found,) = posted(opened(), ("/feedback", {"session": "s", "reward": 1}), headers=headers)
    assert found.status_code == status


@pytest.mark.parametrize("header", [("origin", "http://127.0.0.1"), ("content-type", "text/plain"), ("host", "evil")])
def test_headers_that_decide_are_there_once(opened, header):
    twice = [(header[0], {"host": "127.0.0.1", "content-type": "application/json"}.get(header[0], header[1])), header]
    assert posted(opened(), ("/feedback", {}), declared=twice)[0].status_code == 400


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", None,
                                  "text/plain; application/json"])
def test_bodies_that_are_not_declared_as_json_are_refused(opened, kind):
    made = opened("a")
    body, declared = b'{"session": "s", "reward": 1}', () if kind is None else (("content-type", kind),)
    found = posted(made, ("/feedback", body), (CHAT, body), declared=declared)
    assert [one.status_code for one in found] == [415, 415]
    assert made.recording._events == []


def test_slow_and_half_requests_and_too_many_connections_end(opened, monkeypatch):
    monkeypatch.setattr(guard, "HEADER_SECONDS", 0.3)
    monkeypatch.setattr(server.Standalone, "body_seconds", 0.3)
    monkeypatch.setattr(guard, "CONNECTIONS", 5)
    made = opened("a", record=False)
    options = server.Options("127.0.0.1", 0, None, None, 2, 60.0, True)
    listener = server._listener(options)
    post = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sent = [b"", b"POST /v1", post + b"X: ", post + b"Content-Length: 50\r\n\r\n{", post + b"X: " + b"y" * (1 << 17)]
    found = []

    def ask():
        try:
            address = listener.getsockname()
            opened_ = [socket.create_connection(address, timeout=5) for _ in sent]
            time.sleep(0.05)
            with socket.create_connection(address, timeout=5) as further:
                found.append(_read(further))
            for one, content in zip(opened_, sent, strict=True):
                with contextlib.suppress(OSError):
                    one.sendall(content)
            found.extend(map(_read, opened_[:3]))
            found.append(_read(opened_[3], 12))
            found.append(_read(opened_[4]))
            for one in opened_:
                one.close()
            time.sleep(0.05)
            found.append(httpx.post(f"http://127.0.0.1:{address[1]}{CHAT}", json=chat("x")).status_code)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    asking = threading.Thread(target=ask)
    asking.start()
    asyncio.run(server._serve(listener, options, made.loop, None, made.app._new))
    asking.join()
    assert found[:4] == [b""] * 4
    assert found[4] == b"HTTP/1.1 408"
    assert found[5:] == [b"", 200]


def _read(one, most=1 << 20):
    """What a connection gives until it ends."""
    content = b""
    with contextlib.suppress(ConnectionError):
        while len(content) < most and (data := one.recv(most - len(content))):
            content += data
    return content


def test_a_killed_server_loses_nothing_that_was_flushed(opened, tmp_path):
    made = opened("a", "b", "c")
    first, second, third = posted(made, (CHAT, chat("x")), (CHAT, chat("y")), (CHAT, chat("z")))
    made.recording.flush()
    journal = journal_of(tmp_path / "rec")
    copy = shutil.copytree(journal, tmp_path / "copy")
    made.recording._lock.close()  # killed
    again = opened("d")
    assert sorted(again.recording.open) == sorted(one.json()["id"][:16] for one in (first, second, third))
    feedback = [("/feedback", {"id": one.json()["id"], "reward": 1}) for one in (first, second)]
    assert [one.status_code for one in posted(again, *feedback)] == [200, 200]
    again.recording.flush()
    assert [row.response for row in read(tmp_path, "experience")] == ["a", "b"]
    again.recording._lock.close()  # killed after the step, before its parts of the journal were deleted
    shutil.copytree(copy, journal, dirs_exist_ok=True)
    last = recorder(tmp_path)
    assert [one.replies[0].tokens for one in last.open.values()] == [[*tokens("c"), EOS]]
    assert (last.close(), last.step) == (1, 2)


def test_rows_without_feedback_are_kept_behind_those_that_are_trained_on_or_left_out(opened, tmp_path):
    for keep, expected in ((True, [(0, 1.0, "ok"), (2, None, "no_feedback")]), (False, [(0, 1.0, "ok")])):
        made = opened("a", "b", keep=keep)
        posted(made, (CHAT, chat("x")), (CHAT, chat("y")),
               ("/feedback", lambda found: {"id": found[0].json()["id"], "reward": 1}))
        late = next(one for one in made.recording.open.values() if one.components is None)
        late.touched -= 100
        assert made.recording.close() == 0
        assert [(row.slot, row.reward, row.status) for row in read(tmp_path, "experience")] == expected
        shutil.rmtree(tmp_path / "rec")


def test_one_server_at_a_time_records_to_a_directory(opened, tmp_path):
    opened("a")
    with refuses(DataError, "another server"):
        recorder(tmp_path)


def test_a_client_that_disconnects_frees_its_place_in_the_engine(opened):
    made = opened(engine=Slow("ab"), record=False)

    async def run():
        running = asyncio.create_task(made.loop.run())
        session = made.app._new(None)
        asking = asyncio.create_task(session.answer(DIALECTS[0].read(chat("long"))))
        await asyncio.sleep(0.2)
        asking.cancel()
        answer = await made.app._new(None).answer(DIALECTS[0].read(chat("x")))
        await asyncio.sleep(0.1)
        running.cancel()
        return answer

    assert asyncio.run(run()).choices[0].text == "ab"
    assert (made.engine.cancelled, made.engine._waiting) == (1, {})


def test_an_engine_that_fails_ends_the_requests(opened):
    class Broken(Scripted):
        def answer(self, requests):
            raise ValueError("out of memory")

    made = opened(engine=Broken(), record=False)

    async def run():
        running = asyncio.create_task(made.loop.run())
        transport = httpx.ASGITransport(made.app.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            found = await client.post(CHAT, json=chat("x"))
        with refuses(ValueError, "out of memory"):
            await running
        return found.status_code

    assert asyncio.run(run()) == 503


def test_the_stage_of_recorded_experience_has_its_tables(opened, tmp_path, settings):
    made = opened("a", "b")
    posted(made, (CHAT, chat("x")), (CHAT, chat("y")),
           *[("/feedback", lambda found, i=i: {"id": found[i].json()["id"], "reward": i}) for i in (0, 1)])
    made.recording.close()
    made = recorded_stage(settings(f"buffer.trainer_input.experience_buffer.path={tmp_path / 'rec'}"),
                          tmp_path / "stage")
    assert made == {"explorer_steps": 1, "experiences": 2}
    assert tables.steps_present(tmp_path / "stage", "rollouts") == [1]
    with refuses(DataError, "ouro serve --record"):
        recorded_stage(settings(f"buffer.trainer_input.experience_buffer.path={tmp_path}"), tmp_path / "other")


@pytest.mark.parametrize("version", [0, 3])
def test_experience_of_a_stage_of_another_run_is_taken_where_one_policy_made_it(tmp_path, settings, version):
    """It has no calls and no feedback, and what operators judged; rollouts by weights of a trainer are refused."""
    look = tmp_path / "look"
    for name, record in (("experience", records.Experience), ("curated", records.Curated)):
        tables.write(tables.step_file(look, name, 1), record, [row(record)])
    tables.write(tables.step_file(look, "rollouts", 1), records.Rollout, [
        row(records.Rollout, step=1, weights_version=version)])
    config = settings(f"buffer.trainer_input.experience_buffer.path={look}")
    if version:
        with refuses(DataError, look):
            recorded_stage(config, tmp_path / "stage")
        return
    assert recorded_stage(config, tmp_path / "stage") == {"explorer_steps": 1, "experiences": 1}
    assert [tables.steps_present(tmp_path / "stage", name) for name in ("curated", "calls")] == [[1], []]


def test_the_example_of_the_documentation_runs_and_ctrl_c_ends_the_server(opened, tmp_path):
    page = (HOME / "docs" / "serve.md").read_text()
    example = re.search(r"^```python\n(.*?)^```$", page, re.M | re.S)[1]
    made = opened("two", "sure", per_step=8)
    options = server.Options("127.0.0.1", 0, None, tmp_path / "rec", 8, 60.0, True)
    listener = server._listener(options)
    raised = []

    def ask():
        try:
            port = listener.getsockname()[1]
            exec(example.replace("127.0.0.1:8000", f"127.0.0.1:{port}"), {})
        except BaseException as error:
            raised.append(error)
        os.kill(os.getpid(), signal.SIGINT)

    asking = threading.Thread(target=ask)
    asking.start()
    asyncio.run(server._serve(listener, options, made.loop, made.recording, made.app._new))
    asking.join()
    assert raised == []
    assert made.recording.close() == 0
    (row,) = read(tmp_path, "experience")
    assert (row.reward, row.action_mask.count(1)) == (1.0, 9)


def two_parts(tmp_path):
    """A journal whose first part has a reply of attempt s and all of t, the second another reply of s and feedback."""
    made, held = recorder(tmp_path, per_step=9), {name: Attempt(name, name) for name in ("s", "t")}
    for names, rewarded in (("st", "t"), ("s", "s")):
        for name in names:
            made.replied(held[name], Reply("chat", [1], [2], [-0.5], "stop", False, None, 1.0, 1.0, -1, 7, 0.1, 1e12))
        made.rewarded(Feedback({"accuracy": 1.0}, session=rewarded))
        made.flush()
    made._lock.close()
    return sorted(journal_of(tmp_path / "rec").glob("*.json"))


def test_a_damaged_part_of_the_journal_is_named_and_what_it_tears_is_left_out(tmp_path):
    first, _ = two_parts(tmp_path)
    whole = recorder(tmp_path)
    assert [len(one.replies) for one in whole.open.values()] == [2, 1]
    assert not whole.torn
    whole._lock.close()
    flip(first)
    with pytest.raises(StageError) as caught:
        recorder(tmp_path)
    assert str(first) in str(caught.value)
    del caught
    first.unlink()
    torn = recorder(tmp_path)
    assert len(torn.torn) == 1
    assert not torn.open
    assert not torn._ready


def test_a_run_is_served_by_its_last_model_that_writes(tmp_path, tiny_model):
    run = FakeRun(tmp_path).data().sft()
    run.view()
    policy, judge = Path(run.stages[-1]["directory"]), run.stage("judge", "train", "curate", "sft")
    shutil.copytree(model_directory(tiny_model), policy / "model")
    models.classifier(judge / "model")
    run.view()
    assert model_of(run.run, None, tmp_path) == policy / "model"
    base = run.stage("quantized_rft", "quantized", "sft")
    shutil.copytree(model_directory(tiny_model), base, dirs_exist_ok=True)
    run.view()
    assert model_of(run.run, "quantized_rft", tmp_path) == base
    longest = json.loads((base / "config.json").read_text())["max_position_embeddings"]
    assert settings_of(base, "transformers", []).model.longest == longest
    with pytest.raises(DataError):
        model_of(run.run, "judge", tmp_path)


def test_lengths_of_prompt_and_response_bound_no_request_of_a_server(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "max_position_embeddings": 8192}')
    assert settings_of(tmp_path, "transformers", ["model.max_model_len=2048"]).model.longest == 2048
    assert settings_of(tmp_path, "transformers", ["model.max_response_tokens=8000"]).model.longest == 8192
    with refuses(ConfigError, "temperature"):
        settings_of(tmp_path, "transformers", ["model.temperature=-1"])


def test_a_server_does_not_warn_of_the_length_of_its_tokenizer(tiny_model, settings, monkeypatch, caplog):
    """transformers' "will result in indexing errors" is of a length that bounds no request; the trial of the chat
    template is longer."""
    async def ask(listener, *_):
        listener.close()

    monkeypatch.setattr(server, "open_engine", lambda *_, **__: Scripted("x"))
    monkeypatch.setattr(server, "_serve", ask)
    logger = logging.getLogger("transformers.tokenization_utils_base")
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.setattr(logging.getLogger("ouroboros.workflows.endpoint.speaker"), "disabled", False)
    server.serve(model_directory(tiny_model), settings(), server.Options("127.0.0.1", 0, None, None, 2, 60.0, True))
    assert "longer than" not in caplog.text
