"""The reward of this project: whether the last guess is the number."""


def score(response: str, answer: str) -> dict[str, float]:
    """`accuracy` 1 for the right number, else 0. response: that of the last turn.

    A function that returns one plain number works too, where no evaluation is wanted: evaluations, and the workflow of
    this project, need `accuracy`.
    """
    return {"accuracy": float(response.strip() == answer)}
