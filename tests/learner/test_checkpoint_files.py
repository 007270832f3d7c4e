"""Checkpoint files of every ZeRO stage are read without running what they contain."""

import pickle

import pytest
import torch

from stages.learner.actor import Actor
from tests.configs import TINY, overridden


def actor(tiny_model, process, stage, dtype="float32"):
    settings = overridden(*TINY, f"trainer.zero_stage={stage}", f"model.dtype={dtype}")
    return Actor(tiny_model, settings, process)


@pytest.mark.parametrize(("stage", "dtype"), [(1, "float32"), (2, "float32"), (3, "float32"), (1, "bfloat16")])
def test_a_checkpoint_needs_no_code_but_deepspeeds_own_classes(tiny_model, process, tmp_path, stage, dtype):
    made = actor(tiny_model, process, stage, dtype)
    made.zero.save(tmp_path)
    other = actor(tiny_model, process, stage, dtype)
    other.zero.load(tmp_path)
    found, written = other.full_state(), made.full_state()
    assert all(torch.equal(found[name], written[name]) for name in written)


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_code_in_a_checkpoint_is_not_run(tiny_model, process, tmp_path):
    made = actor(tiny_model, process, 1)
    made.zero.save(tmp_path)
    torch.save({"module": Evil(tmp_path / "ran")}, tmp_path / "state" / "mp_rank_00_model_states.pt")
    with pytest.raises(pickle.UnpicklingError):
        made.zero.load(tmp_path)
    assert not (tmp_path / "ran").exists()
