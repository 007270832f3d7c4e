"""Explorer steps whose answers go on under the weights of the next step: rows, provenance, and what a kill leaves.

Three tasks twice a step, one of them too long; the trainer is a step behind: steps 1 and 2 use version 0, step 3 uses
version 1, which comes during step 2.
"""

from itertools import count

import pytest

from ouroboros.pipeline.settings.explorer import depends_on_time
from ouroboros.pipeline.settings.kinds import KINDS
from ouroboros.pipeline.store import checkpoints, files, records, tables, versions
from ouroboros.stages.explorer import weights
from ouroboros.stages.learner.engine import policy
from ouroboros.workflows.engines.open import open_engine
from tests.configs import TINY, overridden, problems_of
from tests.stages.conftest import open_explorer
from tests.workflows.test_continued import Stepwise

ON = ("synchronizer.sync_offset=1", "explorer.partial_rollout=true", "explorer.max_failed_ratio=1",
      "model.max_response_tokens=5")
VLLM = "explorer.rollout_model.engine_type=vllm"
AGENT = "buffer.explorer_input.default_workflow_type=tests.agents:chat"  # three replies, the last one rewarded


class Trained(Stepwise):
    """Version `publishes[n]` is published at step n of the engine, and `dies` is a step that ends in an error."""

    version, number = "stepwise", 1

    def __init__(self, stage, publishes=(), dies=0):
        super().__init__()
        self.stage, self.publishes, self.dies, self.loaded = stage, dict(publishes), dies, []

    def advance(self, seconds=0.2):
        if (version := self.publishes.get(self.steps + 1)) is not None:
            publish(self.stage, version)
        if self.steps + 1 == self.dies:
            raise MemoryError("killed")
        return super().advance(seconds)

    def load_weights(self, directory):
        assert not self.requests, "requests are in progress"
        self.weights = int(directory.name.removeprefix("version="))
        self.loaded.append(self.weights)

    def probe(self, sequence):
        return [[-1.0] * (len(sequence) - 1)]

    def close(self):
        """No process to end."""


def publish(stage, version, text=None):
    def export(directory):
        (directory / checkpoints.WEIGHTS).write_text(text or f"weights {version}")

    versions.publish(stage, version, export, {"tokens": [1, 2, 3], "logprobs": [-1.0, -1.25]})


@pytest.fixture
def explorer(stage, monkeypatch):
    """explorer("key=value", ..., publishes={step of the engine: version}): version 0 is there."""
    monkeypatch.setattr(weights, "LOOK_SECONDS", -1.0)

    def make(*overrides, **more):
        context = stage(*ON, "synchronizer.probe_tolerance=0.5", *overrides)
        engine = Trained(context.directory, **more)
        monkeypatch.setattr("ouroboros.stages.explore.open_engine", lambda *arguments, **named: engine)
        if not versions.version_directory(context.directory, 0).exists():
            publish(context.directory, 0)
        return open_explorer(context)

    return make


def made(explorer, *steps):
    """The rows and the record of the last of these explorer steps."""
    for number in steps:
        explorer.step(number)
        explorer.writer.finish()
    return [tables.read(tables.step_file(explorer.context.directory, name, steps[-1]), record).to_pylist()
            for name, record in (("experience", records.Experience), ("rollouts", records.Rollout))]


def test_answers_go_on_under_the_weights_of_the_next_step(explorer):
    """Step 1 takes five steps of the engine; version 1 is published at the third of step 2, used from the fourth."""
    one = explorer(publishes={8: 1})
    rows, (rollout,) = made(one, 1, 2)
    answered = [r for r in rows if r["status"] != "prompt_too_long"]
    assert len(answered) == 4
    for row in answered:
        prompt = len(row["prompt_tokens"])
        assert row["weights_versions"] == [0, 0, 0, 1, 1]
        assert row["response_tokens"] == [prompt, prompt + 1, prompt + 2, 100 + prompt + 3, 100 + prompt + 4]
        assert row["rollout_logprobs"] == [-0.5] * 3 + [-1.5] * 2
        assert (row["weights_version"], row["weights_hash"]) == (0, files.hash_text("weights 0"))
    assert [(r["weights_versions"], r["weights_version"]) for r in rows if r["status"] == "prompt_too_long"] == [
        (None, 0)] * 2
    assert (rollout["weights_version"], rollout["newest_version"]) == (0, 1)
    assert rollout["probe_max_difference"] is None  # version 0 was loaded for step 1
    assert rollout["sync_seconds"] > 0
    rows, (rollout,) = made(one, 3)
    assert one.engine.loaded == [0, 1]
    assert {tuple(r["weights_versions"]) for r in rows if r["response_tokens"]} == {(1,) * 5}
    assert (rollout["weights_version"], rollout["newest_version"]) == (1, 1)
    assert (rollout["probe_max_difference"], rollout["sync_seconds"]) == (0.25, 0.0)


