"""Expected times by hand, from the steps of an earlier stage."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from ouroboros.pipeline.check import times
from ouroboros.pipeline.store import files
from tests.damage import flip
from tests.fake_run import FakeRun
from tests.golden.messages import wording
from tests.pipeline.check.test_workload import stage


@pytest.fixture(autouse=True)
def _fresh():
    times.pace.cache_clear()


@pytest.fixture
def planned(tmp_path):
    """A stage rft of a run whose earlier one, in the same store, has 4 steps of 8 rows, 9,000 tokens and 0.45 s."""
    made = FakeRun(tmp_path).whole()
    inputs = next(one["inputs"] for one in made.stages if one["name"] == "rft")
    return SimpleNamespace(name="rft", kind="rft", root=str(tmp_path), inputs=inputs, gpus=0,
                           directory=tmp_path / "store/rft-1")


def test_a_row_takes_what_it_took_before(planned):
    """50 steps of 512 rows are 25,600: 3,200 times 8."""
    config = stage("rft", buffer__total_steps=50)
    found = times.expected(planned, config)
    assert (found.seconds, found.tokens) == (pytest.approx(1440.0), pytest.approx(28_800_000))
    assert found.source.startswith("rft-")
    assert len(times.described(planned, config, found)) == len(times.described(planned, config, None)) == 1


@pytest.mark.parametrize("other", [{"kind": "offline"}, {"inputs": {"model": "/another/model"}}])
def test_another_kind_or_model_says_nothing(planned, other):
    assert times.expected(SimpleNamespace(**vars(planned) | other), stage("rft")) is None


def test_of_a_damaged_stage_nothing_is_expected_and_nothing_stops(planned, tmp_path):
    for path in tmp_path.glob("store/rft-*/steps/*.parquet"):
        flip(path)
    assert times.expected(planned, stage("rft")) is None


def test_the_model_of_a_stage_that_is_not_there_is_that_of_its_plan(planned):
    """The earlier one began with the model that the stage `model` makes; here a new warmup comes before."""
    model = next(one for one in Path(planned.root, "store").glob("model-*"))
    made = SimpleNamespace(directory=f"/elsewhere/{model.name}", inputs={})
    warmup = SimpleNamespace(directory="/elsewhere/sft-new", inputs={"model": made.directory})
    rft = SimpleNamespace(**vars(planned) | {"inputs": {"model": warmup.directory}})
    assert times.expected(rft, stage("rft", buffer__total_steps=50)) is None
    found = times.expected(rft, stage("rft", buffer__total_steps=50), None, [made, warmup, rft])
    assert found.seconds == pytest.approx(1440.0)


def test_a_probe_of_this_host_counts(planned):
    (place := times.probed(planned.root)).parent.mkdir()
    (Path(planned.root) / "store").rename(place.parent / "store")
    place.mkdir()
    (place.parent / "store").rename(place / "store")
    assert times.expected(planned, stage("rft", buffer__total_steps=50)).seconds == pytest.approx(1440.0)


def test_where_nothing_has_run_a_table_tells_it(planned, monkeypatch):
    """50 steps of 512 rows of 1,280 tokens; a token of 1,000 parameters takes 6,000 operations of training at 2e10 a
    second, and 2,000 of sampling at 1e10: 5e-7 s, half of it on two threads; a step takes 1 s besides."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    config = stage("rft", buffer__total_steps=50)
    other = SimpleNamespace(**vars(planned) | {"kind": "offline"})
    found = times.expected(other, config, 1000)
    assert found.tokens == 50 * 512 * config.model.longest
    assert found.seconds == pytest.approx(found.tokens * 2.5e-7 + 50)
    assert found.source is None
    on_gpus = times.expected(SimpleNamespace(**vars(other) | {"gpus": 2}), config, 1000)
    assert on_gpus.seconds == pytest.approx(found.tokens * 1000 * (6 / 2.5e14 + 2 / 3e13) / 2 + 50)


