"""Pages of rollouts, a row with its tokens, the search: what `ouro view` shows of the tables."""

import pytest

from ouroboros.commands.web import counted, details, distributions, export, rollouts
from ouroboros.commands.web.counted import by_step
from ouroboros.commands.web.rollouts import Address, Wanted
from ouroboros.pipeline.results import view
from ouroboros.pipeline.store import records, tables
from ouroboros.pipeline.store.errors import QueryError
from ouroboros.pipeline.store.pictures import Kept
from tests.factories import row
from tests.fake_run import FakeRun
from tests.pictures import png

ALL = Wanted()


@pytest.fixture
def stage(tmp_path):
    """Three steps of four rows; the rewards of step s, place p are 10 s + p; the last row of each step is trained in
    the optimizer step after it."""
    for step in (1, 2, 3):
        tables.write(tables.step_file(tmp_path, "experience", step), records.Experience, [
            row(records.Experience, experience_id=f"rft-1/{step}/{place // 2}/{place % 2}", step=step, slot=place,
                group_id=f"{step}/{place // 2}", run_index=place % 2, taskset="a" if place < 2 else "b",
                status="ok" if place else "late", reward=10.0 * step + place, accuracy=None if place == 1 else 1.0,
                prompt="What is 1+1?", response="The Answer is 2" if (step, place) == (3, 2) else "x" * 300)
            for place in range(4)])
        tables.write(tables.step_file(tmp_path, "trained", step + 1), records.Trained, [
            row(records.Trained, experience_id=f"rft-1/{step}/1/1", train_step=step + 1)])
    return tmp_path


def shown(found: dict) -> list[str]:
    return [one["row"] for one in found["rows"]]


def test_pages_follow_each_other_without_a_gap_also_the_latest_step_first(stage):
    first = rollouts.page(stage, "experience", ALL, count=5)
    assert shown(first) == ["1:0", "1:1", "1:2", "1:3", "2:0"]
    second = rollouts.page(stage, "experience", ALL, Address.read(first["next"]), count=5)
    third = rollouts.page(stage, "experience", ALL, Address.read(second["next"]), count=5)
    assert shown(second) == ["2:1", "2:2", "2:3", "3:0", "3:1"]
    assert (shown(third), third["next"]) == (["3:2", "3:3"], None)
    first = rollouts.page(stage, "experience", ALL, latest=True, count=6)
    assert shown(first) == ["3:0", "3:1", "3:2", "3:3", "2:0", "2:1"]
    assert shown(rollouts.page(stage, "experience", ALL, Address.read(first["next"]), True, 3)) == ["2:2", "2:3", "1:0"]


@pytest.mark.parametrize(("given", "found"), [
    ({"steps": "2"}, ["2:0", "2:1", "2:2", "2:3"]), ({"steps": "2-", "group_id": "3/1"}, ["3:2", "3:3"]),
    ({"steps": "1 - 2", "run_index": "1", "taskset": "a"}, ["1:1", "2:1"]),
    ({"least_reward": "22", "most_reward": "30.5"}, ["2:2", "2:3", "3:0"]),
    ({"reward": "23"}, ["2:3"]), ({"accuracy": "null"}, ["1:1", "2:1", "3:1"]),
    ({"status": "late"}, ["1:0", "2:0", "3:0"]), ({"experience_id": "rft-1/2/0/1"}, ["2:1"]),
    ({"taskset": "a' OR 1=1 --"}, [])])
def test_rows_by_their_columns(stage, given, found):
    assert shown(rollouts.page(stage, "experience", Wanted.read("experience", given))) == found


@pytest.mark.parametrize("given", [{"reword": "1"}, {"steps": "a"}, {"steps": "1-b"}, {"least_reward": "much"},
                                   {"steps": "3-1"}, {"reward": "much"}, {"run_index": "first"}])
def test_a_field_that_is_none(given):
    with pytest.raises(QueryError):
        Wanted.read("experience", given)


def test_a_page_without_rows_says_where_to_go_on(stage, monkeypatch):
    monkeypatch.setattr(rollouts, "SECONDS", -1.0)
    found = rollouts.page(stage, "experience", Wanted(equal={"taskset": "absent"}))
    assert found == {"rows": [], "next": "2:0"}


def test_long_texts_are_cut_and_their_length_is_kept(stage):
    (one,) = rollouts.page(stage, "experience", Wanted(equal={"reward": "10"}))["rows"]
    assert (len(one["response"]), one["letters"]) == (rollouts.PREVIEW, 300)
    assert "response_tokens" not in one