def test_weights_of_later_steps_wait(explorer):
    """Step 1 goes before a step with version 0, and step 2 before one with version 1, whatever is published."""
    one = explorer(publishes={2: 1, 7: 2})
    _, (rollout,) = made(one, 1)
    assert (rollout["weights_version"], rollout["newest_version"]) == (0, 0)
    _, (rollout,) = made(one, 2)
    assert one.engine.loaded == [0, 1]


def test_where_the_trainer_drives_steps_begin_and_go_on_with_the_newest(explorer):
    """Versions 1 and 2 come during step 1, which goes on with both; version 5 comes during step 2."""
    one = explorer("synchronizer.sync_style=trainer_driven", publishes={2: 1, 4: 2, 7: 5})
    rows, (rollout,) = made(one, 1)
    assert {tuple(r["weights_versions"]) for r in rows if r["response_tokens"]} == {(0, 0, 1, 1, 2)}
    assert (rollout["weights_version"], rollout["newest_version"]) == (0, 2)
    _, (rollout,) = made(one, 2)
    assert (rollout["weights_version"], rollout["newest_version"]) == (2, 5)
    again = explorer("synchronizer.sync_style=trainer_driven", "explorer.partial_rollout=false")
    rows, (rollout,) = made(again, 3)
    assert (rollout["weights_version"], again.engine.loaded) == (5, [5])
    assert {(r["weights_version"], r["weights_hash"]) for r in rows} == {(5, files.hash_text("weights 5"))}


def test_the_last_step_has_no_next_one(explorer):
    one = explorer("buffer.total_steps=2", publishes={7: 1})
    _, (rollout,) = made(one, 1, 2)
    assert (rollout["newest_version"], one.engine.loaded) == (0, [0])


def test_an_answer_that_begins_under_the_newer_weights_is_theirs(explorer):
    """One attempt at a time: the first of step 2 has tokens of both, the others of version 1."""
    rows, _ = made(explorer("explorer.runner_concurrency=1", publishes={24: 1}), 1, 2)
    found = [(r["weights_versions"], r["weights_version"], r["weights_hash"]) for r in rows if r["response_tokens"]]
    zero, one = files.hash_text("weights 0"), files.hash_text("weights 1")
    assert found == [([0, 0, 0, 0, 1], 0, zero)] + [([1] * 5, 1, one)] * 3


def test_a_tokens_weights_are_found_by_sql(explorer):
    """As docs/asynchronous.md says: three tokens of each answer by version 0, two by version 1."""
    one = explorer(publishes={8: 1})
    made(one, 1, 2, 3)
    with tables.connect([("run", one.context.directory)]) as session:
        found = session.execute("""
            WITH tokens AS (SELECT stage, step, unnest(weights_versions) AS version FROM experience),
                 made AS (SELECT DISTINCT stage, weights_version AS version, weights_hash FROM experience)
            SELECT step, version, weights_hash, count(*) FROM tokens JOIN made USING (stage, version)
            GROUP BY ALL ORDER BY step, version""").fetchall()
    zero, newer = files.hash_text("weights 0"), files.hash_text("weights 1")
    assert found == [(1, 0, zero, 20), (2, 0, zero, 12), (2, 1, newer, 8), (3, 1, newer, 20)]


def test_without_it_nothing_is_interrupted_and_the_columns_are_null(explorer):
    one = explorer("explorer.partial_rollout=false", publishes={8: 1})
    rows, (rollout,) = made(one, 1, 2)
    assert {len(r["response_tokens"]) for r in rows} == {0, 5}
    assert all(r["weights_versions"] is None and r["weights_version"] == 0 for r in rows)
    assert (rollout["newest_version"], one.engine.loaded) == (None, [0])


def rows_of(found):
    return [(r["experience_id"], r["response_tokens"], r["weights_versions"], r["weights_hash"]) for r in found
            if r["response_tokens"]]


def test_calls_have_their_versions_too(explorer):
    one = explorer(AGENT, "explorer.max_timeout=60", publishes={24: 1})
    rows, _ = made(one, 1, 2)
    calls = tables.read(tables.step_file(one.context.directory, "calls", 2), records.Call).to_pylist()
    turns = {r["experience_id"]: r for r in rows if r["response_tokens"]}
    assert len(calls) == len(turns) == 12
    for call in calls:
        turn = turns[f"{call['attempt']}/{call['position']}"]
        assert (call["tokens"], call["weights_versions"]) == (turn["response_tokens"], turn["weights_versions"])
        assert call["weights_version"] == turn["weights_version"] == min(call["weights_versions"])
        assert call["tokens"] == [100 * version + len(turn["prompt_tokens"]) + place
                                  for place, version in enumerate(call["weights_versions"])]


