"""The tool and the reward of the agents whose runs are killed; their processes import them from here."""

from ouroboros.workflows.tools import tool


@tool(idempotent=True)
def calc(e: str) -> str:
    """The value of a product such as 12*34."""
    left, right = e.split("*")
    return str(int(left) * int(right))


def digits(response: str, answer: str) -> float:
    """The share of digits in a response. A model of a few steps solves nothing, but its replies differ in this, so
    advantages are not zero and weights follow from what was sampled."""
    return sum(map(str.isdigit, response)) / max(len(response), 1)
