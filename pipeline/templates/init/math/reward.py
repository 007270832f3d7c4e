"""The reward of this project: how near a response is to the right number."""


def score(response: str, answer: str) -> dict[str, float]:
    """1 for the right number, less the further away another number is, 0 for no number.

    The components are summed and are columns of the tables. `accuracy`, 1 for solved and 0 for not, is what evaluations
    count. A function may return one plain number instead; evaluations
    then show its mean.
    """
    try:
        distance = abs(int(response) - int(answer))
    except ValueError:
        return {"accuracy": 0.0, "near": 0.0}
    return {"accuracy": float(distance == 0), "near": 0.0 if distance == 0 else 0.1 / distance}
