"""Whether a stage fits its GPUs, and which settings are named when it does not."""

import json
import re
from dataclasses import asdict, replace

import pytest

from ouroboros.pipeline.check import fit
from ouroboros.pipeline.check.memory import GIB, USABLE, asleep, beyond_share, training
from ouroboros.pipeline.check.model_size import Sizes, Tower, named, question
from ouroboros.pipeline.compose.recipe import effective
from ouroboros.pipeline.job.devices import Gpus
from ouroboros.pipeline.settings.config import AuxiliaryModel
from ouroboros.pipeline.settings.model import Model
from ouroboros.pipeline.store.digests import StageModel
from tests.configs import changed, element
from tests.golden.messages import wording
from tests.sizes import LARGE, SMALL


def rft(**values) -> dict:
    """1,024 + 1,024 tokens, micro-batches of 32,768, in 16 bits."""
    plain = {"model.max_prompt_tokens": 1024, "model.max_response_tokens": 1024, "model.dtype": "bfloat16",
             "trainer.max_token_len_per_gpu": 32768, "trainer.enable_gradient_checkpointing": False,
             "trainer.compile": False}
    config = changed({**plain, **{key.replace("__", "."): value for key, value in values.items()}})
    return effective(config, config.stages[1])


def gpus(count=8, gib=80.0) -> Gpus:
    return Gpus(count, gib, True)


@pytest.mark.parametrize(("count", "values", "words"), [
    (2, {}, None), (None, {"trainer__ranks": 4}, None), (0, {"trainer__ranks": 4}, None),  # 0: a CPU run
    (1, {}, "mode=both: needs 2 GPUs (1 for trainer.ranks, 1 for explorer.rollout_model), cluster.node_num x "
            "gpu_per_node declares 1. Set mode=colocate to take turns on the same ones, or ask for fewer."),
    (4, {"trainer__ranks": 6, "explorer__rollout_model__tensor_parallel_size": 2}, "needs 8 GPUs (6 for trainer.ranks"),
    (4, {"trainer__ranks": 6}, "declares 4. Ask for fewer."),
    (4, {"trainer__ranks": 6, "mode": "colocate"}, "mode=colocate: needs 6 GPUs")])
def test_more_gpus_than_there_are(count, values, words):
    problem = fit.count_problem(rft(**values), gpus(count))
    assert problem is None if words is None else words in problem


@pytest.mark.parametrize(("setting", "counts"), [
    ({}, False), ({"format__image_key": "image"}, True), ({"format__prompt_type": "messages"}, True),
    ({"inputs": [], "generator": "digits"}, True)])
def test_a_tower_is_counted_where_prompts_may_have_images(setting, counts):
    """32,768 tokens, 4 patches each, 32 layers of (8 + 16) 1,280 + 8 x 3,420 bytes: 226.8 GiB."""
    config = rft(trainer__freeze_vision_tower=False, **{
        f"data_processor__task_pipeline__{key}": value
        for key, value in {"inputs": ["rows.jsonl"], "generator": None, **setting}.items()})
    seeing, plain = (fit.of_stage(config, gpus(8, 24.0), config.model, None, Sizes({
        question(config.model): asdict(replace(SMALL, tower=tower))}))[0]["problems"]
                     for tower in (Tower(4, 32, 1280, 3420), None))
    assert (seeing != plain) == counts


def test_a_stage_without_rollouts_needs_a_gpu_for_each_rank():
    config = changed({"trainer.ranks": 3})
    sft = effective(config, config.stages[0])
    assert fit.count_problem(sft, gpus(3)) is None
    wording(fit.count_problem(sft, Gpus(2, None, False)), "trainer.ranks=3", "3 GPUs", "here: 2")
    wide = sft.but("explorer.rollout_model.tensor_parallel_size", 4)
    wording(fit.count_problem(wide, gpus(3)), "4 GPUs")


@pytest.mark.parametrize(("values", "held"), [
    ({"mode": "both"}, 0), ({"explorer__rollout_model__engine_type": "transformers"}, 0),
    ({}, 2.4), ({"explorer__rollout_model__engines_per_gpu": 3}, 3.6),  # 1.2 of each; auto: as two
    ({"explorer__rollout_model__tensor_parallel_size": 2}, 1.2)])
