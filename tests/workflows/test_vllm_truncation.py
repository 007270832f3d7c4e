"""Truncated sampling in a sampler like that of vLLM's second model runner: each request has its own cut and sets."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ouroboros.workflows.engines.vllm_engine import ASKED
from ouroboros.workflows.engines.vllm_truncation import truncate_in

NONE = -torch.inf
SOME = [3.0, 1.0, 2.0, 0.0]


class Sampler:
    """Takes requests and makes logits ready as vLLM 0.26 does; other releases have other arguments in between."""

    def add_request(self, slot, prompt, parameters):
        pass

    def apply_sampling_params(self, logits, slots, skip_top_k_top_p):
        return logits

    def __call__(self, logits, batch):
        return self.apply_sampling_params(logits, batch.idx_mapping_np, skip_top_k_top_p=True)


@pytest.fixture
def sampler():
    made = Sampler()
    made.sets = truncate_in(made)
    return made


def add(sampler, slot: int, key: int | None, *bounds) -> None:
    asked = None if key is None else {ASKED: (key, *bounds)}
    sampler.add_request(slot, 3, SimpleNamespace(extra_args=asked))


def step(sampler, slots: list[int], positions: list[int], lines: list[list[float]], dtype=torch.float32):
    """positions: of the tokens whose logits these are."""
    batch = SimpleNamespace(idx_mapping_np=np.array(slots), positions=torch.tensor([0, *positions]),
                            logits_indices=torch.arange(1, 1 + len(slots)))
    return sampler(torch.tensor(lines, dtype=dtype), batch).tolist()


def sets(sampler, *wanted) -> list[list[list[int]]]:
    return [[one.tolist() for one in kept.sets()] for kept in sampler.sets.take(wanted)]


def test_requests_of_a_batch_are_cut_by_their_own_bounds_wherever_the_runner_has_them(sampler):
    add(sampler, 5, 70, 2, 1.0, 0.0)
    add(sampler, 1, None)
    add(sampler, 0, 71, 4, 0.6, 0.0)  # softmax of 3, 2, 1, 0 is 0.64, 0.24, 0.09, 0.03
    assert step(sampler, [1, 5, 0], [2, 2, 2], [SOME] * 3) == [SOME, [3.0, NONE, 2.0, NONE], [3.0, NONE, NONE, NONE]]
    assert step(sampler, [5, 0], [3, 3], [SOME[::-1]] * 2) == [[NONE, 2.0, NONE, 3.0], [NONE, NONE, NONE, 3.0]]
    assert sets(sampler, (70, 3, 2), (71, 3, 1)) == [[[0, 2], [1, 3]], [[0]]]


def test_a_token_that_is_sampled_again_has_its_last_set_and_a_lost_one_is_told(sampler):
    add(sampler, 0, 7, 1, 1.0, 0.0)
    step(sampler, [0], [0], [SOME])  # of a part of a prompt of 3 tokens
    step(sampler, [0], [2], [SOME])
    step(sampler, [0], [2], [SOME[::-1]])  # after a preemption
    assert sampler.sets.take([(8, 3, 1)]) == [None]
    assert sets(sampler, (7, 3, 1)) == [[[3]]]
    assert sampler.sets.take([(7, 3, 1)]) == [None]


def test_a_slot_that_is_used_again_has_the_bounds_of_its_new_request(sampler):
    add(sampler, 0, 7, 1, 1.0, 0.0)
    step(sampler, [0], [2], [SOME])
    sampler.sets.drop([7])
    add(sampler, 0, None)
    assert step(sampler, [0], [2], [SOME]) == [SOME]
    assert sampler.sets.take([(7, 3, 1)]) == [None]


def test_shares_of_a_nucleus_are_summed_in_32_bits(sampler):
    add(sampler, 0, 7, 256, 0.5, 0.0)
    step(sampler, [0], [2], [[0.0] * 256], torch.bfloat16)  # a sum of shares of 1/256 in bfloat16 is off from 1/4 on
    assert len(sets(sampler, (7, 3, 1))[0][0]) == 128
