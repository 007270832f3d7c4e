"""The teacher of a distillation in a Trinity-RFT configuration: there a served auxiliary model that a workflow asks."""

from typing import Any

from pipeline.bridges.source import Given
from pipeline.bridges.translation import Path, Translation
from pipeline.settings.algorithms import WITH_TEACHER

WORKFLOWS = ("on_policy_distill_workflow", "on_policy_distill_math_workflow")
FIRST = ("explorer", "auxiliary_models", 0)  # the original's workflow asks that one
ANOTHER = "a stage has one teacher, model.teacher_model_path: the first of these models."
ELSEWHERE = ("how a teacher is served: here the trainer's own GPUs score by it, once for the rows of an explorer step, "
             "and in between it waits in host memory.")


def distils(values: dict[Path, Any]) -> bool:
    """Whether a configuration trains on a teacher's log-probs."""
    return any(value in (WORKFLOWS if str(path[-1]).endswith("workflow_type") else WITH_TEACHER)
               for path, value in values.items()
               if path[-1] == "algorithm_type" or str(path[-1]).endswith("workflow_type"))


def translated(made: Translation, given: Given, stage: Path, path: Path, values: dict[Path, Any]) -> bool:
    """Puts a key of the teacher where it belongs; False for any other key. stage, path: given.path, cut in two."""
    if path[:2] != FIRST[:2] or len(path) < 4 or not distils(values):
        return False
    if path[2] != FIRST[2]:
        made.leave(given, ANOTHER)
    elif path[3:] == ("model_path",):
        made.rename(given, (*stage, "model", "teacher_model_path"), given.value, given.key)
    else:
        made.leave(given, ELSEWHERE)
    return True


def say_reward(made: Translation, values: dict[Path, Any]) -> None:
    """What responses are rewarded by where the workflow brought a reward, or none: evaluations count what is solved."""
    reward = ("buffer", "explorer_input", "default_reward_fn_type")
    named = sorted({str(value) for value in values.values() if value in WORKFLOWS})
    if named and reward not in made.entries:
        made.choose(reward, "accuracy_reward", f"for reports and evaluations; {named[0]} learns from the teacher alone")
