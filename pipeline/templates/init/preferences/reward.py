"""What evaluations count here. Training needs no reward: it goes by the pairs alone."""


def score(response: str, answer: str) -> dict[str, float]:
    """`accuracy` 1 for the preferred reply, else 0: the share that evaluations show."""
    return {"accuracy": float(response == answer)}
