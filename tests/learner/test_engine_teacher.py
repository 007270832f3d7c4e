"""A teacher on an engine of ours: as the one in host memory."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ouroboros.pipeline.settings.explorer import AuxiliaryModel
from ouroboros.pipeline.settings.setting import plain
from ouroboros.stages.learner.engine_teacher import EngineTeacher
from ouroboros.stages.learner.teacher import Teacher
from tests.configs import TINY
from tests.learner.test_served_teacher import GKD, ROOM
from tests.learner.test_teacher import larger, rows  # noqa: F401 (larger is a fixture)


@pytest.fixture
def both(tmp_path, context_of, tiny_model, larger, process):  # noqa: F811
    """The teacher in host memory, and on an engine."""
    def make(engine, *words):
        model = AuxiliaryModel(name="big", model_path=str(larger), engine_type=engine, gpu_memory_utilization=0.3)
        named = (f"explorer.auxiliary_models={json.dumps([plain(model)])}",
                 f"model.teacher_model_path={larger}", "model.teacher_name=big", ROOM, *words)
        return [kind(context_of(tmp_path / kind.__name__, *TINY, *named, teacher=larger), tiny_model, process)
                for kind in (Teacher, EngineTeacher)]
    return make


def compare(there, here):
    for one, other in zip(there, here, strict=True):
        assert one.columns.keys() == other.columns.keys()
        for name in one.columns:
            mine, others = one.columns[name], other.columns[name]
            if name == "teacher_top_logprobs":
                np.testing.assert_allclose(np.exp(others[:, -1]), np.exp(mine[:, -1]), atol=1e-5)
                mine, others = mine[:, :-1], others[:, :-1]
            np.testing.assert_allclose(others, mine, atol=1e-4)


@pytest.mark.parametrize("words", [
    (), *((*GKD, f"algorithm.policy_loss_fn_args.top_k={count}") for count in (3, 1024))], ids=str)
def test_what_an_engine_says_is_what_the_teacher_in_host_memory_says(both, words):
    there, here = rows(), rows()
    copied, asked = both("transformers", "algorithm.algorithm_type=on_policy_distill", *words)
    copied.add(there)
    asked.add(here)
    asked.engine.close()
    compare(there, here)


def test_the_answers_at_once_have_at_most_64_mib():
    """A token has 65 log-probs of 128 bytes: 8,065 tokens are 64 MiB, two rows of 4,000. A longer row goes alone."""
    teacher, asked = object.__new__(EngineTeacher), []
    teacher.tops, teacher.of_row = 64, lambda row, found: len(found)
    teacher.engine = SimpleNamespace(prompt_logprobs=lambda sequences, count: asked.append(
        (len(sequences), count)) or [[{}] * (len(one) - 1) for one in sequences])
    lengths = [4000, 4000, 4000, 9000, 10]
    assert teacher.asked([replace(rows()[0], tokens=[1] * length) for length in lengths]) == lengths
    assert asked == [(2, 64), (1, 64), (1, 64), (1, 64)]


@pytest.mark.slow
def test_what_vllm_says_is_what_the_teacher_in_host_memory_says(both):
    there, here = rows(), rows()
    copied, asked = both("vllm", *GKD, "algorithm.policy_loss_fn_args.top_k=64")
    copied.add(there)
    asked.add(here)
    asked.engine.close()
    compare(there, here)
