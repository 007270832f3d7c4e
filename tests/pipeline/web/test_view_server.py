"""The server of `ouro view`: who is let in, what addresses answer, and that a page from disk has the same."""

import json
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from starlette.testclient import TestClient

from pipeline import cli
from pipeline.store import tables
from pipeline.web import curves, export, overview
from pipeline.web.app import App
from tests.fake_run import FakeRun

RUN = "toy/first"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    run = FakeRun(tmp_path_factory.mktemp("view")).whole()
    run.interim(0.5, 0.6)
    run.view()
    return run.root


@pytest.fixture
def stranger(root):
    return TestClient(App(root, "secret", 8000).asgi(), base_url="http://localhost:9000")


@pytest.fixture
def client(stranger):
    stranger.get("/?token=secret")
    return stranger


def asked(client, name: str, **given):
    answer = client.get(f"/api/{name}", params=given)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_token_of_the_address_becomes_a_cookie_that_scripts_cannot_read(stranger):
    assert stranger.get("/").status_code == 403
    assert stranger.get("/api/runs").status_code == 403
    assert stranger.get("/?token=other").status_code == 403
    answer = stranger.get("/?token=secret", follow_redirects=False)
    assert answer.headers["location"] == "/"
    assert {"HttpOnly", "SameSite=strict"} <= {part.strip() for part in answer.headers["set-cookie"].split(";")}
    assert stranger.get("/").status_code == 200
    assert stranger.get("/api/runs").status_code == 200


@pytest.mark.parametrize("headers", [
    {"host": "evil.example"}, {"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"},
])
def test_pages_of_others_are_refused(client, headers):
    question = {"runs": [RUN], "question": "SELECT 1"}
    assert client.post("/api/sql", json=question, headers=headers).status_code in (400, 403)
    assert client.get("/api/runs", headers=headers).status_code in (400, 403)


def test_no_script_but_its_own_runs_on_the_page(client):
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for file in re.findall(r'(?:src|href)="(static/[^"]+)"', answer.text):
        assert client.get(f"/{file}").status_code == 200
    assert "innerHTML" not in "".join(client.get(f"/static/{name}").text for name in ("view.js", "rollouts.js"))
    assert client.get("/static/..%2Fapp.py").status_code == 404


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
    client = TestClient(App(tmp_path, "secret", 8000).asgi(), base_url="http://localhost:9000")
    client.get("/?token=secret")
    (line,) = asked(client, "differences", run=[RUN, "toy/second"])
    assert line.startswith("toy/second against toy/first: ")
    assert asked(client, "differences", run=RUN) == []


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
    run = FakeRun(tmp_path, steps=2)
    run.data()
    run.sft()
    stage = tmp_path / "store" / run.stages[-1]["directory"].rpartition("/")[2]
    assert curves.read(stage, "steps").steps == [1, 2]
    run._step(stage, 3, loss=7.0)
    made = curves.read(stage, "steps")
    assert (made.steps, made.columns["loss"][-1]) == ([1, 2, 3], 7.0)
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
    ("rows", {"run": RUN, "stage": "rft", "train_step": "x"}), ("row", {"run": RUN, "stage": "rft", "row": "1:99"}),
    ("search", {"run": RUN, "stage": "rft"}),
])
def test_an_address_that_asks_for_nothing(client, address, given):
    answer = client.get(f"/api/{address}", params=given)
    assert answer.status_code == 400
    assert answer.json()["error"]


@pytest.mark.parametrize("body", [b"no json", b"[]", b'{"runs": 1}',
                                  b'{"runs": ["toy/first"], "question": "DROP VIEW steps"}',
                                  b'{"runs": ["toy/first"], "question": "SELECT * FROM read_csv(\'/etc/passwd\')"}'])
def test_what_sql_refuses(client, body):
    assert client.post("/api/sql", content=body).status_code == 400


def test_sql_gives_the_first_rows(client):
    question = "SELECT range AS n, CASE WHEN range = 1 THEN 'nan'::DOUBLE END AS x FROM range(5000)"
    found = client.post("/api/sql", json={"runs": [RUN], "question": question}).json()
    assert (found["columns"], len(found["rows"]), found["more"]) == (["n", "x"], 1000, True)
    assert found["rows"][1] == [1, None]


def test_a_page_for_the_disk_has_the_answers_of_the_server(client, root, tmp_path):
    assert cli.main(["view", RUN, "--root", str(root), "--export", str(tmp_path / "page")]) == 0
    text = (tmp_path / "page/static/data.js").read_text()
    assert "</script" not in text
    data = json.loads(text.removeprefix("window.OURO_DATA = ").removesuffix(";\n"))
    assert data["api/curves?run=toy%2Ffirst&column=loss&axis=step"] == asked(client, "curves", run=RUN, column="loss",
                                                                             axis="step")
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
            used = pool.submit(overview.machine).result()["cpu_used"]
        busy.kill()
    assert 0 < used <= 1


GRAPH = """
const made = (name, given, ...children) => ({name, given, children, append(...more) { this.children.push(...more); },
                                             setAttribute() {}});
globalThis.document = {createElementNS: () => made("a", null)};
globalThis.Ouro = {h: made, draw: made, duration: String};
const stages = JSON.parse(process.argv[1]).map(([name, kind, inputs]) => ({name, kind, inputs, state: "waiting"}));
const [drawing] = eval(require("fs").readFileSync(0, "utf8") + "; OuroCharts")
  .stages(stages, null, () => "").children;
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
    script = (Path(overview.__file__).parent / "static" / "charts.js").read_text()
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
