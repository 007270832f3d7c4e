"""The explorer: the rows it writes, and what makes it stop."""

import gc
from collections import Counter
from contextlib import nullcontext

import pytest

from ouroboros.pipeline.job import own_process
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.settings.config import AuxiliaryModel
from ouroboros.pipeline.store import checkpoints, files, records, tables, versions
from ouroboros.pipeline.store.errors import StageError
from ouroboros.pipeline.store.recovery import rewind_explorer
from ouroboros.stages.explore import explore
from ouroboros.workflows.protocol.prompts import prompt_hash, turns_of
from ouroboros.workflows.rewards import Rewards
from ouroboros.workflows.single_turn import Trajectory
from tests.configs import TINY, element, overridden
from tests.factories import row
from tests.golden.messages import refuses
from tests.models import classifier
from tests.stages.conftest import SMALL, TASKS, open_explorer, publish_model, step


def with_examples(prompt):
    """A workflow that puts tokens of its own before the task's prompt."""
    mine = [50, 51, *prompt]
    reply = yield mine
    return Trajectory(mine, reply.tokens, reply.logprobs, [1] * len(reply.tokens), reply.finish_reason)


WORKFLOW = ("default_workflow_type=tests.ending_code:walks", "default_reward_fn_type=format_reward")


def two_players(prompt):
    """White wins by 2, as what it earned in its two turns."""
    turns = []
    for role, earned in (("white", 1.5), ("black", -2.0), ("white", 0.5)):
        reply = yield prompt
        turns.append(Trajectory(prompt, reply.tokens, reply.logprobs, [1] * len(reply.tokens), reply.finish_reason,
                                role=role, reward=earned))
    return turns


@pytest.mark.parametrize(("trained", "rows"), [
    ("[]", [("white", 0, 2.0), ("black", 1, -2.0), ("white", 2, 2.0)]),
    ("[white]", [("white", 0, 2.0), ("white", 1, 2.0)])])
def test_each_row_has_the_reward_of_its_player(stage, trained, rows):
    context = stage("buffer.explorer_input.default_workflow_type=tests.stages.test_explore:two_players",
                    f"explorer.trained_roles={trained}")
    step(publish_model(context, 0))
    found = [row for row in rows_of_step(context) if row["status"] == "ok"]
    slots = sorted({row["slot"] for row in found})
    assert len(slots) > 1
    assert [(row["slot"], row["role"], row["turn"], row["reward"]) for row in found] == [
        (slot, *row) for slot in slots for row in rows]


def test_a_trained_role_without_rows_ends_the_step(stage):
    context = stage("buffer.explorer_input.default_workflow_type=tests.stages.test_explore:two_players",
                    "explorer.trained_roles=[white,green]")
    with refuses(StageError, "green", "white"):
        step(publish_model(context, 0))


@pytest.mark.parametrize(("chosen", "status", "reason"), [
    (WORKFLOW, "workflow_failed",
     "the process of the workflow tests.ending_code:walks ended with exit code 3, without a result"),
    ((*WORKFLOW, "taskset.workflow_args={way: SIGSEGV}"), "workflow_failed",
     "the process of the workflow tests.ending_code:walks ended by signal SIGSEGV, without a result"),
    (("default_reward_fn_type=tests.ending_code:scores",), "reward_failed",
     "scores did not return: its process ended with exit code 5")])
def test_a_function_that_ended_the_process_before_fails_its_rows_again_and_again(stage, chosen, status, reason):
    context = stage("explorer.max_failed_ratio=1", *(f"buffer.explorer_input.{one}" for one in chosen))
    function = chosen[0].partition("=")[2]
    assert own_process.add(context.directory, own_process.ProcessEnded("explorer", function, "ended by signal SIGKILL"))
    made = []
    for _ in range(2):  # as after a resume
        step(publish_model(context, 0))
        made.append(rows_of_step(context))
    assert made[1] == near(made[0])
    found = {row["task_id"]: (row["status"], row["reason"]) for row in made[0]}
    assert (found["t0"], found["t3"]) == (("ok", None), (status, reason))


def test_the_code_of_a_users_workflow_is_an_activity(stage, monkeypatch):
    """Two attempts at each of two tasks, each entered before and after its reply."""
    context, entered = stage("buffer.explorer_input.default_workflow_type=tests.stages.test_explore:with_examples"), []
    monkeypatch.setattr(context.activity, "calling", lambda name: entered.append(name) or nullcontext())
    step(publish_model(context, 0))
    assert Counter(entered)["workflow tests.stages.test_explore:with_examples"] == 8