def test_engines_that_sleep_leave_the_trainer_less_room(values, held):
    config = rft(**{"mode": "colocate", "explorer__rollout_model__engine_type": "vllm", **values})
    gib = (training(SMALL, config, 2).peak / GIB + held) / USABLE
    assert fit.trainer_problem(SMALL, config, gpus(8, gib + 0.01)) is None
    assert fit.trainer_problem(SMALL, config, gpus(8, gib - 0.01)) is not None


def test_mlps_of_another_shape_are_not_computed_in_parts():
    other = replace(SMALL, layers=((24, replace(SMALL.layers[0][1], tiled=0)),))
    asked = rft(trainer__tiled_mlp_num_shards=4)
    assert [fit.tiles_problem(size, config) is None for size, config in (
        (other, rft()), (SMALL, asked), (other, asked))] == [True, True, False]


# recomputed in chunks of 512, offloaded ZeRO-3, no micro-batch larger than a row: nothing is left to lower
LEAST = {"trainer__enable_gradient_checkpointing": True, "trainer__logprob_chunk_tokens": 512,
         "trainer__zero_stage": 3, "trainer__offload_optimizer": True, "trainer__max_token_len_per_gpu": 2048}
EIGHT = {"algorithm.optimizer.optimizer_type": "adamw8bit"}
RECOMPUTED = {"trainer.enable_gradient_checkpointing": True}


def changes_in(problem: str) -> dict:
    """The settings that a message says to set, as values."""
    given = dict(word.split("=") for word in re.findall(r"[a-z_.]+=\w+", problem.partition("With ")[2]))
    return {key: True if value == "true" else int(value) if value.isdigit() else value for key, value in given.items()}


@pytest.mark.parametrize(("size", "gib", "values", "named"), [
    # 65.2 GiB: process 0.6, kept 7.4 + 0.9, activations 44.5 + head 11.8, of which chunks of 1,024 positions leave 3.1
    (SMALL, 64.0, {}, {"trainer.logprob_chunk_tokens": 1024}),
    # recomputed: 0.6 + 1.53 + 11.8 + 8.3 = 22.3 of 21.6
    (SMALL, 24.0, {"trainer__enable_gradient_checkpointing": True}, {"trainer.logprob_chunk_tokens": 1024}),
    (SMALL, 24.0, {}, {"trainer.max_token_len_per_gpu": 16384} | RECOMPUTED),
    # 13.6 GiB: process 0.6, weights and gradients 2.8, activations 4.7, states 5.5, in 8 bits 2.8; 12.8 with half the
    # tokens
    (SMALL, 13.0, {"trainer__enable_gradient_checkpointing": True, "trainer__logprob_chunk_tokens": 1024}, EIGHT),
    # 7.6 billion on one GPU: 22 bytes each in the step, of which the host can take 12 and what is made of gradients
    (LARGE, 80.0, {"trainer__enable_gradient_checkpointing": True}, {"trainer.offload_optimizer": True}),
    (LARGE, 128.0, {"trainer__enable_gradient_checkpointing": True}, EIGHT)])
def test_the_least_costly_settings_that_make_it_fit_are_named_and_none_too_many(size, gib, values, named):
    config = rft(**values)
    problem = fit.trainer_problem(size, config, gpus(8, gib))
    assert changes_in(problem) == named
    wording(problem, f"{training(size, config, 2).peak / GIB:.1f} GiB", "GPU", "90%", f"{gib:g}")
    for key, value in named.items():
        assert fit.trainer_problem(size, config, gpus(8, gib)) is not None
        config = config.but(key, value)
    assert fit.trainer_problem(size, config, gpus(8, gib)) is None


def test_auto_recomputes_only_on_gpus_where_it_must():
    """42.1 GiB compiled, of which 90% of 47 hold 42.3 and of 46 41.4; recomputed 12.3, more than 90% of 12."""
    assert fit.beyond_memory(SMALL, rft(), gpus()) == []
    auto = {"trainer__enable_gradient_checkpointing": "auto", "trainer__compile": "auto"}
    for gib, words in ((47.0, "trainer about 42.1 GiB"), (46.0, "trainer about 12.3 GiB")):
        assert fit.beyond_memory(SMALL, rft(**auto), gpus(8, gib)) == []
        assert words in fit.described(SMALL, rft(**auto), gpus(8, gib))[0][1]
    (problem,) = fit.beyond_memory(SMALL, rft(**auto), gpus(8, 12.0))
    wording(problem, "12.3 GiB", "GPU")
    assert "enable_gradient_checkpointing" not in problem