def test_of_a_long_prompt_a_page_has_the_end_which_asks(tmp_path):
    tables.write(tables.step_file(tmp_path, "experience", 1), records.Experience, [
        row(records.Experience, prompt="system " * 100 + "What is 1+1?")])
    assert rollouts.page(tmp_path, "experience", ALL)["rows"][0]["prompt"].endswith("system What is 1+1?")


def test_a_task_over_steps(stage):
    found = counted.of_task(stage, "experience", "")
    assert found == {"x": [1, 2, 3], "reward": [11.5, 21.5, 31.5], "solved": [1.0, 1.0, 1.0]}
    tables.write(tables.step_file(stage, "experience", 4), records.Experience, [
        row(records.Experience, step=4, task_id="", reward=2.0, accuracy=None)])
    assert [values[3] for values in counted.of_task(stage, "experience", "").values()] == [4, 2.0, None]
    assert counted.of_task(stage, "experience", "absent") == {"x": [], "reward": [], "solved": []}


def test_distributions_of_a_step_and_of_steps_together(stage):
    """The rewards of step 1 are 10 to 13, of step 2 are 20 to 23."""
    first, second = (by_step(stage, "experience", distributions.count)[step]["reward"] for step in (1, 2))
    assert (first.rows, first.mean, first.counts) == (4, 11.5, {10.0: 1, 11.0: 1, 12.0: 1, 13.0: 1})
    assert first.deviation**2 == pytest.approx(1.25)
    both = distributions.merged([first, second])
    assert (both.rows, both.mean, both.deviation**2) == (8, 16.5, pytest.approx(1.25 + 25))


def test_distributions_count_only_steps_that_are_new(stage, monkeypatch):
    by_step(stage, "experience", distributions.count)
    asked = []
    monkeypatch.setattr(distributions.rollouts, "ask", lambda paths, *_: asked.extend(paths) or [])
    tables.write(new := tables.step_file(stage, "experience", 4), records.Experience, [row(records.Experience)])
    assert [*by_step(stage, "experience", distributions.count)] == [1, 2, 3, 4]
    assert asked == [new]


def test_the_shares_of_a_distribution_are_of_bins_between_its_ends(tmp_path):
    """Rewards 0, 0, 0, 1 and no reward; components of the same."""
    tables.write(tables.step_file(tmp_path, "experience", 1), records.Experience, [
        row(records.Experience, step=1, reward=reward, response_tokens=[5] * 3,
            reward_components={} if reward is None else {"format": 1 - reward})
        for reward in (0.0, 0.0, 0.0, 1.0, None)])
    found = {one["name"]: one for one in distributions._of_table(by_step(tmp_path, "experience", distributions.count))}
    assert (found["reward"]["y"], found["reward"]["shares"]) == ([0.25], {"low": 0, "high": 1, "of": [[0.75, 0.25]]})
    assert found["reward component format"]["y"] == [0.75]
    assert found["response length, tokens"]["y"] == [3.0]


def test_a_row_and_the_optimizer_step_that_trained_it(stage):
    at = rollouts.address_of(stage, "rft-1/2/1/1")
    assert str(at) == "2:3"
    assert rollouts.row(stage, "experience", at)["reward"] == 23.0
    (trained,) = rollouts.trained_on(stage, "rft-1/2/1/1", 2, replayed=False)
    assert trained["train_step"] == 3
    assert rollouts.trained_on(stage, "rft-1/2/0/0", 2, replayed=False) == []
    wanted = Wanted.read("experience", {"taskset": "b"}).trained_by(rollouts.trained_in(stage, 3))
    assert shown(rollouts.page(stage, "experience", wanted)) == ["2:3"]


@pytest.mark.parametrize("ask", [
    lambda stage: rollouts.row(stage, "experience", Address(2, 4)),
    lambda stage: rollouts.row(stage, "experience", Address(9, 0)),
    lambda stage: rollouts.address_of(stage, "rft-1/2/1/7"), lambda stage: rollouts.address_of(stage, "nonsense"),
    lambda stage: rollouts.trained_in(stage, 1), lambda stage: Address.read("2")])
def test_what_is_not_there(stage, ask):
    with pytest.raises(QueryError):
        ask(stage)


def test_the_search_reads_texts_whatever_the_case_and_says_how_far_it_is(stage, monkeypatch):
    monkeypatch.setattr(rollouts, "SEARCHED", 2)
    found = list(rollouts.search(stage, "experience", "answer IS", ALL))
    assert [one.get("row", one) if "row" not in one else one["row"]["row"] for one in found] == [
        {"steps": 2, "of": 3}, "3:2", {"steps": 3, "of": 3}]
    monkeypatch.setattr(rollouts, "HITS", 5)
    found = list(rollouts.search(stage, "experience", "what", ALL))
    assert (sum("row" in one for one in found), found[-1]) == (5, {"full": True})


