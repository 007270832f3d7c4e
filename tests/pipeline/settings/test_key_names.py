"""The nearest right key: among the neighbours first, sections too."""

import pytest

from ouroboros.pipeline.settings.key_names import nearest_key

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
    ("batch_size", "buffer.batch_size"), ("algorithm.learning_rate", "algorithm.optimizer.lr"),  # elsewhere
    ("recipee", "recipe"), ("buffer.recipee", None),  # a name that is none of a section, at the top alone
    ("zzz", None), ("algorithm.foo", None)])
def test_the_nearest_key(key, meant):
    found = nearest_key(key, ["recipe"])
    assert f"'{meant}'" in found if meant else found == ""
