"""The agent against replies that are written here, in place of a model: no GPU, and no training."""

import json
import subprocess
import sys

import pytest
from reward import score
from tools import price


def test_the_tool_knows_the_prices():
    assert price("plum") == 3
    with pytest.raises(KeyError):
        price("stone")


def test_the_last_number_is_rewarded():
    assert score("Two plums cost 6.", "6") == {"accuracy": 1.0}
    assert score("Two plums cost 5", "6") == score("", "6") == {"accuracy": 0.0}


def test_the_agent_looks_up_the_price_and_answers(tmp_path):
    """The first task of data/train.jsonl: 2 plums, at 3 cents each."""
    replies = tmp_path / "replies.json"
    replies.write_text(json.dumps(['[price(fruit="plum")]', "They cost 6"]), encoding="utf-8")
    shown = subprocess.run([sys.executable, "-m", "ouroboros", "debug", "workflow", "project", "--script", replies],
                           capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "reward 1 (accuracy=1)" in shown.stdout