def test_ranks_are_named_only_as_far_as_gpus_go():
    """With all else done, a rank's share of the weights, 14.2 GiB, is what is left to divide."""
    assert changes_in(fit.trainer_problem(LARGE, rft(**LEAST), gpus(3, 20.0))) == {"trainer.ranks": 2}
    assert changes_in(fit.trainer_problem(LARGE, rft(**LEAST), gpus(None, 20.0))) == {"trainer.ranks": 2}
    wording(fit.trainer_problem(LARGE, rft(**LEAST), gpus(2, 20.0)), "setting")  # the engine has the other one
    recomputed = rft(trainer__enable_gradient_checkpointing=True, trainer__ranks=4)
    assert fit.trainer_problem(LARGE, recomputed, gpus()) is None


def test_where_nothing_fits_no_setting_is_named_that_another_one_makes_idle():
    named = changes_in(fit.trainer_problem(LARGE, rft(), gpus(2, 4.0)))
    assert "trainer.offload_optimizer" in named
    assert "algorithm.optimizer.optimizer_type" not in named  # the optimizer's states are in host memory


@pytest.mark.parametrize(("share", "gib", "mode", "others", "words"), [
    # 7.6 billion x 2 bytes are 14.2 GiB, a token 2 x 2 x 28 x 4 x 128 = 57,344 bytes, 2,048 of them 0.1 GiB; kept
    # log-probs of 256 sequences of 2,050 positions 2 MiB
    (0.9, 80, "both", 0, None), (0.72, 20, "colocate", 5.4, None),
    (0.1, 80, "both", 0, "has 8.0 of 80 GiB on each GPU and needs 14.3 for weights and one sequence of 2,048 tokens"),
    (0.1, 80, "both", 0, "Set it between 0.18 and 0.99."), (0.9, 20, "colocate", 5.4, "Set it between 0.72 and 0.72."),
    (0.9, 20, "colocate", 5.4, "trainer and auxiliary models keep 5.4."),
    (0.9, 12, "both", 0, "Raise explorer.rollout_model.tensor_parallel_size, or take a smaller model or larger GPUs."),
    (0.9, 12, "colocate", 0, "or mode=both with separate GPUs.")])
def test_an_engine_needs_room_for_its_weights_and_one_sequence(share, gib, mode, others, words):
    config = rft(mode=mode, explorer__rollout_model__gpu_memory_utilization=share)
    problem = fit.engine_problem(LARGE, config, gpus(1, float(gib)), others * GIB)
    assert problem is None if words is None else words in problem


@pytest.mark.parametrize(("cache", "gib", "words"), [
    (112, 24, None), (111, 24, "Set it between 112 and"), (8192, 24, "Set it between 112 and 5745 MiB."),
    (112, 16, "4.2 GiB for graphs and activations, 18.5 GiB in all")])
def test_a_cache_of_a_given_size_holds_a_sequence_and_fits(cache, gib, words):
    """2,048 tokens x 56 KiB are 112 MiB. 24 GiB less 14.1855 of weights, 4.2 and 4 MiB of log-probs leave 5,745 MiB."""
    config = rft(explorer__rollout_model__kv_cache_mib=cache, explorer__rollout_model__engines_per_gpu=1)
    problem = fit.engine_problem(LARGE, config, gpus(1, float(gib)))
    assert problem is None if words is None else (problem.key.endswith("kv_cache_mib") and words in problem)


@pytest.mark.parametrize(("settings", "words"), [
    ({"kv_cache_mib": 1500}, "2 engines 13.2 GiB a GPU: each with weights 0.9, cache for 62 sequences of 2,048 tokens, "
                             "graphs and activations 4.2"),
    ({"kv_cache_mib": 1500, "engines_per_gpu": 1}, "engine 6.6 GiB a GPU: weights 0.9"),
    ({"gpu_memory_utilization": 0.5, "engines_per_gpu": 4}, "4 engines 40.0 GiB a GPU: each with weights 0.9, cache"),
    ({"tensor_parallel_size": 2}, "engine 73.2 GiB a GPU: weights 0.5"), ({"engine_type": "openai"}, None)])
def test_the_plan_says_what_all_engines_of_a_gpu_take(settings, words):
    """Of each 0.92 GiB of weights and 1.46 of cache; a token 12,288 bytes. Two GPUs: 72 GiB and 1.2 of NCCL."""
    config = rft(**{f"explorer__rollout_model__{key}": value for key, value in settings.items()})
    assert [one.startswith(words) for _, one in fit.described(SMALL, config, gpus())[1:]] == [True] * bool(words)