def test_what_it_took_is_compared(planned):
    found = times.expected(planned, stage("rft"))
    assert list(times.compared([(planned, "", found)])) == []
    files.write_json(planned.directory / files.MANIFEST, {"seconds": 90.0})
    tables = planned.directory / "steps"
    tables.symlink_to(next(Path(planned.root, "store").glob("rft-*/steps")))
    (line,) = times.compared([(planned, "", found), (planned, "", None)])
    wording(line, "1.8 s", "3:36:00", "1:30")


@pytest.fixture
def measured(planned):
    """The same with 3 s of training on one GPU and 3 s of rollout on one engine in each step."""
    made = FakeRun(Path(planned.root)).whole()
    directory = next(Path(one["directory"]) for one in made.stages if one["name"] == "rft")
    for step in range(1, 5):
        made._step(directory, step, train_seconds=3.0, rollout_seconds=3.0)
    spec = files.read_json(directory / "stage.json")
    files.write_json(directory / "stage.json", spec | {"config": {
        "trainer": {"ranks": 1}, "explorer": {"rollout_model": {"engine_num": 1, "tensor_parallel_size": 1}}}})
    return SimpleNamespace(**vars(planned) | {"gpus": 4})


@pytest.mark.parametrize(("ranks", "engines", "each", "split", "nodes", "offset", "proposed"), [
    (1, 3, 1, 1, 1, 2, ("=2 ", "=2,", "50%")),  # 3 s, engines 1 s; two and two take 1.5 s
    (1, 3, 1, 1, 1, 0, ("=2 ", "=2,", "75%")),  # one after the other: 4 s; 3 s
    (2, 2, 1, 1, 1, 2, None), (1, 1, 1, 1, 1, 2, None),
    (2, 2, 2, 1, 1, 2, None),  # 1.5 s and 0.75; four ranks and one engine 1.5 s as well
    (6, 1, 2, 1, 1, 2, ("=4 ", "=2,", "50%")),  # engines 1.5 s; 0.75 s each
    (6, 2, 1, 3, 1, 2, ("=3 ", "=5,", "67%")),  # engines 1.5 s; 1 s and 0.6
    (2, 6, 1, 1, 2, 2, ("=4 ", "=4,", "50%")),  # 1.5 s; 0.75 s; five and three are not two nodes'
    (1, 2, 1, 1, 2, 2, None)])  # one GPU is not two nodes'
def test_gpus_are_divided_by_what_both_took(measured, ranks, engines, each, split, nodes, offset, proposed):
    config = stage("rft", mode="both", buffer__total_steps=50, trainer__ranks=ranks, cluster__node_num=nodes,
                   trainer__ulysses_sequence_parallel_size=split, explorer__rollout_model__engine_num=engines,
                   explorer__rollout_model__tensor_parallel_size=each, synchronizer__sync_offset=offset)
    _, *found = times.described(measured, config, times.expected(measured, config))
    assert len(found) == (proposed is not None)
    assert all(part in found[0][1] for part in proposed or ())


def test_gpus_are_divided_only_between_a_trainer_and_engines_that_were_measured(measured):
    config = stage("rft", mode="both", buffer__total_steps=50, explorer__rollout_model__engine_num=3)
    found = times.expected(measured, config)
    in_turns = stage("rft", mode="colocate", buffer__total_steps=50)
    given = stage("sft", mode="both", buffer__total_steps=50, explorer__rollout_model__engine_num=3)
    on_cpu, gone = SimpleNamespace(**vars(measured) | {"gpus": 0}), found._replace(source="rft-gone")
    assert [len(times.described(*one)) for one in (
        (measured, config, found), (measured, config, found._replace(source=None)), (on_cpu, config, found),
        (measured, in_turns, found), (measured, given, found), (measured, config, gone))] == [2, 1, 1, 1, 1, 1]
    path = Path(measured.root, "store", found.source, "stage.json")
    files.write_json(path, files.read_json(path) | {"config": {}})
    assert len(times.described(measured, config, found)) == 1
