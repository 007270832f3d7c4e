"""Functions of the user's own, named by dotted path: found, and looked at before their answers are believed."""


import inspect

import pyarrow as pa
import pytest
import torch

from ouroboros.operators.advantages.group import Grpo
from ouroboros.operators.choice import chosen_advantage, chosen_estimate, chosen_loss
from ouroboros.operators.kl import KL_ESTIMATORS, penalise
from ouroboros.operators.losses.clipped import Ppo
from ouroboros.pipeline.store.errors import ConfigError, DataError
from tests.golden.messages import refuses

MINE = '''
import pyarrow as pa
from pydantic import Field

from ouroboros.pipeline.settings.arguments.base import Advantage, Loss

NUMBER = 3

def half(batch, factor=0.5):
    return pa.table({"experience_id": batch["experience_id"], "advantage": [factor] * len(batch)})

def per_token(batch):
    lists = [[1.0] * len(mask) for mask in batch["action_mask"].to_pylist()]
    return pa.table({"experience_id": batch["experience_id"], "advantage": lists})

def not_a_table(batch): return [1.0]
def no_advantage(batch): return batch.select(["experience_id"])
def strange(batch): return pa.table({"experience_id": ["z"], "advantage": [1.0]})
def words(batch): return pa.table({"experience_id": batch["experience_id"], "advantage": ["x"] * len(batch)})
def nan(batch): return pa.table({"experience_id": batch["experience_id"], "advantage": [float("nan")] * len(batch)})
def null(batch): return nan(batch).set_column(1, "advantage", pa.nulls(len(batch), pa.float64()))
def short(batch): return pa.table({"experience_id": batch["experience_id"], "advantage": [[1.0]] * len(batch)})

def loss(logprobs, advantages): return -advantages * logprobs, {"size": logprobs.detach().abs()}
def scalar(logprobs, advantages): return (-advantages * logprobs).mean(), {}
def bare(logprobs, advantages): return -advantages * logprobs
def detached(logprobs, advantages): return -advantages * logprobs.detach(), {}
def of_a_teacher(batch): return batch["teacher_logprobs"]
def summed(logprobs, advantages): return -advantages * logprobs, {"size": logprobs.sum()}
def kl(logprobs, ref_logprobs): return (logprobs - ref_logprobs) ** 4
def one(logprobs, ref_logprobs): return (logprobs - ref_logprobs).sum()

class Scaled(Loss):
    """REINFORCE, scaled."""
    aggregation = "seq-mean-token-mean"
    scale: float = Field(1.0, ge=0, description="factor")

    def __call__(self, logprobs, advantages):
        return -self.scale * advantages * logprobs, {}

class Doubled(Advantage):
    """Twice the reward."""

    def __call__(self, batch):
        found = [2 * one for one in batch["reward"].to_pylist()]
        return pa.table({"experience_id": batch["experience_id"], "advantage": found})
'''
KEY = "algorithm.advantage_fn"


