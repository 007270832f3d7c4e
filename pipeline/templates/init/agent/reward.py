"""The reward of this project: whether the last guess is the number."""


def score(response: str, answer: str) -> dict[str, float]:
    """`accuracy` 1 for the right number, else 0. response: that of the last turn.

    The workflow of this project needs `accuracy`. Elsewhere a function may return one plain number; evaluations then
    show its mean.
    """
    return {"accuracy": float(response.strip() == answer)}