def test_the_policy_is_asked_to_judge_its_own_responses(stage):
    """Random weights make no judgement: the reason says that the engine was asked, three times."""
    context = stage("buffer.explorer_input.default_reward_fn_type=judge_reward", "explorer.max_failed_ratio=1.0",
                    "buffer.explorer_input.taskset.reward_fn_args={rubric: [{name: right, question: '?'}], "
                    "max_tokens: 3}", "model.max_model_len=2000")
    step(publish_model(context, 0))
    found = tables.read(tables.step_file(context.directory, "experience", 1), records.Experience).to_pylist()
    reasons = {r["reason"] for r in found if r["task_id"] == "t0"}
    assert all("answered 3 times" in one for one in reasons)


def shown(response, answer):
    return {"length": float(len(response)), "task": 10.0}


def test_a_second_reward_watches_attempts_and_changes_no_row(stage):
    """The good task twice; the other two have no response, or no truth for the reward function that is trained by."""
    def made(*overrides):
        context = stage(*overrides)
        rollout = step(publish_model(context, 0))
        rows = tables.read(tables.step_file(context.directory, "experience", 1), records.Experience).to_pylist()
        return rollout.watch_reward, [row for row in rows if row["status"] == "ok"]

    watch = "explorer.watch.default_reward_fn_type=tests.stages.test_explore:shown"
    (nothing, plain), (mean, watched) = made(), made(watch, "explorer.watch.share=1")
    assert (nothing, {row["watch_reward"] for row in plain}) == (None, {None})
    seen = [row["watch_reward"] for row in watched]
    assert seen == [10.0 + len(row["response"]) for row in watched]
    assert (len(seen), mean) == (2, sum(seen) / 2)
    assert [row["reward_components"] for row in watched] == [row["reward_components"] for row in plain]


def in_turns(prompt, task):
    """A workflow of two turns for one task, the second with a prompt of its own; of one for the others."""
    reply = yield prompt
    first = Trajectory(prompt, reply.tokens, reply.logprobs, [1] * len(reply.tokens), "stop", "start", 0.25)
    if task.messages[-1]["content"] != "1 2 = 3":
        return first
    again = yield [50, 51]
    return [first, Trajectory([50, 51], again.tokens, again.logprobs, [1] * len(again.tokens), "length")]


def test_every_turn_of_an_attempt_is_a_row_of_its_slot(stage):
    """Task t0 twice in two turns, t2 too long, t3 twice in one row whose reward fails: 2 x 2 + 2 + 2 rows."""
    context = stage("buffer.explorer_input.default_workflow_type=tests.stages.test_explore:in_turns",
                    "explorer.max_failed_ratio=0.34")  # 2 of 6 attempts fail: 0.334; 2 of 8 rows would be 0.25
    explorer = publish_model(context, 0)
    rollout = step(explorer)
    found = tables.read(tables.step_file(context.directory, "experience", 1), records.Experience).to_pylist()
    turns = [r for r in found if r["task_id"] == "t0"]
    assert (rollout.rows, rollout.attempts, rollout.failed_rows) == (8, 6, 4)
    assert sorted({r["slot"] for r in found}) == list(range(6))
    assert [(r["run_index"], r["turn"]) for r in turns] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    ends = [r["experience_id"].rsplit("/", 2)[1:] for r in turns]
    assert ends == [["0", "0"], ["0", "1"], ["1", "0"], ["1", "1"]]
    assert [r["state_hash"] for r in turns] == [files.hash_text("start"), None] * 2
    assert [r["step_reward"] for r in turns] == [0.25, None] * 2
    assert [r["prompt_tokens"] == [50, 51] for r in turns] == [False, True] * 2
    assert turns[1]["prompt"] == explorer.tokenizer.decode([50, 51])
    assert turns[1]["prompt_hash"] == prompt_hash([50, 51])
    assert len({(r["reward"], r["seed"]) for r in turns[:2]}) == 1  # they are the attempt's
    assert [r["finish_reason"] for r in turns] == ["stop", "length"] * 2
    assert {(r["turn"], r["step_reward"], r["status"]) for r in found if r["task_id"] == "t3"} == {
        (0, 0.25, "reward_failed")}


