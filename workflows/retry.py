"""A multi-turn workflow: asks again, with feedback, until the answer is correct.

Each turn is its own row, because the next prompt is rendered by the chat template, which may change earlier answers
from how they were sampled.
"""

from ouroboros.pipeline.settings.arguments.answers import RetryWorkflow
from ouroboros.pipeline.store.errors import DataError
from ouroboros.workflows.protocol.trajectory import Attempt, Trajectory
from ouroboros.workflows.task_at_hand import TaskAtHand

RETRY = RetryWorkflow()


def retry_workflow(prompt: list[int], task: TaskAtHand, max_env_steps=RETRY.max_env_steps,
                   feedback=RETRY.feedback) -> Attempt:
    """At most max_env_steps turns; ends when the reward component `accuracy` is 1 (solved).

    feedback: the user turn after a wrong answer, in a growing conversation; None: the original question is repeated. A
    turn earns its reward minus that of the turn before, so that the turns' rewards sum to the last one, which is the
    attempt's; its state is the prompt. It ends early when a whole response no longer fits (model.max_model_len), or
    when a response cannot be scored. Raises DataError without an `accuracy`.
    """
    messages, turns, before = list(task.messages), [], 0.0
    while True:
        reply = yield prompt
        judged = task.judge(reply)
        turns.append(Trajectory(
            prompt, reply.tokens, reply.logprobs, [1] * len(reply.tokens), reply.finish_reason,
            state=" ".join(map(str, prompt)), reward=None if judged.reward is None else judged.reward - before))
        if judged.reward is None or _is_solved(judged.accuracy) or len(turns) >= max_env_steps:
            return turns
        before = judged.reward
        if feedback is not None:
            messages += [{"role": "assistant", "content": judged.response}, {"role": "user", "content": feedback}]
            prompt = task.prompt(messages)
        if not task.has_room(prompt):
            return turns


def _is_solved(accuracy: float | None) -> bool:
    if accuracy is None:
        raise DataError("retry_workflow ends when a task is solved, and the reward functions return no component "
                        "`accuracy` (1 for solved). Name one that has it.")
    return accuracy >= 1.0
