"""The workflow of this project: a guess, a hint, a second guess."""

from ouroboros.workflows.trajectory import Trajectory


def guess_twice(prompt: list[int], task):
    """Yields token ids to be continued, receives a reply, returns what is trained on: a Trajectory for each turn.

    task: the task at hand (messages, answer, judge, prompt): docs/workflows.md. Both turns earn the reward of the
    last.
    """
    first = yield prompt
    judged = task.judge(first)
    turns = [Trajectory(prompt, first.tokens, first.logprobs, [1] * len(first.tokens), first.finish_reason)]
    if judged.accuracy == 1.0:
        return turns
    asked = task.prompt([*task.messages, {"role": "assistant", "content": judged.response},
                         {"role": "user", "content": hint(judged.response, task.answer)}])
    second = yield asked
    turns.append(Trajectory(asked, second.tokens, second.logprobs, [1] * len(second.tokens), second.finish_reason))
    return turns


def hint(guess: str, number: str) -> str:
    """What the environment says of a wrong guess."""
    if guess not in ("1", "2", "3"):
        return "1, 2 or 3"
    return "higher" if int(guess) < int(number) else "lower"
