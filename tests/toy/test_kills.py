"""A stage killed at several file operations in turn; `make test-kill` does so in every configuration."""

from pathlib import Path

import pytest

from ouroboros.pipeline.store import checkpoints
from tests.kills.cases import Case
from tests.kills.chain import Chain, Kill, with_close
from tests.kills.shim import Operation
from tests.toy.conftest import stage_of
from tests.toy.kill import made

SFT = Case("sft", 0, (), "sft")
TRAINER, STAGE = "trainer 0", "stage train"
POINTS = [
    Kill("self", Operation(TRAINER, "write", "checkpoints/.step=N.tmp/masters/mp_rank_N_model_states.pt"), count=2),
    Kill("self", Operation(TRAINER, "write", "steps/.step=N.parquet.N.tmp"), count=5, torn=True),
    Kill("self", Operation(STAGE, "rename to", "manifest.json")),
]
MORE = [
    Kill("self", Operation(TRAINER, "rename to", "checkpoints/step=N"), count=2),
    Kill("stage", Operation(TRAINER, "rename to", "steps/step=N.parquet"), count=4),
    Kill("self", Operation(TRAINER, "unlink", "checkpoints/.step=N.N.old.tmp/manifest.json"), count=2),
]


@pytest.mark.slow
@pytest.mark.parametrize("points", [POINTS, MORE])
def test_a_stage_killed_three_times_ends_as_if_undisturbed(finished, tmp_path, points):
    chain = Chain(SFT, tmp_path / "killed", finished.plan)
    for kill in points:
        chain.launch(kill)
    assert [(one.process, one.ended) for one in chain.kills] == [(kill.point.process, "") for kill in points]
    assert chain.launch(None) == 0, chain.output()
    (directory,) = chain.case.directories(chain.plan)
    assert made(directory) == made(Path(stage_of(finished.plan, "sft").directory))


@pytest.mark.slow
def test_the_state_of_an_algorithm_of_the_users_goes_on_from_the_checkpoint(finished, tmp_path):
    """Killed at the row of step 5, it resumes at the checkpoint of step 4; its loss depends on its state."""
    case = Case("own", 0, ("stages.sft.algorithm.algorithm_type=tests.operators.own_algorithms:OwnSft",), "sft")
    whole, cut = (Chain(case, tmp_path / name, finished.plan) for name in ("whole", "cut"))
    cut.launch(Kill("self", Operation(TRAINER, "rename to", "steps/step=N.parquet"), count=5))
    assert [(one.process, one.ended) for one in cut.kills] == [(TRAINER, "")]
    expected, found = (case.directories(chain.plan)[0] for chain in (whole, cut))
    assert checkpoints.complete_checkpoints(found) == [2, 4]
    assert [chain.launch(None) for chain in (whole, cut)] == [0, 0], cut.output()
    assert made(found) == made(expected)
    last = checkpoints.complete_checkpoints(expected)[-1]
    states = [checkpoints.read_manifest(directory, last)["state"] for directory in (expected, found)]
    assert states[0] == states[1]
    assert states[0]["mean"] < 0


def test_of_a_run_that_depends_on_time_only_last_bits_of_the_engines_logprobs_may_differ():
    def results(logprobs, tokens=(3, 4), rows=1):
        return {"calls": [{"tokens": list(tokens), "logprobs": logprobs}] * rows, "manifest": [{"weights_hash": "a"}]}

    expected = results([-1.0, -2.0])
    assert with_close(results([-1.00001, -2.0]), expected) == expected
    for other in (results([-1.001, -2.0]), results([-1.0]), results([-1.0, -2.0], (3, 5)),
                  results([-1.0, -2.0], rows=2), results([-1.0, -2.0], rows=0)):
        assert with_close(other, expected) == other != expected
