"""docs/add-an-algorithm.md: its code does what it says, and its tables are complete."""

import re
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from ouroboros.operators.choice import chosen_advantage, chosen_loss
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.compose.recipe import effective
from ouroboros.pipeline.settings.algorithm import Algorithm
from ouroboros.pipeline.settings.algorithms import filled
from ouroboros.pipeline.settings.columns import columns

PAGE = (Path(__file__).parents[2] / "docs" / "add-an-algorithm.md").read_text()


def blocks() -> dict[str, str]:
    """path -> content of the files that the page shows."""
    return dict(re.findall(r"^`([\w/.]+)`:\n\n```\w+\n(.*?)^```$", PAGE, re.M | re.S))


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The page's project as the current directory."""
    for path, text in blocks().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_the_code_is_short():
    """30 lines; the rest are names."""
    assert set(blocks()) == {"mine/parts.py", "conf/algorithm/mine.yaml"}
    assert sum(len(text.splitlines()) for text in blocks().values()) <= 30


def test_the_advantage_of_the_page(project):
    """Rewards 0 0 1 of one group have the median 0, 0 1 of another 1/2; twice what is left."""
    batch = pa.table({"experience_id": list("abcde"), "group_id": list("xxxyy"), "reward": [0.0, 0.0, 1.0, 0.0, 1.0]})
    function = chosen_advantage("mine.parts:median_baseline", {"scale": 2.0})
    found = function(batch).sort_by("experience_id")
    assert found["advantage"].to_pylist() == [0.0, 0.0, 2.0, -1.0, 1.0]


def test_the_loss_of_the_page(project):
    """Ratios 1 and 4, the second cut at 3: losses A and 3 A at log pi = -1, with gradients -1 and -3."""
    given = {"logprobs": torch.tensor([-1.0, -1.0], requires_grad=True), "advantages": torch.ones(2),
             "old_logprobs": -1.0 - torch.tensor([1.0, 4.0]).log()}
    function = chosen_loss("mine.parts:truncated", {"cap": 3.0})
    loss, statistics = function(**given)
    assert loss.tolist() == pytest.approx([1.0, 3.0])
    assert statistics["clip_fraction"].tolist() == [0.0, 1.0]
    loss.sum().backward()
    assert given["logprobs"].grad.tolist() == pytest.approx([-1.0, -3.0])


def test_the_commands_of_the_page_compose(project):
    algorithm = effective(config := compose(["algorithm=mine"]), config.stages[1]).algorithm
    assert algorithm.policy_loss_fn_args == {"cap": 3.0}
    alone = compose(["algorithm.policy_loss_fn=mine.parts:truncated"])
    assert effective(alone, alone.stages[1]).algorithm.advantage_fn == "grpo"


def test_the_page_has_every_column():
    ppo, dpo = (columns("policy_loss_fn", filled(Algorithm(algorithm_type=kind))) for kind in ("ppo", "dpo"))
    shown = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", PAGE, re.M))))
    assert {*ppo, *dpo} == shown
