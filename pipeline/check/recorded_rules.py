"""What an advantage function requires of recorded rows: groups, greedy baselines, states.

An offline stage trains on what another stage explored, and `ouro replay` applies algorithms to a batch recorded for
another one. Missing properties are reported before anything runs, with the setting of the exploring stage that adds it.
"""

from typing import Any

from pipeline.check.rules import COMPARE
from pipeline.check.turn_rules import state_problems
from pipeline.plan.modes import Line


def problems(config: dict[str, Any]) -> list[str]:
    """Lists what the rows of offline stages lack, one line each. The stages must have valid names and order."""
    line = Line(config)
    pairs = ((name, line.explored(name)) for name, kind in line.kinds.items() if kind == "offline")
    return [f"stage '{name}': {problem}" for name, explorer in pairs if explorer
            for problem in lacking(line.settings[name]["algorithm"], line.settings[explorer], f"stages.{explorer}.")]


def lacking(algorithm: dict[str, Any], explored: dict[str, Any], place: str) -> list[str]:
    """Lists what the rows lack for an algorithm, one line each.

    algorithm: the section, with defaults. explored: the settings of the stage that explored. place: prefix of its
    settings: `stages.look.`, or empty.
    """
    function, made = algorithm["advantage_fn"], explored["algorithm"]
    found = []
    if function in COMPARE and (made["repeat_times"] or 1) < 2:
        found.append(f"algorithm.advantage_fn={function} compares the rollouts of a group, and the rows are of groups "
                     f"of one. Needed {place}algorithm.repeat_times of at least 2.")
    if function == "remax" and not made["greedy_baseline"]:
        found.append("algorithm.advantage_fn=remax needs the column baseline_reward, the reward of a greedy response "
                     f"to each task, which the rows lack. They have it with {place}algorithm.greedy_baseline=true.")
    return found + state_problems(function, explored, place)