@pytest.mark.parametrize(("settings", "weights", "beyond", "sleeping"), [
    ({"engines_per_gpu": 1}, 1, 2.2, 1.2), ({}, 20, 2.2, 1.2), ({}, 1, 0, 2.4), ({"engines_per_gpu": 2}, 1, 0, 2.4),
    ({"engines_per_gpu": 1, "kv_cache_mib": 64}, 1, 0, 1.2),
    ({"engines_per_gpu": 1, "engine_type": "transformers"}, 1, 0, 0)])
def test_one_engine_in_turns_with_a_trainer_holds_more_than_its_share(settings, weights, beyond, sleeping):
    """Two engines, of a GPU of 80 GiB where both weights are at most 14.4, have a tenth of their share for it. Each
    keeps 1.2 GiB while it sleeps."""
    config = rft(mode="colocate", synchronizer__sync_offset=0,
                 **{f"explorer__rollout_model__{key}": value for key, value in settings.items()})
    assert beyond_share(config, 80 * GIB, weights * GIB) == beyond * GIB
    assert asleep(config, 80 * GIB, weights * GIB) == sleeping * GIB
    assert asleep(config.but("mode", "both"), 80 * GIB, weights * GIB) == 0
    for key, value in (("mode", "both"), ("synchronizer.sync_offset", 1)):
        assert beyond_share(config.but(key, value), 80 * GIB, weights * GIB) == 0


def test_the_advice_on_engines_that_are_too_large_at_once_helps():
    """Whether the share or the size of the cache decides, and where a smaller cache makes room for a second engine."""
    for given in ({"gpu_memory_utilization": 0.5}, {"kv_cache_mib": 60000, "engines_per_gpu": 1},
                  {"kv_cache_mib": 60000}):
        config = rft(mode="colocate", synchronizer__sync_offset=1, trainer__overlap=True,
                     **{f"explorer__rollout_model__{key}": value for key, value in given.items()})
        (problem,) = fit.beyond_memory(SMALL, config, gpus(1, 100.0))
        key, value = re.search(r"Set (\S+)=(\S+),", problem).groups()
        assert key.rpartition(".")[2] == next(iter(given))
        assert fit.beyond_memory(SMALL, config.but(key, json.loads(value)), gpus(1, 100.0)) == []


@pytest.mark.parametrize(("seqs", "engines", "kind", "fits"), [
    (65536, "auto", "vllm", False), (65536, 2, "vllm", False), (32768, 2, "vllm", True),
    (65536, "auto", "transformers", True)])
def test_kept_log_probs_take_room_beside_the_share_of_an_engine(seqs, engines, kind, fits):
    """65,536 sequences x 2,050 positions x 4 bytes are 0.5 GiB, 1% of 40 is 0.4."""
    config = rft(**{f"explorer__rollout_model__{key}": value for key, value in (
        ("gpu_memory_utilization", 0.99), ("max_num_seqs", seqs), ("engines_per_gpu", engines), ("engine_type", kind))})
    problem = fit.engine_problem(LARGE, config, gpus(1, 40.0))
    assert (problem is None) == fits
    assert fits or "max_num_seqs sequences 0.5" in problem


def test_colocated_the_idle_trainer_keeps_its_weights_and_optimizer():
    """14 bytes a parameter, 6.4 GiB of 24, and 0.6 of its process; the engine's 0.9 are 21.6. 17.0 / 24 = 0.70."""
    config = rft(mode="colocate", trainer__enable_gradient_checkpointing=True, trainer__logprob_chunk_tokens=1024)
    (problem,) = fit.beyond_memory(SMALL, config, gpus(1, 24.0))
    wording(problem, "each of 2 engines has 10.8", "7.0", "between 0.08 and 0.7.")
    config.explorer.rollout_model.gpu_memory_utilization = 0.7
    assert fit.beyond_memory(SMALL, config, gpus(1, 24.0)) == []
    config.mode = "both"
    config.explorer.rollout_model.gpu_memory_utilization = 0.9
    assert fit.beyond_memory(SMALL, config, gpus(2, 24.0)) == []