async def best_of_two(prompt, model):
    """An agent that returns the longer one of two replies, as one row."""
    replies = [await model(prompt), await model([50, *prompt])]
    best = max(replies, key=lambda reply: len(reply.tokens))
    return Trajectory(prompt, best.tokens, best.logprobs, [1] * len(best.tokens), best.finish_reason)


def test_the_calls_of_an_agent_are_a_table_and_go_with_their_step(stage):
    """Two attempts at each of t0 and t3, two calls in each; t2 is too long to be asked."""
    context = stage("buffer.explorer_input.default_workflow_type=tests.stages.test_explore:best_of_two",
                    "explorer.max_failed_ratio=1", "explorer.max_timeout=60")
    explorer = publish_model(context, 0)
    step(explorer)
    path = tables.step_file(context.directory, "calls", 1)
    calls = tables.read(path, records.Call).to_pylist()
    rows = tables.read(tables.step_file(context.directory, "experience", 1), records.Experience).to_pylist()
    attempts = {r["experience_id"]: r for r in rows if r["status"] != "prompt_too_long"}
    assert [(c["attempt"], c["position"]) for c in calls] == [(name, i) for name in attempts for i in (0, 1)]
    for call in calls:
        row = attempts[call["attempt"]]
        assert (call["slot"], call["weights_version"], call["step"]) == (row["slot"], row["weights_version"], 1)
        assert (call["prompt_hash"] == row["prompt_hash"]) == (call["position"] == 0)
        assert len(call["tokens"]) == len(call["logprobs"]) > 0
    assert {tuple(c["tokens"]) for c in calls} >= {tuple(r["response_tokens"]) for r in attempts.values()}
    with tables.connect([("run", context.directory)]) as session:
        assert session.execute("SELECT count(*) FROM calls").fetchone() == (len(calls),)
    rewind_explorer(context.directory, print)
    assert path.exists()
    tables.step_file(context.directory, "rollouts", 1).unlink()
    rewind_explorer(context.directory, print)
    assert not path.exists()


@pytest.mark.parametrize("bounds", [(), ("model.top_p=0.9", "model.top_k=5")])
def test_a_killed_step_goes_on_from_its_journal(stage, bounds):
    """Four attempts at two tasks, two calls each: three replies are recorded when the engine fails, with what their
    tokens were sampled among."""
    context = stage(*bounds, "buffer.explorer_input.default_workflow_type=tests.stages.test_explore:best_of_two",
                    "explorer.max_failed_ratio=1", "explorer.max_timeout=60")
    explorer, journal = publish_model(context, 0), context.directory / "step=1.journal"
    step(explorer)
    expected = rows_of_step(context)
    assert not journal.exists()
    assert bool(bounds) == any(row["kept_tokens"] for row in expected)
    for name in ("rollouts", "experience", "calls"):
        tables.step_file(context.directory, name, 1).unlink()
    answers = explorer.engine.answer
    explorer.engine.batch, explorer.engine.answer = 1, failing_after(3, answers)
    with pytest.raises(MemoryError):
        explorer.step(1)
    assert journal.exists()
    again, asked = publish_model(context, 0), []  # weights of a complete step are deleted
    answer = again.engine.answer
    again.engine.answer = lambda requests: asked.extend(requests) or answer(requests)
    step(again)
    assert rows_of_step(context) == near(expected)
    assert len(asked) == 8 - 3
    assert not journal.exists()


def failing_after(number, answer):
    left = iter(range(number))

    def answers(requests):
        if next(left, None) is None:
            raise MemoryError("killed")
        return answer(requests)

    return answers


def rows_of_step(context):
    found = tables.read(tables.step_file(context.directory, "experience", 1), records.Experience).to_pylist()
    return [{**row, "unix_seconds": 0} for row in found]


def near(rows):
    """Rows to compare others with that were computed in other batches: their log-probs are rounded otherwise."""
    return [row | {"rollout_logprobs": pytest.approx(row["rollout_logprobs"], abs=1e-4)} for row in rows]


