"""On-policy distillation of veRL: the teacher, the loss that is ours, and what makes it another one."""

import pytest

from ouroboros.commands import cli
from tests.bridges import from_verl, launch, written

LOSS, TEACHERS = "distillation.distillation_loss", "distillation.teacher_models"
TASK = ("algorithm.adv_estimator=grpo", "data.train_files=/d/gsm8k/train.parquet", "data.response_key=answer",
        "actor_rollout_ref.model.path=/models/student", "actor_rollout_ref.rollout.n=1", "distillation.enabled=True")
ONE = f"{TEACHERS}.teacher_model.model_path=/models/teacher"
OURS = (f"{LOSS}.loss_mode=k1", f"{LOSS}.use_policy_gradient=True", f"{LOSS}.use_task_rewards=False")


@pytest.mark.parametrize("teacher", [ONE, f"+{TEACHERS}.gsm8k.model_path=/models/teacher"])
def test_the_teacher_is_ours(teacher):
    made = from_verl(launch(*TASK, teacher, *OURS, f"{LOSS}.topk=64", f"{LOSS}.clip_ratio_high=0.28",
                            "distillation.nnodes=1", "actor_rollout_ref.actor.use_kl_loss=True",
                            "actor_rollout_ref.actor.clip_ratio_high=0.9"))
    found = written(made)
    assert {key: found.get(key) for key in ("algorithm.algorithm_type", "model.teacher_model_path",
                                            "algorithm.policy_loss_fn_args.clip_range_high")} == {
        "algorithm.algorithm_type": "on_policy_distill", "model.teacher_model_path": "/models/teacher",
        "algorithm.policy_loss_fn_args.clip_range_high": 0.28}  # of the distillation's own loss
    assert "algorithm.kl_loss_fn" not in found
    assert "algorithm.advantage_fn" not in found
    assert (made.lacking, made.left_out) == ({}, [])


def test_it_composes(tmp_path):
    (tmp_path / "run.sh").write_text(launch(*TASK, ONE, *OURS))
    assert cli.main(["import", "verl", str(tmp_path / "run.sh"), "--stdout"]) == 0


@pytest.mark.parametrize("other", [
    (ONE, *OURS[1:]), (ONE, OURS[0], OURS[2]), (ONE, *OURS[:2]), (ONE, f"{LOSS}.loss_mode=forward_kl_topk", *OURS[1:]),
    (ONE, f"{LOSS}.loss_mode=$(cat mode)", *OURS[1:]), OURS,
    (f"+{TEACHERS}.a.model_path=/a", f"+{TEACHERS}.b.model_path=/b", *OURS)])
def test_another_loss_or_several_teachers_are_incomplete(other):
    made = from_verl(launch(*TASK, *other))
    assert written(made)["algorithm.algorithm_type"] == "on_policy_distill"
    assert set(made.lacking) == {"judge or teacher"}


def test_a_problem_of_a_stage_is_printed_as_it_is(tmp_path, capsys):
    (tmp_path / "run.sh").write_text(launch(*TASK, *OURS))  # no teacher at all
    assert cli.main(["import", "verl", str(tmp_path / "run.sh"), "--stdout"]) == 1
    assert "  stage 'rft': algorithm.advantage_fn=on_policy_distill:" in capsys.readouterr().err


def test_distillation_that_is_off_is_no_distillation():
    made = from_verl(launch(*TASK[:-1], ONE, "distillation.enabled=False"))
    assert (written(made)["algorithm.algorithm_type"], made.lacking, made.left_out) == ("grpo", {}, [])
    assert "model.teacher_model_path" not in written(made)
