"""Whether a stage fits its GPUs, and what is advised when it does not."""

import json
import re

import pytest

from pipeline.check import fit
from pipeline.check.memory import GIB, USABLE, training
from pipeline.compose.stage_settings import effective
from pipeline.job.devices import Gpus
from pipeline.settings.config import AuxiliaryModel
from pipeline.store.model_shape import shape_of
from tests.configs import changed, element
from tests.pipeline.test_shape import QWEN2

SMALL = shape_of(QWEN2)  # 0.49 billion parameters
LARGE = shape_of({"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
                  "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064})  # Qwen2.5-7B: 7.6


def rft(**values) -> dict:
    """1,024 + 1,024 tokens, micro-batches of 32,768, in 16 bits."""
    plain = {"model.max_prompt_tokens": 1024, "model.max_response_tokens": 1024, "model.dtype": "bfloat16",
             "trainer.max_token_len_per_gpu": 32768}
    config = changed({**plain, **{key.replace("__", "."): value for key, value in values.items()}})
    return effective(config, config["stages"][1])


def gpus(count=8, gib=80.0) -> Gpus:
    return Gpus(count, gib, True)


# ------------------------------------------------------------------------------------------------------------ counts


@pytest.mark.parametrize(("count", "values", "words"), [
    (2, {}, None),
    (0, {"trainer__ranks": 4}, None),  # a CPU run
    (None, {"trainer__ranks": 4}, None),
    (1, {}, "mode=both: needs 2 GPUs (1 for trainer.ranks, 1 for explorer.rollout_model), cluster.node_num x "
            "gpu_per_node declares 1. Set mode=colocate to take turns on the same ones, or ask for fewer."),
    (4, {"trainer__ranks": 6, "explorer__rollout_model__tensor_parallel_size": 2}, "needs 8 GPUs (6 for trainer.ranks"),
    (4, {"trainer__ranks": 6}, "declares 4. Ask for fewer."),
    (4, {"trainer__ranks": 6, "mode": "colocate"}, "mode=colocate: needs 6 GPUs"),
])
def test_more_gpus_than_there_are(count, values, words):
    problem = fit.count_problem(rft(**values), gpus(count))
    assert problem is None if words is None else words in problem


def test_a_stage_without_rollouts_needs_a_gpu_for_each_rank():
    config = changed({"trainer.ranks": 3})
    sft = effective(config, config["stages"][0])
    assert fit.count_problem(sft, gpus(3)) is None
    assert "trainer.ranks=3: needs 3 GPUs, visible here: 2." in fit.count_problem(sft, Gpus(2, None, False))
    sft["explorer"]["rollout_model"]["tensor_parallel_size"] = 4
    assert "needs 4 GPUs to evaluate" in fit.count_problem(sft, gpus(3))


# ------------------------------------------------------------------------------------------------------------ memory


def test_what_fits_is_no_problem():
    assert fit.problems(SMALL, rft(), gpus()) == []


@pytest.mark.parametrize(("shape", "gib", "values", "advice"), [
    # 64.7 GiB; kept 7.4 + 0.9, activations 44.5, head 11.8: a quarter of the head is 3.2, so 56.0 of 57.6
    (SMALL, 64.0, {}, "trainer.logprob_chunk_tokens=1024"),
    (SMALL, 40.0, {}, "trainer.enable_gradient_checkpointing=true"),
    # recomputed: 1.53 + 11.8 + 8.3 = 21.7 of 21.6; smaller chunks alone do not, they do with it
    (SMALL, 24.0, {"trainer__enable_gradient_checkpointing": True}, "trainer.logprob_chunk_tokens=1024"),
    # 7.6 billion on one GPU: 16 bytes each are 113 GiB, of which the host can take 12
    (LARGE, 80.0, {"trainer__enable_gradient_checkpointing": True}, "trainer.offload_optimizer=true"),
    (LARGE, 80.0, {"trainer__enable_gradient_checkpointing": True, "trainer__ranks": 4}, None),
])
def test_the_cheapest_change_that_fits_is_advised(shape, gib, values, advice):
    config = rft(**values)
    problem = fit.trainer_problem(shape, config, gpus(8, gib))
    if advice is None:
        assert problem is None
        return
    assert f"The cheapest change that fits: {advice}." in problem
    changes = {}
    for word in advice.split():
        key, value = word.removeprefix("trainer.").split("=")
        changes[key] = True if value == "true" else int(value)
    advised = {**config, "trainer": {**config["trainer"], **changes}}
    assert training(shape, config, 2).peak > USABLE * gib * GIB >= training(shape, advised, 2).peak


def test_a_smaller_budget_is_the_largest_that_fits():
    """Without larger changes to make: recomputed, small chunks, ZeRO-3, offloaded, no GPU more."""
    values = {"trainer__enable_gradient_checkpointing": True, "trainer__logprob_chunk_tokens": 512,
              "trainer__zero_stage": 3, "trainer__offload_optimizer": True, "trainer__max_token_len_per_gpu": 65536}
    config = rft(**values)
    (budget,) = fit.cheapest(LARGE, config, gpus(2, 32.0)).values()
    assert budget % 1024 == 0

    def peak(tokens: int) -> float:
        return training(LARGE, {**config, "trainer": {**config["trainer"], "max_token_len_per_gpu": tokens}}, 2).peak

    assert peak(budget) <= USABLE * 32 * GIB < peak(budget + 1024)


def test_what_no_setting_makes_fit_is_said_to_be_so():
    problem = fit.trainer_problem(LARGE, rft(), gpus(1, 4.0))
    assert problem.endswith("No setting makes it fit: take a smaller model, shorter sequences, or more or larger GPUs.")


def test_ranks_are_advised_only_as_far_as_gpus_go():
    """With all else done, a rank's share of the weights, 14.2 GiB, is what is left to divide."""
    config = rft(trainer__enable_gradient_checkpointing=True, trainer__logprob_chunk_tokens=512,
                 trainer__zero_stage=3, trainer__offload_optimizer=True, trainer__max_token_len_per_gpu=2048)
    assert fit.cheapest(LARGE, config, gpus(3, 20.0)) == {"ranks": 2}
    assert fit.cheapest(LARGE, config, gpus(None, 20.0)) == {"ranks": 2}
    assert fit.cheapest(LARGE, config, gpus(2, 20.0)) is None  # the engine has the other one


def test_an_engine_needs_room_for_its_weights_and_one_sequence():
    """7.6 billion x 2 bytes are 14.2 GiB, a token 2 x 2 x 28 x 4 x 128 = 57,344 bytes, 2,048 of them 0.1 GiB."""
    low = rft(explorer__rollout_model__gpu_memory_utilization=0.1)
    assert "8.0 GiB do not hold weights and one sequence of 2,048 tokens, 14.3 GiB. Raise it to 0.2." in (
        fit.engine_problem(LARGE, low, gpus()))
    assert "the engine needs 14.3 GiB on each GPU for weights and one sequence of 2,048 tokens; a GPU has 12." in (
        fit.engine_problem(LARGE, rft(), gpus(8, 12.0)))
    assert fit.engine_problem(LARGE, rft(), gpus()) is None


def test_colocated_the_idle_trainer_keeps_its_weights_and_optimizer():
    """14 bytes a parameter, 6.4 GiB of 24; the engine's 0.9 are 21.6. 17.6 / 24 = 0.73, in twentieths 0.7."""
    config = rft(mode="colocate", trainer__enable_gradient_checkpointing=True, trainer__logprob_chunk_tokens=1024)
    (problem,) = fit.problems(SMALL, config, gpus(1, 24.0))
    assert "21.6 GiB and the 6.4 GiB that the colocated trainer keeps exceed 24. Lower it to 0.7." in problem
    config["explorer"]["rollout_model"]["gpu_memory_utilization"] = 0.7
    assert fit.problems(SMALL, config, gpus(1, 24.0)) == []
    config["mode"] = "both"
    config["explorer"]["rollout_model"]["gpu_memory_utilization"] = 0.9
    assert fit.problems(SMALL, config, gpus(2, 24.0)) == []


def seven_billion(gib: float) -> list[str]:
    """What is said of 7.6 billion parameters in turns on 8 GPUs, ZeRO-3."""
    config = rft(mode="colocate", trainer__enable_gradient_checkpointing=True, trainer__zero_stage=3, trainer__ranks=8,
                 trainer__max_token_len_per_gpu=16384, model__max_response_tokens=4096)
    return fit.problems(LARGE, config, gpus(8, gib))


def test_the_engine_is_judged_beside_the_trainer_as_it_is_advised_to_be():
    """With its optimizer on the host the trainer keeps 2 x (7.6 / 8 + 1) GB = 3.6 GiB: (24 - 3.6) / 24 = 0.85, in
    twentieths 0.8."""
    trainer, engine = seven_billion(24.0)
    assert "trainer.offload_optimizer=true" in trainer
    assert "21.6 GiB and the 3.6 GiB that the colocated trainer keeps exceed 24. Lower it to 0.8. The trainer is" in (
        engine)


def test_an_engine_too_large_beside_the_trainer_is_told_how_many_gpus_and_what_share():
    """14.2 GiB of weights and 0.3 of one sequence do not fit in 0.75 of 16 GiB, half of it does; 0.9 is lowered to
    0.75."""
    _, engine = seven_billion(16.0)
    assert ("What fits: explorer.rollout_model.tensor_parallel_size=2 "
            "explorer.rollout_model.gpu_memory_utilization=0.75.") in engine


@pytest.mark.parametrize(("utilization", "free", "words"), [
    (0.72, 0.73, None),  # 14.3 / 20 = 0.715 are needed: between 0.7 and 0.75 no twentieth
    (0.9, 0.73, "exceed 20. Lower it to 0.73."), (0.9, 0.729, "exceed 20. Lower it to 0.72."),
    (0.5, 0.74, "14.3 GiB. Raise it to 0.72."), (0.9, 0.718, "exceed 20. Lower it to 0.718."),
    (0.9, 0.71, "the engine needs 14.3 GiB on each GPU"), (0.9, 0.8, "Lower it to 0.8."),
    (0.5, 0.8, "Raise it to 0.75.")])
def test_an_engine_may_fill_all_that_is_left_beside_the_trainer(utilization, free, words):
    """14.2 GiB of weights and 0.1 of one sequence, on 20 GiB."""
    config = rft(mode="colocate", explorer__rollout_model__gpu_memory_utilization=utilization)
    problem = fit.engine_problem(LARGE, config, gpus(1, 20.0), (1 - free - 1e-6) * 20 * GIB)
    assert problem is None if words is None else words in problem


def test_an_engine_that_no_split_makes_fit_is_said_so():
    problem = fit.engine_problem(LARGE, rft(), gpus(2, 12.0))  # the trainer has the other one
    assert problem.endswith("No explorer.rollout_model.tensor_parallel_size fits: take a smaller model, or more or "
                            "larger GPUs.")
    config = rft(mode="colocate")
    assert "fits: set mode=both with GPUs of its own, or take" in fit.engine_problem(LARGE, config, gpus(1, 12.0))


@pytest.mark.parametrize(("tokens", "deciding"), [(16, "optimizer step's own 56.7"), (65536, "activations")])
def test_the_parts_of_the_memory_add_up_to_the_peak(tokens, deciding):
    """7.6 billion x 8 bytes at the step are 56.7 GiB; with many tokens the backward pass is higher."""
    (_, words), *_ = fit.described(LARGE, rft(trainer__max_token_len_per_gpu=tokens), gpus())
    assert deciding in words
    total, *parts = (float(number) for number in re.findall(r"\d+\.\d", words))
    assert sum(parts) == pytest.approx(total, abs=0.25)


def judged(path, **values) -> dict:
    """A stage that takes turns on one GPU, with a reward model of the small shape."""
    config = rft(mode="colocate", trainer__enable_gradient_checkpointing=True, trainer__logprob_chunk_tokens=1024,
                 explorer__rollout_model__gpu_memory_utilization=0.7, **values)
    (path / "config.json").write_text(json.dumps(QWEN2))
    config["explorer"]["auxiliary_models"] = [element(AuxiliaryModel, {"model_path": str(path)})]
    return config


def test_colocated_a_reward_model_keeps_its_weights_too(tmp_path):
    """0.7 of 24 are 16.8 GiB; trainer 6.4 and 0.494 billion x 2 bytes = 0.9: 24.1. (24 - 7.4) / 24 = 0.69: 0.65."""
    config = judged(tmp_path)
    assert fit.judge_bytes(config, gpus(1, 24.0)) == SMALL.critic * 2
    (problem,) = fit.problems(SMALL, config, gpus(1, 24.0))
    assert "16.8 GiB and the 7.4 GiB that the colocated trainer and reward models keep exceed 24. Lower it to 0.65" in (
        problem)
    config["explorer"]["auxiliary_models"] = []
    assert fit.problems(SMALL, config, gpus(1, 24.0)) == []


def test_a_reward_model_takes_of_what_the_trainer_may_fill_where_they_share(tmp_path):
    config = judged(tmp_path)
    peak = training(SMALL, config, 2).peak / GIB
    room = gpus(1, (peak + 0.5) / USABLE)  # half a GiB to spare, and the reward model has 0.9
    assert "of reward models" in fit.trainer_problem(SMALL, config, room)
    config["mode"] = "both"
    assert fit.trainer_problem(SMALL, config, room) is None