@pytest.mark.parametrize("changed", [False, True])
def test_a_killed_step_goes_on_with_its_recorded_replies_if_the_weights_are_the_same(explorer, changed, caplog):
    """It was killed under version 1. A trainer that resumed publishes it again, perhaps another one."""
    first = explorer(AGENT, "explorer.max_timeout=60", publishes={1: 1}, dies=10**9)
    made(first, 1)
    first.engine.dies = first.engine.steps + 12  # each of the four attempts has two replies by then, or one has three
    with pytest.raises(MemoryError):
        first.step(2)
    journal = first.context.directory / "step=2.journal"
    recorded = journal.read_bytes()
    assert first.engine.loaded == [0, 1]
    if changed:
        files.remove_tree(versions.version_directory(first.context.directory, 1))
        publish(first.context.directory, 1, "other weights")
    again = explorer(AGENT, "explorer.max_timeout=60")
    rows, (rollout,) = made(again, 2)
    assert again.engine.loaded == [0, 1]
    assert (rollout["weights_version"], rollout["newest_version"]) == (0, 1)
    assert ("with other weights" in caplog.text) == changed
    asked = len(again.engine.asked)
    assert asked == 12 if changed else asked == 12 - recorded.count(b'"kind": "reply"')
    hash_ = files.hash_text("other weights" if changed else "weights 1")
    assert {(tuple(r["weights_versions"]), r["weights_hash"]) for r in rows if r["response_tokens"]} == {
        ((1,) * 5, hash_)}
    assert not journal.exists()


class Scorer:
    """Another engine, with versions of the tiny model: its weights divided by version + 1."""

    def __init__(self, model, place):
        self.engine, self.place = open_engine(model, overridden(*TINY), [1]), place
        self.first = {name: value.detach().clone() for name, value in self.engine.model.named_parameters()}

    def export(self, version, directory):
        policy.export({name: value / (version + 1) for name, value in self.first.items()}, self.engine.model, directory)

    def score(self, version, tokens):
        directory = self.place / f"scored-{version}"
        directory.mkdir(exist_ok=True)
        self.export(version, directory)
        self.engine.load_weights(directory)
        return self.engine.score([tokens])[0]

    def publish(self, stage, version):
        probe = {"tokens": [5, 6, 7], "logprobs": self.score(version, [5, 6, 7])}
        versions.publish(stage, version, lambda directory: self.export(version, directory), probe)


@pytest.mark.slow
def test_each_log_prob_is_of_the_weights_that_the_row_names_for_it(stage, tiny_model, tmp_path, monkeypatch):
    """vLLM, and version 1 at the fifth step of the engine: the tokens before and after, scored by another engine."""
    monkeypatch.setattr(weights, "LOOK_SECONDS", -1.0)
    context, scorer = stage(*ON, "model.max_response_tokens=24", VLLM), Scorer(tiny_model, tmp_path)
    scorer.publish(context.directory, 0)
    one = open_explorer(context)
    made(one, 1)
    advance, number = one.engine.advance, count(1)

    def advanced(*seconds):
        if next(number) == 5:
            scorer.publish(context.directory, 1)
        return advance(*seconds)

    one.engine.advance = advanced
    rows, (rollout,) = made(one, 2)
    assert (rollout["weights_version"], rollout["newest_version"]) == (0, 1)
    assert {version for row in rows for version in row["weights_versions"] or ()} == {0, 1}
    for row in rows:
        sampled, begin = row["weights_versions"] or [], len(row["prompt_tokens"])
        assert sampled == sorted(sampled)
        for version in set(sampled):
            known = scorer.score(version, row["prompt_tokens"] + row["response_tokens"])[begin - 1 :]
            chosen = [i for i, other in enumerate(sampled) if other == version]
            assert [row["rollout_logprobs"][i] for i in chosen] == pytest.approx([known[i] for i in chosen], abs=1e-4)
    one.engine.close()


PARTIAL = "explorer.partial_rollout=true"


@pytest.mark.parametrize("given", [
    (PARTIAL, "synchronizer.sync_offset=0"), (PARTIAL, "synchronizer.sync_offset=1", "mode=colocate"),
    (PARTIAL, "synchronizer.sync_offset=1", "mode=colocate", "trainer.overlap=false"),
    (PARTIAL, "synchronizer.sync_offset=1", "explorer.rollout_model.engine_type=transformers"),
    (PARTIAL, "synchronizer.sync_offset=1", "stages=[{stage_name: look, mode: explore, buffer: {total_steps: 2}}]")])
def test_where_no_newer_weights_can_come_it_is_refused(given):
    assert "explorer.partial_rollout" in {problem.key for problem in problems_of(*given)}


def test_it_goes_with_a_trainer_that_works_meanwhile_and_depends_on_time():
    given = (PARTIAL, "synchronizer.sync_offset=1")
    assert problems_of(*given) == problems_of(*given, "mode=colocate", "trainer.overlap=true") == []
    config = overridden(*given)
    assert [kind for kind in ("rft", "rollout", "train", "offline", "evaluate", "bench")
            if depends_on_time(KINDS[kind], config)] == ["rft"]
    assert depends_on_time(KINDS["rft"], config) == ["explorer.partial_rollout"]
    assert depends_on_time(KINDS["rft"], overridden()) == []