@pytest.fixture(autouse=True)
def mine(tmp_path, monkeypatch):
    (tmp_path / "parts_of_mine.py").write_text(MINE)
    (tmp_path / "broken_parts.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def batch():
    return pa.table({"experience_id": ["a", "b"], "reward": [1.0, 0.0], "action_mask": [[1, 1], [1, 0]]})


def advantages(name, **arguments):
    return chosen_advantage(f"parts_of_mine:{name}", arguments)(batch())


def test_a_loss_without_a_gradient_is_refused():
    loss = chosen_loss("parts_of_mine:detached", {})
    columns = {"logprobs": torch.zeros(2, requires_grad=True), "advantages": torch.ones(2)}
    with refuses(ConfigError, "policy_loss_fn=parts_of_mine:detached"):
        loss(**columns)
    loss(**columns | {"logprobs": torch.zeros(2)})  # where none is asked for, none is missed


def test_a_name_without_a_colon_is_one_of_ours():
    assert isinstance(chosen_advantage("grpo", {}), Grpo)
    assert isinstance(chosen_loss("ppo", {}), Ppo)
    with refuses(ConfigError, "algorithm.advantage_fn 'grop'", "'grpo'"):
        chosen_advantage("grop", {})


def test_an_advantage_answers_for_rows_or_tokens_and_a_column_that_lacks_is_told_with_those_there_are():
    assert advantages("half", factor=2.0).to_pydict() == {"experience_id": ["a", "b"], "advantage": [2.0, 2.0]}
    assert advantages("per_token")["advantage"].to_pylist() == [[1.0, 1.0], [1.0, 1.0]]
    with refuses(DataError, "teacher_logprobs", "experience_id", "action_mask"):
        advantages("of_a_teacher")


@pytest.mark.parametrize(("name", "words"), [
    ("not_a_table", "pyarrow.Table"), ("no_advantage", "experience_id"), ("strange", "experience_id 'z'"),
    ("words", "advantages"), ("nan", "2 of 2"), ("null", "2 of 2"), ("short", "1 advantages")])
def test_what_is_no_table_of_advantages_is_refused(name, words):
    with refuses(DataError, words):
        advantages(name)


def test_a_loss_answers_with_numbers_of_tokens():
    given = {"logprobs": torch.tensor([-1.0, -2.0]), "advantages": torch.tensor([1.0, -1.0])}
    loss, found = chosen_loss("parts_of_mine:loss", {})(**given)
    assert (loss.tolist(), found["size"].tolist()) == ([1.0, -2.0], [1.0, 2.0])
    for name, had in (("scalar", "()"), ("bare", "(2,)"), ("summed", "(2,), ()")):
        with refuses(ConfigError, had, "= 2", "loss [N]"):
            chosen_loss(f"parts_of_mine:{name}", {})(**given)


def test_an_estimate_of_kl_is_used_as_a_penalty():
    """(0.1 - 0.3)^4 = 0.0016, times 10 off the reward of 1."""
    import numpy as np

    rewards, kl = penalise(1.0, np.array([0.1]), np.array([0.3]), np.array([1]), "parts_of_mine:kl", 10.0)
    assert (rewards.tolist(), kl) == (pytest.approx([0.984]), pytest.approx(0.0016))
    with refuses(ConfigError, "= 1", "[N]"):
        penalise(1.0, np.array([0.1]), np.array([0.3]), np.array([1]), "parts_of_mine:one", 10.0)


@pytest.mark.parametrize(("path", "words"), [
    ("no_such_parts:x", "ModuleNotFoundError"), ("broken_parts:x", "ModuleNotFoundError"),
    ("parts_of_mine:absent", "AttributeError"), ("parts_of_mine:NUMBER", "function")])
def test_what_is_no_function_is_refused(path, words):
    with refuses(ConfigError, words):
        chosen_estimate(KL_ESTIMATORS, path, "algorithm.kl_loss_fn")


def test_a_class_of_the_users_is_a_loss_and_an_advantage_with_its_own_arguments():
    """-A log pi times 2 is 2 and -4 at log pi = -1 and -2, A = 1 and -1; the advantage is twice the reward."""
    loss = chosen_loss("parts_of_mine:Scaled", {"scale": 2.0})
    given = {"logprobs": torch.tensor([-1.0, -2.0]), "advantages": torch.tensor([1.0, -1.0])}
    assert loss(**given)[0].tolist() == [2.0, -4.0]
    assert inspect.unwrap(loss).aggregation == "seq-mean-token-mean"
    made = chosen_advantage("parts_of_mine:Doubled", {})(batch())
    assert made["advantage"].to_pylist() == [2.0, 0.0]
    with refuses(ConfigError, "policy_loss_fn_args.scale", "at least 0"):
        chosen_loss("parts_of_mine:Scaled", {"scale": -1.0})
