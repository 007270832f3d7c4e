"""The functions of docs/rewards.md and docs/own-rewards.md, copied from the page and called as a run calls them."""

import re
from types import SimpleNamespace

import pytest

from ouroboros.pipeline.store.files import CONF
from ouroboros.workflows.attempts.user_reward import Rule

PAGE = "\n".join((CONF.parent / "docs" / name).read_text(encoding="utf-8") for name in ("own-rewards.md", "rewards.md"))
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)


def of_page(name: str):
    """The last function of that name, as its block defines it."""
    names: dict = {}
    for block in BLOCKS:
        if f"def {name}(" in block:
            names = {}
            exec(block, names)
    return names[name]


@pytest.mark.parametrize(("name", "rewards"), [
    ("shorter_than_the_mean", [1.0, 0.0]),  # 1 and 4 characters
    ("judged", [0.5, 0.5]), ("compute_score", [1.0, -1.0]), ("reward_func", [1.0, 0.0])])
def test_a_function_of_the_page_is_a_reward(name, rewards):
    found = Rule(of_page(name), {}, 0)([[], []], ["4", "five"], ["4", "6"], [1, 4],
                                       columns=[{"data_source": "sums"}] * 2)
    assert found == [{"reward": reward} for reward in rewards]


def test_every_function_of_the_page_is_called():
    assert len(BLOCKS) == 7
    passed = Rule(of_page("passed"), {"at_least": "${column:needed}"}, 0)
    assert passed([[]], ["a b"], [""], [3], columns=[{"tests": ["a", "c"], "needed": 0.5}]) == [
        {"accuracy": 1.0, "share": 0.5}]
    names: dict = {}
    exec(BLOCKS[0], names)
    assert Rule(names["score"], {}, 0)([[]], [" 4 "], ["4"], [1]) == [{"reward": 1.0}]


@pytest.mark.parametrize(("said", "reward"), [("Yes.", 1.0), ("No.", 0.0)])
def test_the_workflow_of_the_page_asks_the_policy_and_the_judge(said, reward):
    def client(text, **more):
        reply = SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=text))])
        return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=lambda **_: reply)), **more)

    workflow = of_page("polite")
    workflow.__globals__["OpenAI"] = lambda **_: client("Thank you.")
    endpoint = SimpleNamespace(base_url="http://127.0.0.1:9/v1", api_key="none", model="policy")
    assert workflow(SimpleNamespace(messages=[]), endpoint, [client(said, model_path="judge")]) == {"polite": reward}
