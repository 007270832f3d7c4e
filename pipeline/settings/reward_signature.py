"""What a reward function of the user's is called with, by the names of its parameters."""

from collections.abc import Sequence

GIVEN = ("response", "answer")  # what a reward function is called with, by position
OF_A_BATCH = ("responses", "completions")  # a parameter of such a name: the function takes all responses together
UNKNOWN = ("completion_ids", "trainer_state")  # what TRL gives such a function besides, and we do not


def batch_parameters(required: Sequence[str]) -> dict[str, str]:
    """Parameter -> prompts, responses or answers, of a function that takes all responses together; else nothing.

    required: its parameters without a default. The first that is neither `prompts` nor the responses gets the truths.
    """
    responses = [name for name in required if name in OF_A_BATCH][:1]
    truths = [name for name in required if name not in (*OF_A_BATCH, *UNKNOWN, "prompts")][:1]
    taken = {"responses": responses, "answers": truths, "prompts": [name for name in required if name == "prompts"]}
    return {name: what for what, names in taken.items() for name in names} if responses else {}


def wrong_reward(name: str, taken: Sequence[str], takes_more: bool) -> str | None:
    """The line for a reward function of the user's that cannot be called with a response and its truth.

    taken: its parameters that are given by position; takes_more: it has *others. A function of all responses is called
    by name.
    """
    if takes_more or len(taken) >= len(GIVEN) or batch_parameters(taken):
        return None
    return (f"'{name}' has {len(taken)} parameters by position ({', '.join(taken) or 'none'}); it is called with "
            f"{len(GIVEN)}, the response and its truth: needed f({', '.join(GIVEN)}, ...).")