def test_with_all_steps_there_no_engine_is_opened(stage, monkeypatch):
    """Colocated, it would wait for weights that nobody publishes any more."""
    context = stage("mode=colocate")
    for number in range(1, 5):
        tables.write(tables.step_file(context.directory, "rollouts", number), records.Rollout,
                     [row(records.Rollout, step=number)])
    opened = []
    monkeypatch.setattr("ouroboros.stages.explore.open_engine", lambda *arguments, **more: opened.append(arguments))
    explore(context)
    assert opened == []


def test_colocated_the_engine_starts_when_the_trainer_of_this_life_has_its_memory(stage):
    context = stage("mode=colocate")
    context.config.synchronizer.sync_timeout = 0.01
    publish_model(stage(), 0)  # of an earlier life
    with refuses(StageError, "trainer"):
        open_explorer(context)
    files.write_json(context.directory / "total.json", {"total_steps": 4, "overlap": False})
    open_explorer(context).engine.close()


def test_a_step_writes_every_row_with_its_provenance(stage):
    context = stage()
    explorer = publish_model(context, 0)
    weights = files.hash_file(versions.version_directory(context.directory, 0) / checkpoints.WEIGHTS)
    rollout = step(explorer)
    found = tables.read(tables.step_file(context.directory, "experience", 1), records.Experience).to_pylist()
    assert [r["slot"] for r in found] == list(range(6))
    assert [r["run_index"] for r in found] == [0, 1] * 3
    assert [r["group_id"] for r in found] == ["1/0", "1/0", "1/1", "1/1", "1/2", "1/2"]
    assert len({r["experience_id"] for r in found}) == len({r["seed"] for r in found}) == 6
    statuses = {r["task_id"]: r["status"] for r in found}
    assert statuses == {"t0": "ok", "t2": "prompt_too_long", "t3": "reward_failed"}
    for r in found:
        assert (r["weights_version"], r["weights_hash"]) == (0, weights)
        assert (r["config_hash"], r["temperature"], r["top_k"]) == (context.identity, 1.0, -1)
        assert len(r["response_tokens"]) == len(r["rollout_logprobs"]) == len(r["action_mask"])
        assert (r["reason"] is None, r["reward"] is not None) == ((r["status"] == "ok"),) * 2
        assert (r["response_tokens"] == []) == (r["status"] == "prompt_too_long")
    written = tables.read(tables.step_file(context.directory, "rollouts", 1), records.Rollout).to_pylist()
    assert written == [row_of(rollout)]
    assert (rollout.rows, rollout.failed_rows) == (6, 4)
    assert rollout.tokens == sum(len(r["response_tokens"]) for r in found)
    assert rollout.probe_max_difference < 1e-5


def test_a_reward_model_scores_beside_a_rule_and_what_it_cannot_score_has_no_reward(stage, tmp_path):
    """t0 has 7 characters of question, t3 too: with at most 24 of response and <eos> they fit into 32 tokens."""
    context = stage("explorer.max_failed_ratio=1")
    source = context.config.buffer.explorer_input
    source.default_reward_fn_type = ["format_reward", "reward_model"]
    source.taskset.reward_fn_args = {"score": 0.25, "weight": 2.0}
    context.config.explorer.auxiliary_models = [element(
        AuxiliaryModel, {"model_path": str(classifier(tmp_path / "judge")), "max_model_len": 32})]
    step(publish_model(context, 0))
    found = tables.read(tables.step_file(context.directory, "experience", 1), records.Experience).to_pylist()
    scored = [r for r in found if r["status"] == "ok"]
    assert {r["task_id"] for r in scored} == {"t0", "t3"}
    model, prompts = Rewards(context.config).model(None), {t.task_id: turns_of(t.question, None) for t in TASKS}
    expected = model.score([prompts[r["task_id"]] for r in scored], [r["response"] for r in scored])
    for r, score in zip(scored, expected, strict=True):
        assert dict(r["reward_components"]) == pytest.approx({"format_score": -0.25, "reward_model": 2 * score})
        assert r["reward"] == pytest.approx(2 * score - 0.25)
        assert r["accuracy"] is None


def row_of(record):
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def test_a_repeated_step_gives_the_same_rows(stage):
    context = stage()

    def made():
        step(publish_model(context, 0))
        table = tables.read(tables.step_file(context.directory, "experience", 1), records.Experience)
        return table.drop(["unix_seconds"]).to_pylist()

    assert made() == made()