def test_at_once_trainer_and_engines_are_added():
    """Engines hold half, and nine tenths may be used: the trainer's 65.2 GiB may be four tenths, of 163.1."""
    config = rft(mode="colocate", synchronizer__sync_offset=1, trainer__overlap=True,
                 explorer__rollout_model__gpu_memory_utilization=0.5)
    assert fit.beyond_memory(SMALL, config, gpus(1, 164.0)) == []
    (problem,) = fit.beyond_memory(SMALL, config, gpus(1, 160.0))  # 144 - 65.2 are 0.492 of it
    assert problem.key == "trainer.overlap"
    wording(problem, "gpu_memory_utilization=0.49")
    (problem,) = fit.beyond_memory(SMALL, config, gpus(1, 73.0))  # 0.5 GiB are left, less than the weights
    assert "gpu_memory_utilization" not in problem
    several = config.but("explorer.rollout_model.engines_per_gpu", 4)  # of 0.04 x 76 GiB each has 0.76, less than 0.96
    assert [fit.engine_problem(SMALL, one.but("explorer.rollout_model.gpu_memory_utilization", 0.04), gpus(1, 76.0))
            is None for one in (config, several)] == [True, False]
    for one, fits in ((config, True), (several, False)):
        (problem,) = fit.beyond_memory(SMALL, one, gpus(1, 76.0))
        assert ("gpu_memory_utilization=0.04" in problem) == fits
    config.trainer.overlap = "auto"
    assert fit.beyond_memory(SMALL, config, gpus(1, 160.0)) == []


@pytest.mark.parametrize(("tokens", "deciding"), [(16, "optimizer step 56.7"), (65536, "activations")])
def test_the_parts_of_the_memory_add_up_to_the_peak(tokens, deciding):
    """7.6 billion x 8 bytes at the step are 56.7 GiB; with many tokens the backward pass is higher."""
    (_, words), *_ = fit.described(LARGE, rft(trainer__max_token_len_per_gpu=tokens), gpus())
    assert deciding in words
    total, *parts = (float(number) for number in re.findall(r"\d+\.\d", words))
    assert sum(parts) == pytest.approx(total, abs=0.25)


@pytest.fixture
def judged():
    """A stage that takes turns on one GPU, with a reward model of the small size."""
    config = rft(mode="colocate", trainer__enable_gradient_checkpointing=True, trainer__logprob_chunk_tokens=1024,
                 explorer__rollout_model__gpu_memory_utilization=0.7)
    judge = element(AuxiliaryModel, {"model_path": "/judge"})
    config.explorer.auxiliary_models = [judge]
    return config, Sizes({question(named(judge, {})): asdict(SMALL)})


def test_colocated_a_reward_model_keeps_its_weights_too(judged):
    """0.7 of 24 are twice 8.4 GiB; trainer 6.4 + 0.6 and 0.494 billion x 2 bytes = 0.9: 24.7. 16.0 / 24 = 0.66."""
    config, sizes = judged
    kept = fit.judge_bytes(config, gpus(1, 24.0), sizes)
    assert kept == SMALL.critic * 2
    assert fit.judge_bytes(config, gpus(1, 24.0), Sizes()) == 0
    (problem,) = fit.beyond_memory(SMALL, config, gpus(1, 24.0), kept)
    wording(problem, "8.4", "24 GiB", "8.0", "0.08", "0.66")
    assert fit.beyond_memory(SMALL, config, gpus(1, 24.0)) == []


def test_a_reward_model_of_a_stage_above_has_the_size_of_what_that_stage_begins_with(judged):
    config, _ = judged
    config.explorer.auxiliary_models = [element(AuxiliaryModel, {"model_path": "x"}).but(
        "model_path", StageModel("judge", True))]
    starts = {"judge": Model.model_construct(model_path="/start")}
    sizes = Sizes({question(starts["judge"]): asdict(SMALL)}, starts)
    assert fit.judge_bytes(config, gpus(1, 24.0), sizes) == SMALL.critic * 2


def test_a_reward_model_takes_of_what_the_trainer_may_fill_where_they_share(judged):
    config, sizes = judged
    peak = training(SMALL, config, 2).peak / GIB
    room = gpus(1, (peak + 0.5) / USABLE)  # half a GiB to spare, and the reward model has 0.9
    problem = fit.trainer_problem(SMALL, config, room, fit.judge_bytes(config, room, sizes))
    wording(problem, "0.9")
    config.mode = "both"
    assert fit.judge_bytes(config, room, sizes) == 0
