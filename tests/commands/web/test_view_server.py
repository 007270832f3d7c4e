"""The server of `ouro view`: who is let in, what addresses answer, and that a page from disk has the same."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from pathlib import Path

import psutil
import pytest
import uvicorn
import yaml
from starlette.testclient import TestClient

from ouroboros.commands import cli
from ouroboros.commands.web import app as web
from ouroboros.commands.web import command, curves, export, overview, question
from ouroboros.commands.web.app import App
from ouroboros.pipeline.results.machine import machine
from ouroboros.pipeline.store import files, tables
from ouroboros.pipeline.store.errors import QueryError
from ouroboros.workflows.endpoint import server
from ouroboros.workflows.endpoint.guard import Impatient
from tests.fake_run import FakeRun

RUN = "toy/first"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    run = FakeRun(tmp_path_factory.mktemp("view")).whole().interim(0.5, 0.6)
    run.view()
    return run.root


HEADERS = {"authorization": "Bearer secret"}


def visitor(root, **given):
    return TestClient(App(root, "secret").asgi(), base_url="http://localhost:9000", **given)


@pytest.fixture
def stranger(root):
    return visitor(root)


@pytest.fixture
def client(root):
    return visitor(root, headers=HEADERS)


def asked(client, name: str, **given):
    answer = client.get(f"/api/{name}", params=given)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_every_answer_needs_the_token_which_no_cookie_takes_to_other_ports(stranger):
    for path in ("/", "/?token=secret"):
        answer = stranger.get(path, follow_redirects=False)
        assert (answer.status_code, answer.headers.get("set-cookie")) == (200, None)
    for name in ("runs", "machine", "run", "scores", "rows", "row", "search"):
        assert stranger.get(f"/api/{name}").status_code == 403
        assert stranger.get(f"/api/{name}", headers={"authorization": "Bearer other"}).status_code == 403
    assert stranger.get("/api/runs?token=secret", headers={"cookie": "ouro-view-8000=secret"}).status_code == 403
    assert stranger.post("/api/sql", json={"runs": [RUN], "question": "SELECT 1"}).status_code == 403
    assert stranger.get("/api/runs", headers=HEADERS).status_code == 200


@pytest.mark.parametrize("headers", [
    {"host": "evil.example"}, {"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}])
def test_pages_of_others_are_refused(client, headers):
    question = {"runs": [RUN], "question": "SELECT 1"}
    assert client.post("/api/sql", json=question, headers=headers).status_code in (400, 403)
    assert client.get("/api/runs", headers=headers).status_code in (400, 403)


def test_no_script_but_its_own_runs_on_the_page(client):
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "studio" not in answer.text
    for file in re.findall(r'(?:src|href)="(static/[^"]+)"', answer.text):
        assert client.get(f"/{file}").status_code == 200
    written = "".join(client.get(f"/static/{name}").text for name in web.scripts() if name.endswith(".js"))
    assert not re.search(r"(inner|outer)HTML|insertAdjacentHTML|document\.write|srcdoc|DOMParser|new Function", written)
    for name in ("..%2Fapp.py", "vendor/uPlot.LICENSE", "index.html"):
        assert client.get(f"/static/{name}").status_code == 404


def test_no_address_writes_or_starts_anything(tmp_path, monkeypatch):
    """Each is asked for what there is. Those that are posted to are the question in SQL, whose process may write no
    file, and `ouro reward diff`; what else is started asks for the GPUs."""
    run = FakeRun(tmp_path).whole()
    (run.view() / "config.yaml").write_text("seed: 1\n")
    app = App(tmp_path, "secret")
    posted = [route.path for route in app.routes() if not route.methods <= {"GET", "HEAD"}]
    assert posted == ["/api/sql", "/api/rewards"]
    started, real = [], subprocess.Popen.__init__

    def start(self, words, *rest, **given):
        started.append(Path(words[0]).name)
        real(self, words, *rest, **given)

    monkeypatch.setattr(subprocess.Popen, "__init__", start)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    client, answered = visitor(tmp_path, headers=HEADERS), []
    given = {"/api/row": {"row": "1:0"}, "/api/task": {"task_id": "t1"}, "/api/curves": {"column": "loss"},
             "/api/search": {"text": "8"}, "/api/onset": {"predicate": "true"}}
    for route in app.routes():
        if route.path.startswith("/api/") and route.path not in posted:
            wanted = {"run": RUN, "stage": "rft"} | given.get(route.path, {})
            answered.append((route.path, client.get(route.path, params=wanted).status_code))
            assert client.post(route.path, json=wanted).status_code == 405
    assert [one for one in answered if one[1] != 200] == []
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert set(started) <= {"nvidia-smi"}


def test_runs_and_their_stages(client):
    (one,) = asked(client, "runs")
    assert (one["run"], one["stages"], one["complete"], one["state"]) == (RUN, 8, 7, "waiting")
    stages = {stage["name"]: stage for stage in asked(client, "run", run=RUN)["stages"]}
    assert stages["rft"]["inputs"] == ["curate", "sft"]
    assert (stages["rft"]["state"], stages["rft"]["tables"]) == ("complete", ["experience"])
    assert stages["report"]["state"] == "waiting"


def test_runs_are_compared_by_the_last_evaluation_of_the_first(tmp_path):
    FakeRun(tmp_path, RUN).whole().view()
    FakeRun(tmp_path, "toy/second").whole().view()
    client = visitor(tmp_path, headers=HEADERS)
    (line,) = asked(client, "differences", run=[RUN, "toy/second"])
    assert line.startswith("toy/second against toy/first: ")
    assert asked(client, "differences", run=RUN) == []


def test_a_run_says_when_a_stage_that_is_not_complete_changed(tmp_path):
    run = FakeRun(tmp_path).data()
    stage = run.stage("rft", "rft", "curate", "model", complete=False)
    run.view()
    client = visitor(tmp_path, headers=HEADERS)
    (before,) = asked(client, "runs")
    assert asked(client, "runs") == [before]
    run._step(stage, 1)
    (after,) = asked(client, "runs")
    assert after["changed"] > before["changed"]
    files.write_json(stage / files.MANIFEST, {})
    assert asked(client, "runs")[0]["changed"] == 0


def test_runs_as_a_table_have_the_settings_that_differ_and_their_newest_scores(tmp_path):
    """The third has no configuration; its last evaluation is on the way of its training."""
    for name, rate in (("toy/first", 1e-5), ("toy/second", 1e-6), ("toy/third", None)):
        run = FakeRun(tmp_path, name).whole()
        run.view()
        if rate:
            config = {"name": name[4:], "algorithm": {"algorithm_type": "grpo", "optimizer": {"lr": rate}}}
            (run.path / "config.yaml").write_text(yaml.safe_dump(config))
    client = visitor(tmp_path, headers=HEADERS)
    found = {one["run"]: one for one in asked(client, "table")}
    assert {name: one["settings"] for name, one in found.items()} == {
        "toy/first": {"lr": 1e-5}, "toy/second": {"lr": 1e-6}, "toy/third": {}}
    assert found["toy/first"]["scores"] == {"test": {"metric": "sampled_accuracy", "value": 0.81, "low": 0.78,
                                                     "high": pytest.approx(0.84)}}
    rows = {one["key"]: one["values"] for one in asked(client, "settings", run=["toy/first", "toy/second"])}
    assert rows == {"name": ["first", "second"], "algorithm.optimizer.lr": [1e-5, 1e-6]}
    (kind,) = [one for one in asked(client, "settings", run="toy/first") if one["key"] == "algorithm.algorithm_type"]
    assert kind["values"] == ["grpo"]
    assert client.get("/api/settings", params={"run": "toy/third"}).status_code == 400


def test_logs_are_the_last_records_of_at_least_a_level(tmp_path, monkeypatch):
    run = FakeRun(tmp_path).data()
    run.view()
    lines = [f"2026-01-01 00:00:0{at},000 {level} line {at}\n" for at, level in enumerate(["INFO", "ERROR"] * 3)]
    Path(run.stages[0]["directory"], "stage.log").write_text("".join(lines))
    client = visitor(tmp_path, headers=HEADERS)
    monkeypatch.setattr(web, "RECORDS", 2)
    assert [line[-6:] for line in asked(client, "logs", run=RUN)] == ["line 4", "line 5"]
    assert [line[-6:] for line in asked(client, "logs", run=RUN, level="ERROR")] == ["line 3", "line 5"]
    assert client.get("/api/logs", params={"run": RUN, "level": "LOUD"}).status_code == 400


def test_columns_are_in_groups_learning_first(client):
    groups = {one["name"]: one["group"] for one in asked(client, "columns", run=RUN)}
    assert [*groups][:3] == ["reward", "solve_rate", "loss"]
    assert {groups[name] for name in ("reward", "loss", "grad_norm", "lr")} == {"learning"}
    assert [groups[name] for name in ("entropy", "kl", "mismatch_max", "response_tokens_mean", "train_seconds",
                                      "zero_variance_groups")] == [
        "entropy", "KL and mismatch", "KL and mismatch", "lengths", "time", "others"]


def test_scores_have_the_stage_that_evaluated(client):
    found = {(one["of"], one["metric"]): one["value"] for one in asked(client, "scores", run=RUN)}
    assert found["evaluate_rft", "sampled_accuracy"] == 0.81


def test_a_curve_by_step_and_by_seconds(client):
    by_step = {one["stage"]: one for one in asked(client, "curves", run=RUN, column="lr")}
    assert (by_step["rft"]["x"], by_step["rft"]["y"]) == ([1, 2, 3, 4], [4e-4] * 4)
    by_seconds = {one["stage"]: one for one in asked(client, "curves", run=RUN, column="lr", axis="seconds")}
    assert by_seconds["sft"]["x"] == pytest.approx([0.45, 0.9, 1.35, 1.8])
    by_tokens = {one["stage"]: one for one in asked(client, "curves", run=RUN, column="lr", axis="tokens")}
    assert by_tokens["rft"]["x"] == [12500, 25000, 37500, 50000]  # 3,500 rolled out and 9,000 trained
    assert asked(client, "curves", run=RUN, column="absent") == []
    assert client.get("/api/curves", params={"run": RUN, "column": "lr", "axis": "days"}).status_code == 400


def test_the_pace_of_stages_is_that_of_the_last_run_that_had_them(root):
    found = overview.paces(root)
    assert found["sft"] == {"run": RUN, "step_seconds": pytest.approx(0.45)}
    assert set(found) == {"sft", "rft"}


def test_steps_that_come_later_are_added_to_a_curve(tmp_path):
    run = FakeRun(tmp_path, steps=2).data().sft()
    stage = tmp_path / "store" / run.stages[-1]["directory"].rpartition("/")[2]
    assert curves.read(stage, "steps").steps == [1, 2]
    run._step(stage, 3, loss=7.0, start=[("trainer: imports", 14.0)])
    made = curves.read(stage, "steps")
    assert (made.steps, made.columns["loss"][-1]) == ([1, 2, 3], 7.0)
    assert not [name for name in made.columns if name.startswith("start")]  # a point is no curve
    for step in (2, 3):  # a stage that goes on from the checkpoint of step 1 makes them again
        tables.step_file(stage, "steps", step).unlink()
        run._step(stage, step, loss=9.0)
    made = curves.read(stage, "steps")
    assert (made.steps, made.columns["loss"]) == ([1, 2, 3], [pytest.approx(1.98), 9.0, 9.0])


def test_rows_of_a_stage_and_a_search(client):
    found = asked(client, "rows", run=RUN, stage="rft", train_step=2)
    assert {one["step"] for one in found["rows"]} == {2}
    lines = client.get("/api/search", params={"run": RUN, "stage": "rft", "text": "<SCRIPT>"}).text.splitlines()
    assert sum("row" in json.loads(line) for line in lines) == 4
    samples = asked(client, "rows", run=RUN, stage="evaluate_rft", table="samples", accuracy="1")
    assert [one["task_id"] for one in samples["rows"]] == ["t2", "t3"]


@pytest.mark.parametrize(("address", "given"), [
    ("run", {}), ("run", {"run": "toy/none"}), ("rows", {"run": RUN, "stage": "none"}),
    ("rows", {"run": RUN, "stage": "rft", "table": "steps"}), ("rows", {"run": RUN, "stage": "rft", "start": "x"}),
    ("rows", {"run": RUN, "stage": "rft", "train_step": "x"}),
    ("rows", {"run": RUN, "stage": "rft", "train_step": "9" * 5000}),
    ("rows", {"run": RUN, "stage": "rft", "steps": "9" * 5000}),
    ("rows", {"run": RUN, "stage": "rft", "start": f"1:{'9' * 5000}"}),
    ("row", {"run": RUN, "stage": "rft", "row": f"1:{'9' * 5000}"}),
    ("row", {"run": RUN, "stage": "rft", "id": f"a/{'9' * 5000}"}),
    ("row", {"run": RUN, "stage": "rft", "row": "1:99"}),
    ("search", {"run": RUN, "stage": "rft"})])
def test_an_address_that_asks_for_nothing(client, address, given):
    answer = client.get(f"/api/{address}", params=given)
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_no_row_is_of_a_step_of_5000_digits(client):
    for name, value in (("group_id", "9" * 5000), ("experience_id", f"rft/{'9' * 5000}/t1/0")):
        assert asked(client, "rows", run=RUN, stage="rft", **{name: value})["rows"] == []


@pytest.mark.parametrize("body", [
    b"no json", b"[]", b'{"runs": 1}', b'{"runs": "toy/first", "question": "SELECT 1"}', b'{"runs": [["toy/first"]]}',
    b'{"runs": [], "question": "SELECT \'\\ud800\'"}', b"[" * 200_000, b'{"runs": ' + b"[" * 150 + b"]" * 150 + b"}",
    b'{"runs": [NaN]}', b'{"runs": [], "runs": [], "question": "SELECT 1"}', b"\xff"])
def test_what_is_no_question(client, body):
    answer = client.post("/api/sql", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_requests_are_limited_as_those_of_ouro_serve(client, monkeypatch):
    monkeypatch.setattr(server, "LARGEST", 1000)
    assert client.post("/api/sql", json={"runs": [], "question": " " * 1001}).status_code == 413
    parts = (b" " * 400 for _ in range(9))  # chunks without a length
    assert client.post("/api/sql", content=parts, headers={"content-type": "application/json"}).status_code == 413
    assert client.post("/api/sql", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415


def test_connections_and_slow_headers_are_limited_as_those_of_ouro_serve(root, monkeypatch):
    made = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: made.append(self.config))
    web.serve(root, 0, lambda _: None)
    assert made[0].http is Impatient
    assert made[0].timeout_graceful_shutdown == web.GRACE_SECONDS
    assert made[0].loop == "asyncio"  # the process of a question has its own group, which uvloop refuses


def test_sql_gives_the_first_rows(client):
    question = "SELECT range AS n, CASE WHEN range = 1 THEN 'nan'::DOUBLE END AS x FROM range(5000)"
    found = client.post("/api/sql", json={"runs": [RUN], "question": question}).json()
    assert (found["columns"], len(found["rows"]), found["more"]) == (["n", "x"], 1000, True)
    assert found["rows"][1] == [1, None]


@pytest.mark.parametrize(("asks", "told"), [
    ("DROP VIEW steps", "DROP"), ("SELECT * FROM read_csv('/etc/passwd')", "Permission"),
    ("SELECT repeat('x', 200000000)", "of memory"), ("SELECT repeat('x', 8000001)", "8.0 MB"),
    ("SELECT repeat('x', 90000) FROM range(100)", "9.0 MB")])
def test_what_sql_refuses(root, asks, told, monkeypatch):
    monkeypatch.setattr(question, "ADDRESSES", 300 << 20)
    with pytest.raises(QueryError, match=told):
        question.answered(str(root), [RUN], asks)


def test_lists_that_nest_too_deep_are_refused(root, monkeypatch):
    nested = reduce(lambda inner, _: [inner], range(5000), 1)
    monkeypatch.setattr(question.query, "ask", lambda *_: question.query.Answer(["x"], [(nested,)]))
    with pytest.raises(QueryError, match="nest too deep"):
        question.answered(str(root), [RUN], "SELECT 1")


def test_a_question_that_takes_too_long_or_whose_process_dies_is_refused_and_leaves_no_process(monkeypatch, tmp_path):
    for lasts, told in (("sleep 100", "0.2 s"), ("kill -SEGV $$", "-11")):
        monkeypatch.setattr(question, "SECONDS", 0.2 if "sleep" in lasts else 60)
        written = f"echo $$ > {tmp_path / 'process'}; exec 2>/dev/null; {lasts.replace('sleep', 'exec sleep')}"
        monkeypatch.setattr(question.launch, "command", lambda _, written=written: ["sh", "-c", written])
        with pytest.raises(QueryError, match=told):
            asyncio.run(question.answer(tmp_path, [], "SELECT 1"))
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "process").read_text()), 0)


def test_two_questions_are_answered_at_the_same_time(client, monkeypatch):
    asked = {"runs": [], "question": "SELECT 1"}

    async def answer(*_):
        inner = TestClient(client.app, base_url="http://localhost:9000", headers=HEADERS)
        found = await asyncio.to_thread(inner.post, "/api/sql", json=asked)
        return {"status": found.status_code, "found": found.json()}

    monkeypatch.setattr(question, "answer", answer)
    first = client.post("/api/sql", json=asked).json()
    assert (first["status"], first["found"]["status"]) == (200, 400)
    assert "questions" in first["found"]["found"]["error"]
    assert client.post("/api/sql", json=asked).json()["status"] == 200


def test_rewards_are_those_of_the_command_and_its_words_are_no_options(root, client, monkeypatch):
    asked = []

    def answer(*words):
        asked.append(words)
        failed = len(asked) > 1
        return subprocess.CompletedProcess(words, int(failed), "" if failed else '{"changed": 3}',
                                           "stage rft: …\nouro: toy/first has no stage with rollouts.\n")

    monkeypatch.setattr(command, "command", answer)
    given = {"run": RUN, "words": "other.yaml 'name=a b'"}
    assert client.post("/api/rewards", json=given).json() == {"changed": 3}
    assert asked == [("reward", "diff", "--json", "--root", str(root), RUN, "other.yaml", "name=a b")]
    refused = client.post("/api/rewards", json=given)
    assert (refused.status_code, "no stage with rollouts" in refused.json()["error"]) == (400, True)
    for wrong in ({"run": RUN}, {"run": 1, "words": ""}, {"run": RUN, "words": "'"}, {"run": RUN, "words": "--root=/"}):
        assert client.post("/api/rewards", json=wrong).status_code == 400
    with command.ONE:  # of another request
        assert client.post("/api/rewards", json=given).status_code == 400
    assert len(asked) == 2


def test_names_of_files_that_are_no_unicode_are_answered(monkeypatch, client):
    monkeypatch.setattr(web.overview, "runs", lambda _: [{"run": "a/\udcff"}])
    assert asked(client, "runs") == [{"run": "a/\udcff"}]


def test_a_page_for_the_disk_has_the_answers_of_the_server(client, root, tmp_path):
    assert cli.main(["view", RUN, "--root", str(root), "--export", str(tmp_path / "page")]) == 0
    text = (tmp_path / "page/static/data.js").read_text()
    assert "</script" not in text
    data = json.loads(text.removeprefix("window.OURO_DATA = ").removesuffix(";\n"))
    assert data["api/curves?run=toy%2Ffirst&column=loss&axis=step"] == asked(client, "curves", run=RUN, column="loss",
                                                                             axis="step")
    assert data["api/distributions?run=toy%2Ffirst"] == asked(client, "distributions", run=RUN)
    assert str(root) not in text
    rows = data["rows toy/first rft experience"]
    assert {one["trained_in"][0] for one in rows} == {1, 2, 3, 4}
    key = f"api/row?run=toy%2Ffirst&stage=rft&table=experience&row={rows[0]['row'].replace(':', '%3A')}"
    assert data[key]["row"]["experience_id"] == rows[0]["experience_id"]
    assert '<script src="static/data.js">' in (tmp_path / "page/index.html").read_text()
    assert cli.main(["view", RUN, "--root", str(root), "--export", str(tmp_path / "page")]) == 2


def test_a_page_for_the_disk_writes_addresses_as_a_browser_does():
    """`new URLSearchParams({run: "a~b*c d/é"}).toString()` in Chromium."""
    assert export.address("run", run="a~b*c d/é") == "api/run?run=a%7Eb*c+d%2F%C3%A9"


def test_there_is_no_such_run(tmp_path):
    assert cli.main(["view", "absent", "--root", str(tmp_path)]) == 2
    assert cli.main(["view", "--root", str(tmp_path), "--export", str(tmp_path / "page")]) == 2


def test_the_load_is_that_of_the_machine_whichever_thread_asks(monkeypatch):
    """A first call of psutil in a thread has nothing to compare with, and answers 0. Another process is busy."""
    monkeypatch.setattr(psutil, "_last_cpu_times", {})  # a thread may have the number of one before it
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        with ThreadPoolExecutor() as pool:
            used = pool.submit(machine).result()["cpu_used"]
        busy.kill()
    assert 0 < used <= 1


GRAPH = """
const made = (name, given, ...children) => ({name, given, children, append(...more) { this.children.push(...more); },
                                             setAttribute() {}});
