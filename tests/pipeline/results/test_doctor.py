"""A planted fault for each rule of the doctor, in small tables that are healthy without it: 32 steps of two groups of
four replies, whose truth is 42."""

import json
import math
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from ouroboros.commands import cli
from ouroboros.commands.web.app import App
from ouroboros.pipeline.check.explain import walk
from ouroboros.pipeline.results import doctor
from ouroboros.pipeline.results.rules import RULES
from ouroboros.pipeline.store import records, sessions, tables
from ouroboros.pipeline.store.errors import QueryError
from ouroboros.pipeline.store.files import CONF
from tests.factories import row
from tests.fake_run import FakeRun

STEPS = 32


def _replies() -> list[dict]:
    """One of four is solved, from step 12 on two, from step 24 on three."""
    made = []
    for step in range(1, STEPS + 1):
        for slot in range(8):
            group, run = divmod(slot, 4)
            solved = float((run + step) % 4 <= step // 12)
            parts = {"accuracy": solved, "style": 0.1 * (run % 2 + 1)}
            made.append({
                "experience_id": f"rft-1/{step}/{group}/{run}", "stage": "rft-1", "step": step, "slot": slot,
                "task_id": f"t{group}", "group_id": f"{step}/{group}", "run_index": run, "prompt": "6 * 7?",
                "response": f"I think that it is {'42' if solved else 30 + run}.", "prompt_tokens": [1, 2, 3, 4, 5, 6],
                "response_tokens": list(range(10 + run, 26 + run)), "reward": sum(parts.values()),
                "reward_components": parts, "accuracy": solved, "status": "ok", "finish_reason": "stop"})
    return made


def _healthy() -> dict[str, list[dict]]:
    replies = _replies()
    of_step = {"stage": "rft-1", "grad_norm": 0.5, "lr": 1e-6, "trained_rows": 8, "kl_loss": 0.01,
               "mismatch_mean": 0.01, "mismatch_outside": 0.01, "effective_sample_size": 0.99, "stale_rows": 0,
               "response_tokens_mean": 16.0, "rollout_seconds": 1.0, "rollout_tail_seconds": 0.1,
               "vf_explained_variance": 0.5, "token_budget": 4096, "peak_memory_gib": 10.0, "host_memory_gib": 10.0,
               "staleness_max": 0}
    scores = [("base", 0, 0.3), ("rft-1", 16, 0.5), ("rft-1", 32, 0.6)]
    return {
        "experience": replies,
        "trained": [{"experience_id": one["experience_id"], "train_step": one["step"], "advantage": one["reward"] - 0.7}
                    for one in replies],
        "steps": [{**of_step, "step": step, "loss": 0.1, "entropy": 1 - step / 50, "reward": step / 40,
                   "solve_rate": step / 40, "watch_reward": 1 + step / 40} for step in range(1, STEPS + 1)],
        "scores": [{"stage": "evaluate-1", "model": model, "step": step, "taskset": "test",
                    "metric": "sampled_accuracy", "value": value, "low": value - 0.05, "high": value + 0.05,
                    "tasks": 64, "trained_tasks": 0}
                   for model, step, value in scores],
        "tasks": [{"task_id": f"t{i}", "row": i, "split": "train", "answer": "#### 42"} for i in range(4)],
        "tool_calls": [{"stage": "rft-1", "step": 1 + i, "slot": i, "name": "search", "result": "none"}
                       for i in range(16)]}


def planted_in(planted: dict[str, Callable[[dict], dict | None]]):
    """A session over the tables, in which each row is changed as said, or left out for None."""
    connection = sessions.new(1)
    for name, record in records.TABLES.items():
        made = [(one, planted.get(name, lambda _: {})(one)) for one in _healthy().get(name, [])]
        rows = [row(record, **(one | changed)) for one, changed in made if changed is not None]
        connection.register(f"of_{name}", tables.to_arrow(rows, record))
        connection.execute(f"CREATE VIEW {name} AS SELECT 'toy/first' AS run, * FROM of_{name}")
    return connection


def examined(planted: dict[str, Callable[[dict], dict | None]]) -> dict[str, set[str]]:
    """The names of rules by verdict."""
    verdicts = doctor.examine(planted_in(planted), {"rft"})
    return {word: {one.rule.name for one in verdicts if one.word == word}
            for word in (doctor.FOUND, doctor.HEALTHY, doctor.SKIPPED)}


def every(**changed) -> Callable[[dict], dict]:
    return lambda _: changed


def late(**changed) -> Callable[[dict], dict]:
    """Changes the last quarter of the steps."""
    return lambda one: changed if one["step"] > 24 else {}


def failed(status: str) -> dict:
    return {"experience": lambda one: {"status": status, "reason": "no", "reward": None, "accuracy": None,
                                       "reward_components": {}} if one["run_index"] == 3 and one["step"] > 16 else {}}


PLANTED = {
    "constant_reward": {"experience": every(reward=0.5), "trained": every(advantage=0.0)},
    "saturated_reward": {"experience": lambda one: {"reward": 0.0 if one["step"] == 1 == one["slot"] else
                                                    0.97 if one["run_index"] == 0 else 1.0}},
    "unsolvable_tasks": {"scores": lambda one: {"value": 0.0} if one["step"] == 0 else {}},
    "solved_tasks": {"scores": lambda one: {"value": 1.0} if one["step"] == 0 else {}},
    "never_solved": {"steps": every(solve_rate=0.0)}, "flat_groups": {"trained": every(advantage=0.0)},
    "falling_reward": {"steps": lambda one: {"reward": 1 - one["step"] / 40}},
    "watch_diverges": {"steps": lambda one: {"watch_reward": 1 - one["step"] / 40}},
    "past_its_best": {"scores": lambda one: {"value": 0.9, "low": 0.85, "high": 0.95} if one["step"] == 16 else {}},
    "unread_answers": {"experience": lambda one: {} if one["accuracy"] else {"response": r"So it is \boxed{42}."}},
    "components_fight": {"experience": lambda one: {"reward_components": {
        "accuracy": one["accuracy"], "short": 1.5 - one["accuracy"]}}},
    "judge_failures": failed("reward_failed"), "failed_attempts": failed("workflow_failed"),
    "long_prompts": failed("prompt_too_long"), "truncated": {"experience": every(finish_reason="length")},
    "longer_for_nothing": {"steps": lambda one: {"response_tokens_mean": float(one["step"]), "reward": 0.5}},
    "repeated_prompts": {"experience": late(response_tokens=[1, 2, 3, 4, 5, 6] * 3)},
    "identical_replies": {"experience": every(response="It is the same.", accuracy=0.0)},
    "constant_answer": {"experience": lambda one: {"response": f"{one['slot']}: it is <b>7</b>.", "accuracy": 0.0}
                        if one["step"] > 24 else {}},
    "duplicate_tasks": {"tasks": lambda one: {"task_id": "t1"} if one["row"] > 1 else {}},
    "leak": {"scores": every(trained_tasks=3)}, "few_steps": {"steps": lambda one: None if one["step"] > 29 else {}},
    "rate_zero": {"steps": late(lr=0.0)}, "gradient_zero": {"steps": late(grad_norm=0.0)},
    "not_finite": {"steps": lambda one: {"loss": math.nan} if one["step"] == 5 else {}},
    "entropy_collapse": {"steps": late(entropy=0.01)},
    "kl_drift": {"steps": late(kl_loss=2.0)}, "ratio_outside": {"steps": every(mismatch_outside=0.5)},
    "mismatch_growth": {"steps": lambda one: {"mismatch_mean": 0.01 * one["step"]}},
    "few_effective_rows": {"steps": late(effective_sample_size=0.1)},
    "stale_rows": {"steps": every(stale_rows=4)}, "blind_critic": {"steps": late(vf_explained_variance=-0.5)},
    "memory_growth": {"steps": lambda one: {"peak_memory_gib": 10.0 + one["step"]}},
    "host_memory_growth": {"steps": lambda one: {"host_memory_gib": 10.0 + one["step"]}},
    "halved_budget": {"steps": late(token_budget=2048)}, "straggler": {"steps": every(rollout_tail_seconds=0.8)},
    "failing_tools": {"tool_calls": lambda one: {"failed": one["slot"] % 2 == 0}},
}


def test_every_rule_has_a_planted_fault_and_judges_the_healthy_tables():
    assert set(PLANTED) == set(RULES)
    assert examined({}) == {doctor.FOUND: set(), doctor.HEALTHY: set(RULES) - {"identical_replies"},
                            doctor.SKIPPED: {"identical_replies"}}  # each group has a solution


@pytest.mark.parametrize("name", PLANTED)
def test_a_rule_finds_its_own_fault_and_no_other_does(name):
    assert examined(PLANTED[name])[doctor.FOUND] == {name}


def test_each_rule_names_settings_that_there_are_and_stands_on_the_page():
    keys, page = {key for key, _ in walk()}, (CONF.parent / "docs" / "doctor.md").read_text(encoding="utf-8")
    sections = {key.split(".")[0] for key in keys if "." in key}
    for rule in RULES.values():
        named = [word for word in re.findall(r"\w+(?:\.\w+)+", rule.change) if word.split(".")[0] in sections]
        assert [word for word in named if not any(f"{key}.".startswith(f"{word}.") for key in keys)] == []
        limit = f"{'below' if rule.under else 'above'} {rule.limit:g}"
        assert f"| `{rule.name}` | {rule.finds} | {limit} | {rule.change} |" in page


def test_the_command_its_questions_and_the_page_agree(tmp_path, capsys):
    """A run of four steps, complete; bash hands ouro the question that the rule asks."""
    run = FakeRun(tmp_path).whole()
    run.view()
    assert cli.main(["doctor", "--root", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "few_steps" in said
    command = next(line.strip() for line in said.splitlines() if line.startswith("  ouro sql"))
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, text=True, check=True)
    words = done.stdout.split("\0")[1:-1]
    assert words[2:] == ["toy/first", "--root", str(tmp_path)]
    assert words[1] == " ".join(RULES["few_steps"].sql.split())
    assert cli.main([*words, "--format", "json"]) == 0
    assert {"stage": "rft", "steps": 4} in json.loads(capsys.readouterr().out)
    assert cli.main(["doctor", "--format", "json", "--root", str(tmp_path)]) == 1
    rows = json.loads(capsys.readouterr().out)
    few = [row for row in rows if row["rule"] == "few_steps"]
    assert [(row["stage"], row["value"], row["verdict"]) for row in few] == [("rft", 4, "found"), ("sft", 4, "found")]
    client = TestClient(App(tmp_path, "secret").asgi(), base_url="http://localhost:9000",
                        headers={"authorization": "Bearer secret"})
    assert client.get("/api/doctor", params={"run": "toy/first"}).json() == rows


def test_a_stage_that_is_not_complete_may_still_have_few_steps(warmed_up, capsys):
    run = warmed_up
    run.rft()
    (Path(run.stages[-1]["directory"]) / "manifest.json").unlink()
    run.view()
    assert cli.main(["doctor", "--format", "json", "--root", str(run.root)]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert [row["stage"] for row in rows if row["rule"] == "few_steps"] == ["sft"]


def test_the_rows_before_the_onset_of_a_behaviour_are_ranked():
    """One of eight replies shows it in steps 5 and 9, two from step 10 on, of which one has a positive advantage."""
    def shows(one: dict) -> dict:
        few, many = one["step"] in (5, 9) and one["slot"] == 3, one["step"] >= 10 and one["slot"] in (2, 3)
        return {"response": "As an AI"} if few or many else {}

    ranked = {"experience": shows, "trained": lambda one: {
        "advantage": one["train_step"] / 10 if one["experience_id"].endswith("/0/3") else -1.0}}
    found = doctor.onset(planted_in(ranked), "response ILIKE '%as an ai%'")
    at = found.columns.index
    assert [(row[at("onset")], row[at("step")], row[at("advantage")]) for row in found.rows] == [(5, 5, 0.5)]
    with pytest.raises(QueryError):
        doctor.onset(planted_in({}), "true); DROP TABLE steps; --")