def test_a_group_beside_a_row_and_the_columns_of_its_task(tmp_path):
    run = FakeRun(tmp_path).whole()
    shown_run = view.open_view(run.view())
    rft = next(one for one in shown_run.stages if one.name == "rft")
    found = details.of_row(shown_run, rft, "experience", Address(2, 3))
    assert [one["run_index"] for one in found["group"]] == [0, 0]  # made-up rows have no numbers
    assert [one["row"] for one in found["group"]] == ["2:2", "2:3"]
    assert found["task"]["question"] == "make 10 from 1 9 4"
    assert [one["train_step"] for one in found["trained"]] == [2]
    assert found["tokens"][0] == {"id": 5, "mask": 1, "logprob": -0.5, "version": None,
                                  "train_logprob": pytest.approx(-0.500002), "entropy": None, "advantage": 0.0,
                                  "mismatch": pytest.approx(2e-6, rel=0.1)}


def test_the_images_of_a_prompt_are_shown_small_also_in_an_evaluation(tmp_path):
    run = FakeRun(tmp_path).whole().images(png(), png(800, 20))
    shown_run = view.open_view(run.view())
    for name, table, at in (("rft", "experience", Address(2, 0)), ("evaluate_rft", "samples", Address(4, 0))):
        stage = next(one for one in shown_run.stages if one.name == name)
        found = details.of_row(shown_run, stage, table, at)
        assert [(one["number"], one["width"], one["height"]) for one in found["images"]] == [(1, 8, 8), (2, 800, 20)]
        assert found["image_count"] == 2
    assert details.of_row(shown_run, stage, table, Address(4, 1))["image_count"] == 0
    kept, file = Kept(tmp_path / ".shown"), tables.step_file(stage.directory, "samples", 4)
    drawn = kept.keep(png(16, 12))  # by a tool of the second row's agent
    kept.write(stage.directory, 4, [drawn], "sample_shown")
    rows = [records.Sample(**one) for one in tables.read(file, records.Sample).to_pylist()]
    rows[1].pictures = [drawn]
    tables.write(file, records.Sample, rows)
    found = details.of_row(shown_run, stage, "samples", Address(4, 1))
    assert [(one["hash"], one["width"], one["height"]) for one in found["images"]] == [(drawn, 16, 12)]


def test_what_training_said_belongs_to_the_policys_own_tokens():
    """Of the tokens 7 8 9 the second is a tool's: the lists of `trained` have two entries."""
    given = {"response_tokens": [7, 8, 9], "action_mask": [1, 0, 1], "rollout_logprobs": [-1.0, 0.0, -2.0],
             "weights_versions": [3, None, 4]}
    trained = {"train_logprobs": [-1.5, -1.75], "entropies": [0.5, 0.25], "advantages": [0.5, -0.5], "advantage": 0.0}
    assert details.signals(given, trained) == [
        {"id": 7, "mask": 1, "logprob": -1.0, "version": 3, "train_logprob": -1.5, "entropy": 0.5, "advantage": 0.5,
         "mismatch": 0.5}, {"id": 8, "mask": 0, "logprob": 0.0, "version": None},
        {"id": 9, "mask": 1, "logprob": -2.0, "version": 4, "train_logprob": -1.75, "entropy": 0.25, "advantage": -0.5,
         "mismatch": -0.25}]


def test_a_row_that_was_left_out_of_the_loss_has_no_numbers_of_training():
    given = {"response_tokens": [7, 8], "action_mask": [1, 1], "rollout_logprobs": [-1.0, -2.0]}
    found = details.signals(given, {"train_logprobs": [], "advantages": None, "advantage": 1.0})
    assert ["train_logprob" in one for one in found] == [False, False]


class Bytes:
    """A tokenizer whose tokens are bytes: a letter may have several."""

    def decode(self, ids, skip_special_tokens):
        return bytes(ids).decode("utf-8", errors="replace")


@pytest.mark.parametrize("text", ["plain", "a é 漢 🙂b", "", "🙂🙂"])
def test_pieces_of_letters_of_several_tokens(text):
    made = details.pieces(Bytes(), list(text.encode()))
    assert "".join(made) == text
    assert len(made) == len(text.encode())
    assert all(piece == "" or len(piece) == 1 for piece in made)


def test_a_sample_has_every_outcome(stage):
    """Of 12 rows 3 are late, 6 solved, 3 without an accuracy; two of each outcome are the first and the last."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "EACH", 2)
        found = export.sample(stage, "experience")
    assert [one["row"] for one in found] == ["1:0", "1:1", "1:2", "3:0", "3:1", "3:3"]