def test_too_many_failures_keep_the_rows_and_stop_before_the_step_counts(stage):
    context = stage("explorer.max_failed_ratio=0.1")
    with pytest.raises(StageError) as caught:  # of whichever task is first
        step(publish_model(context, 0))
    assert "2 of 6" in str(caught.value)
    assert tables.steps_present(context.directory, "experience") == [1]
    assert tables.steps_present(context.directory, "rollouts") == []


def test_exploring_goes_on_where_it_stopped_and_forgets_weights_that_are_no_longer_needed(stage):
    """Four trainer steps of six rows, on-policy: explorer step s needs version s - 1. Steps 1 and 2 are there."""
    context = stage()
    publish_model(context, 0, 1, 2, 3)
    for done in (1, 2):
        tables.write(tables.step_file(context.directory, "experience", done), records.Experience, [])
        tables.write(tables.step_file(context.directory, "rollouts", done), records.Rollout, [])
    explore(context)
    gc.unfreeze()
    assert tables.steps_present(context.directory, "rollouts") == [1, 2, 3, 4]
    made = tables.read(tables.step_file(context.directory, "experience", 4), records.Experience)
    assert set(made["weights_version"].to_pylist()) == {3}
    assert [d.name for d in (context.directory / "weights").iterdir()] == ["version=000003"]


def test_alone_every_step_is_made_by_the_model_that_the_stage_begins_with(stage):
    """Nobody publishes weights, nothing is proved, and 4 steps are 4 explorer steps."""
    context = stage("mode=explore")
    del context.config.buffer.explorer_input.eval_tasksets  # a stage that only explores is not handed them
    context.config.explorer.eval_interval = 1
    explore(context)
    gc.unfreeze()
    assert tables.steps_present(context.directory, "rollouts") == [1, 2, 3, 4]
    assert files.read_json(context.directory / "total.json") == {"total_steps": 4}
    made = tables.read(tables.step_file(context.directory, "experience", 4), records.Experience)
    weights = files.hash_file(context.inputs["model"] / checkpoints.WEIGHTS)
    assert set(made["weights_version"].to_pylist()) == {0}
    assert set(made["weights_hash"].to_pylist()) == {weights}
    rollout = tables.read(tables.step_file(context.directory, "rollouts", 4), records.Rollout).to_pylist()[0]
    assert (rollout["probe_max_difference"], rollout["sync_seconds"]) == (None, 0.0)


def test_weights_are_kept_until_the_files_of_the_step_they_made_are_there(stage, monkeypatch):
    """Killed between the two, the step would be made again, and its weights are those of a finished trainer step."""
    context, seen = stage(), []
    explorer = publish_model(context, 0, 1)
    write = tables.write

    def look(path, *arguments):
        seen.append(versions.version_directory(context.directory, 0).exists())
        write(path, *arguments)

    monkeypatch.setattr(tables, "write", look)
    step(explorer)
    assert seen == [True, True]
    assert not versions.version_directory(context.directory, 0).exists()


def test_attempts_have_a_limit_by_the_time_of_others_from_the_second_step_on(stage):
    """As many seconds as a million attempts take: none fails."""
    limited = stage("explorer.dynamic_timeout.enable=true", "explorer.dynamic_timeout.ratio=1000000")
    explorer, limits = publish_model(limited, 0, 1), []
    for number in (1, 2):
        explorer.step(number)
        limits.append(explorer.groups.pace.limit)
    assert limits[0] is None
    assert limits[1] > 0
    assert publish_model(stage(), 0).groups.pace is None


def test_an_error_in_writing_a_step_is_raised_while_the_next_weights_are_waited_for(stage):
    """Else the explorer would wait for a trainer that waits for the step."""
    context = stage("explorer.max_failed_ratio=0")
    explorer = publish_model(context, 0)
    explorer.step(1)
    with refuses(StageError, "explorer.max_failed_ratio"):
        explorer.step(2)


def test_the_settings_that_the_explorer_reads_are_those_that_its_stage_is_handed(tmp_path, stage):
    """The plan leaves out of stage.json what is not in the identity: nothing the explorer asks for may be missing."""
    plan = make_plan(overridden(f"checkpoint_root_dir={tmp_path}", *TINY, *SMALL))
    context = stage()
    context.config = next(s for s in plan.stages if s.name == "rft").config
    step(publish_model(context, 0))
    assert tables.steps_present(context.directory, "rollouts") == [1]
