"""What evaluations count here. Training needs no reward: it goes by the pairs alone."""


def score(response: str, answer: str) -> dict[str, float]:
    """`accuracy` 1 for the reply that is preferred, else 0. A float alone would give evaluations nothing to count."""
    return {"accuracy": float(response == answer)}
