"""A teacher on an engine of ours: as the one in host memory."""

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ouroboros.pipeline.settings.explorer import AuxiliaryModel
from ouroboros.pipeline.settings.setting import plain
from ouroboros.stages.learner.engine_teacher import EngineTeacher, settings_of
from ouroboros.stages.learner.teacher import Teacher
from ouroboros.workflows.engines.transformers_engine import TransformersEngine
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
            np.testing.assert_allclose(others, mine, atol=2e-6, rtol=0)


TOP = (*GKD, "algorithm.policy_loss_fn_args.top_k={}")


@pytest.mark.parametrize(("engine", "words", "kept"), [
    ("transformers", (), 0), ("transformers", TOP, 3), ("transformers", TOP, 1024),
    pytest.param("vllm", TOP, 64, marks=pytest.mark.slow)], ids=str)
def test_what_an_engine_says_is_what_the_teacher_in_host_memory_says(both, engine, words, kept):
    there, here = rows(), rows()
    copied, asked = both(engine, "algorithm.algorithm_type=on_policy_distill", *(one.format(kept) for one in words))
    apart = os.getpgid(asked.engine._members[0].process.pid) != os.getpgid(0)
    copied.add(there)
    asked.add(here)
    asked.engine.close()
    compare(there, here)
    assert apart  # a signal to the trainer's group leaves it alive for the last step


def test_the_answers_at_once_have_at_most_64_mib_and_every_copy_has_a_row():
    """A token has 1,025 log-probs of 8 bytes: 8,184 tokens are 64 MiB, two rows of 4,000. Two copies have two rows."""
    teacher, asked = object.__new__(EngineTeacher), []
    teacher.tops, teacher.copies, teacher.of_row = 1024, 1, lambda row, ids, _: len(ids)
    teacher.engine = SimpleNamespace(prompt_logprobs=lambda sequences, count: asked.append(
        len(sequences)) or [(one, one) for one in sequences])
    lengths = [4000, 4000, 4000, 9000, 10]
    some = [replace(rows()[0], tokens=[1] * length) for length in lengths]
    assert teacher.asked(some) == lengths
    teacher.copies = 2
    assert teacher.asked(some) == lengths
    assert asked == [2, 1, 1, 1, 2, 2, 1]


def test_a_prompt_in_pieces_has_the_log_probs_of_a_whole_one(both, monkeypatch):
    there, here = rows(), rows()
    copied, asked = both("transformers", *GKD, "algorithm.policy_loss_fn_args.top_k=3")
    asked.engine.close()
    settings = settings_of(asked.context.config, 3, False)
    asked.engine = TransformersEngine(asked.context.inputs["teacher"], settings, [], False)
    monkeypatch.setattr("ouroboros.workflows.engines.transformers_engine.PROMPT_PIECE", 3)
    copied.add(there)
    asked.add(here)
    compare(there, here)
