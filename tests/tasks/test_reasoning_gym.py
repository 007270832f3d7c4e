"""Every generator of reasoning-gym: its own answers are right, also with words around them, and others are not."""

import json
from collections import Counter

import pytest
from tabulate import tabulate

from ouroboros.workflows.attempts.packaged_rewards import extracted, reasoning_gym_reward
from tests.tasks.rows import of_every_generator, rows

pytestmark = pytest.mark.tasks
SIZE = 2
HOSTILE = ("__import__('os').system('touch /tmp/x')", "9**9**9**9", "(" * 10_000, "\0")
# without an answer in the row: where the metadata has one
ELSEWHERE = {"graph_color": lambda about: json.dumps(about["possible_answer"]),
             "rubiks_cube": lambda about: about["example_correct_answer"]}
LAX = {"game_of_life_halting", "puzzle24"}  # what the package's scorers pay beside answers: docs/tasks.md
UNKNOWN = {"boxnet", "rush_hour", "propositional_logic"}  # a task has several answers, and none is said


def own(name: str, row: dict) -> str:
    return ELSEWHERE[name](row["metadata"]) if name in ELSEWHERE else row["answer"]


def forms(answer: str) -> dict[str, str]:
    """Replies that give an answer."""
    return {"tagged": f"<answer>{answer}</answer>", "on its lines": f"So:\n<answer>\n{answer}\n</answer>\nDone.",
            "behind a thought": f"<think>Not <answer>7</answer>, no.</think>\n<answer>{answer}</answer>",
            "after another": f"<answer>zzz</answer> No: <answer>{answer}</answer>"}


def wrong(name: str, row: dict, others: list[str], hostile: bool) -> dict[str, str]:
    """Replies that give another answer, or none; hostile: also such as would harm who evaluates them."""
    given = {"empty": "", "empty tags": "<answer></answer>", "words": "<answer>I cannot tell.</answer>",
             "an open thought": f"<think><answer>{own(name, row)}</answer>",
             **{f"hostile {at}": f"<answer>{one}</answer>" for at, one in enumerate(HOSTILE if hostile else ())}}
    different = next((one for one in others if one != own(name, row)), None)
    return given | ({"of another task": f"<answer>{different}</answer>"} if different else {})


def test_all_generators():
    tasks = of_every_generator(SIZE)
    assert len(tasks) == 106
    asked = []
    for name, found in tasks.items():
        others = [own(name, row) for row in found if name not in UNKNOWN]
        for row in found:
            right = forms(own(name, row)) if name not in UNKNOWN else {}
            asked += [(name, "right", form, reply, row) for form, reply in right.items()]
            asked += [(name, "wrong", form, reply, row) for form, reply in wrong(
                name, row, others, row is found[0]).items()]
            if name not in UNKNOWN:
                asked.append((name, "bare", "bare", f"The answer is {own(name, row)}", row))
    found = reasoning_gym_reward([one[3] for one in asked], [one[4]["answer"] for one in asked],
                                 [one[4]["metadata"] for one in asked], 1.0)
    solved = [(*one[:4], judged["accuracy"]) for one, judged in zip(asked, found, strict=True)]
    limits = Counter((one[0], one[2]) for one, judged in zip(asked, found, strict=True) if judged.notes)
    print(len(solved), "replies;", "at a limit:", dict(limits))
    missed = Counter((name, form) for name, kind, form, _, accuracy in solved if kind == "right" and not accuracy)
    paid = Counter((name, form) for name, kind, form, _, accuracy in solved if kind == "wrong" and accuracy)
    bare = Counter(name for name, kind, *_, accuracy in solved if kind == "bare" and accuracy)
    print(tabulate([(name, bare[name], SIZE) for name in tasks], headers=("generator", "bare", "of")))
    print("missed", dict(missed), "\npaid", dict(paid))
    assert (dict(missed), {name for name, _ in paid} - LAX) == ({}, set())


def test_two_sets_share_no_question():
    train, held = (rows("reasoning-gym", "gsm_symbolic", split, size=size, seed=seed)
                   for split, size, seed in (("train", 300, 1), ("test", 60, 2)))
    assert (len(train), len(held)) == (300, 60)
    assert not {one["question"] for one in train} & {one["question"] for one in held}
    again = rows("reasoning-gym", "gsm_symbolic", "train", size=301, seed=1)
    assert again[:300] == train


def test_a_bare_answer_of_gsm_symbolic_is_found():
    for row in rows("reasoning-gym", "gsm_symbolic", "train", size=300, seed=1):
        assert extracted(f"We add 1 and 2. The answer is {row['answer']}.", row["answer"]) == row["answer"]
