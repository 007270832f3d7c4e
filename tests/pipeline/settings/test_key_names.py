"""The nearest right key: among the neighbours first, sections too."""

import pytest

from ouroboros.pipeline.settings.key_names import nearest_key
from tests.golden.messages import wording

TASKSET = "buffer.explorer_input.taskset"


@pytest.mark.parametrize(("key", "meant"), [
    ("algoritm", "algorithm"), ("bufer", "buffer"), (f"{TASKSET}.formt", f"{TASKSET}.format"),
    ("buffer.explorer_input.eval_tasksets.0.frmat", "buffer.explorer_input.eval_tasksets.0.format"),
    ("model.intt", "model.init"), ("explorer.rolout_model", "explorer.rollout_model"),
    ("buffer.explorer_inputs", "buffer.explorer_input"), (f"{TASKSET}.rollout_arg", f"{TASKSET}.rollout_args"),
    ("bufer.batch_sze", "buffer.batch_size"),  # two parts at once
    ("algorithm.policy_loss_fn_arg.clip_range", "algorithm.policy_loss_fn_args.clip_range"),  # below, all is free
    ("modle", "model"), ("modle.model_path", "model.model_path"), ("mdoe", "mode"), ("sede", "seed"),  # letters swapped
    ("model.pth", "model.model_path"), ("cluster.gpus", "cluster.gpu_per_node"),  # a word of the name
    ("explorer.max_response_tokens", "model.max_response_tokens"), ("optimizer.lr", "algorithm.optimizer.lr"),
    ("batch_size", "buffer.batch_size"), ("algorithm.lr", "algorithm.optimizer.lr"),  # in another place
])
def test_the_nearest_key(key, meant):
    wording(nearest_key(key), f"'{meant}'")


@pytest.mark.parametrize("key", ["zzz", "algorithm.foo"])
def test_what_is_near_to_nothing_has_no_advice(key):
    assert nearest_key(key) == ""


def test_names_beside_the_sections_count_at_the_top_alone():
    wording(nearest_key("recipee", ["recipe"]), "'recipe'")
    assert nearest_key("buffer.recipee", ["recipe"]) == ""
