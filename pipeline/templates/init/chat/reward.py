"""The reward of this project: rules that a reply must keep."""

import json


def score(response: str, answer: str) -> dict[str, float]:
    """A quarter for each rule of the row that is kept, and `accuracy` 1 when all are.

    answer: the column `rules` as JSON: the word that the reply begins with, a keyword in it, its greatest length.
    The components are summed and are columns of the tables; evaluations count `accuracy`. A function may return
    one plain number instead; evaluations then show its mean.
    """
    rules = json.loads(answer)
    kept = {
        "begins": response.startswith(rules["begins"] + " "),
        "keyword": rules["contains"] in response,
        "ending": response.endswith("!"),
        "length": 0 < len(response) <= rules["longest"],
    }
    return {"accuracy": float(all(kept.values())), **{rule: 0.25 * holds for rule, holds in kept.items()}}
