"""Games of textarena for one player, played by scripts: to a win, and not."""

import json
import subprocess

import pytest

from ouroboros.pipeline.store.files import HOME
from ouroboros.workflows.attempts.isolated import host
from tests.tasks.rows import rows
from tests.workflows.test_tool_workflows import call, roll  # noqa: F401

pytestmark = pytest.mark.tasks

GAME = "ouroboros.workflows.environments.text_game:TextGame"
HANOI = ["A C", "A B", "C B", "A C", "B A", "B C", "A C"]
PLAYS = {  # game -> seed, moves that win, moves that do not
    "GuessTheNumber-v0": (3, ["10", "5", "8"], ["10", "5"]),
    "TowerOfHanoi-v0": (3, HANOI, HANOI[:-1]),
    "Mastermind-v0": (3, ["1 2 3 4", "2 5 6 4"], ["1 2 3 4"]),
}


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.chdir(HOME)  # where .packages/ is
    host.cache_clear()


@pytest.mark.parametrize("name", PLAYS)
@pytest.mark.parametrize("wins", [True, False])
def test_a_game_is_won_by_its_moves_alone(roll, name, wins):  # noqa: F811
    seed, *plays = PLAYS[name]
    said = [*(call("move", text=f"[{one}]") for one in plays[not wins]), "done"]
    outcome, engine = roll("tool_call_workflow", said, question="Play this game.", longest=40000, max_rounds=10,
                           answer=json.dumps({"game": name, "seed": seed}), environment_class=GAME)
    assert (outcome.reason, outcome.components["accuracy"] == 1) == (None, wins)
    assert engine.prompts[-1].endswith("the game is over:") is wins


def test_the_tasks_of_a_game_differ_in_their_seeds():
    made = [json.loads(one["answer"]) for one in rows("textarena", "TowerOfHanoi-v0", size=5, seed=2)]
    assert made == [{"game": "TowerOfHanoi-v0", "seed": seed} for seed in range(2, 7)]


@pytest.mark.parametrize("name", ["Poker-v0", "Towr-v0"])
def test_a_game_of_several_players_and_an_unknown_one_are_refused(name):
    with pytest.raises(subprocess.CalledProcessError):
        rows("textarena", name, size=1)
