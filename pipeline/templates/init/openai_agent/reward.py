"""The reward: what an answer is worth."""


def score(response: str, answer: str) -> dict[str, float]:
    """`accuracy` 1 where the last word of the response is the right number, else 0."""
    words = response.split()
    return {"accuracy": float(bool(words) and words[-1].rstrip(".") == answer)}