globalThis.document = {createElementNS: () => made("a", null)};
globalThis.Ouro = {h: made, draw: made, duration: String};
const stages = JSON.parse(process.argv[1]).map(([name, kind, inputs]) => ({name, kind, inputs, state: "waiting"}));
const [drawing] = eval(require("fs").readFileSync(0, "utf8") + "; OuroGraph").stages(stages, () => "").children;
const boxes = drawing.children.filter((one) => one.name === "a").map((one) => one.children[1].given);
const lines = drawing.children.filter((one) => one.name === "path.edge").map((one) => one.given.d);
console.log(JSON.stringify([boxes, lines]));
"""


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_no_line_of_the_graph_runs_behind_a_box():
    """evaluate_base and evaluate_sft are as high as evaluate_rft, which is between them and the report."""
    stages = [("curate", "curate", []), ("model", "model", []), ("evaluate_base", "evaluate", ["curate", "model"]),
              ("sft", "train", ["curate", "model"]), ("evaluate_sft", "evaluate", ["sft"]), ("rft", "rft", ["sft"]),
              ("evaluate_rft", "evaluate", ["rft"])]
    stages.append(("report", "report", [name for name, _, _ in stages]))
    script = (Path(overview.__file__).parent / "static" / "graph.js").read_text()
    done = subprocess.run(["node", "-e", GRAPH, json.dumps(stages)], input=script, capture_output=True, text=True,
                          check=True)
    boxes, lines = json.loads(done.stdout)
    assert (len(boxes), len(lines)) == (8, 10)
    behind = []
    for line in lines:
        x, y = map(float, re.match(r"M(\S+) ([\d.]+)", line).groups())
        for kind, given in re.findall(r"([CH])([^A-Z]*)", line):
            numbers = [*map(float, given.split())]
            x, y, before = (numbers[-2], numbers[-1], x) if kind == "C" else (numbers[0], y, x)
            behind += [(line, box) for box in boxes if kind == "H" and box["y"] < y < box["y"] + box["height"]
                       and before < box["x"] + box["width"] / 2 < x]
    assert behind == []
