"""Arguments of the operators on experience: what filters, scores and rewards attempts between rollout and training."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ouroboros.pipeline.settings.arguments.base import Arguments, Operator, described


class Shaping(Arguments):
    """One change of the reward by a score: an element of reward_shaping_configs."""
    stats_key: str = Field(description="score of an earlier operator, or a component of the reward")
    op_type: Literal["ADD", "SUB", "MUL", "DIV"] = Field("ADD", description="what is done with weight times the score")
    weight: float = Field(1.0, description="factor of the score")


class RewardShaping(Operator):
    """The reward plus, minus, times or divided by weight times a score, for each configuration in turn."""
    changes_reward = True
    reward_shaping_configs: list[dict[str, Any]] = Field(description="stats_key, op_type and weight each")


class RewardFilter(Operator):
    """Attempts whose reward is at least the threshold."""
    threshold: float = Field(0.0, description="least reward")


class RewardStdFilter(Operator):
    """Groups of at least two attempts whose rewards spread: population std above the threshold."""
    threshold: float = Field(0.0, ge=0, description="std up to which a group is dropped")


class QualityReward(Operator):
    """The reward plus weight times the score quality, the mean of what operators before found of it, from 0 to 1."""
    changes_reward = True
    weight: float = Field(1.0, description="factor of the score")


class DiversityReward(Operator):
    """The reward plus weight times the score diversity, from 0 to 1: how few words a response shares with its group."""
    changes_reward = True
    weight: float = Field(1.0, description="factor of the score")


class DataJuicer(Operator):
    """A Data-Juicer recipe: a file, or operators with name and args."""
    operators: list[dict[str, Any]] = Field([], description="name and args each")
    config_path: str | None = Field(None, description="recipe in Data-Juicer's own YAML")
    num_process: int = Field(4, ge=1, le=256, description="attempts for which a server is asked at once")


DATA_JUICER, SHAPING = "data_juicer", "reward_shaping_mapper"
EXPERIENCE = {
    DATA_JUICER: DataJuicer,
    "diversity_reward": DiversityReward,
    "invalid_reward_filter": described(Operator, "Attempts with a finite reward: always so, all others failed."),
    "pass_rate_calculator": described(Operator, "All attempts; the score pass_rate is their group's mean reward."),
    "quality_reward": QualityReward,
    "reward_filter": RewardFilter,
    SHAPING: RewardShaping,
    "reward_std_filter": RewardStdFilter,
}
CHANGE_REWARDS = tuple(name for name, one in EXPERIENCE.items() if one.changes_reward)

def asks_models(operators: list[dict[str, Any]]) -> bool:
    """Returns whether one of these operators asks a server's model, or draws at random: it may answer anew otherwise.

    Of a recipe file its text is looked at, where it can be read.
    """
    for one in operators:
        name, args = one["name"], one.get("args") or {}
        inner = args.get("operators") or []
        with suppress(OSError, UnicodeDecodeError):
            text = Path(args["config_path"]).read_text(encoding="utf-8") if args.get("config_path") else name
            if VARYING.search(text) or (name == DATA_JUICER and asks_models(inner)):
                return True
    return False


VARYING = re.compile(r"(?<![a-z])(?:llm_\w+_filter|random_selector|sentence_augmentation_mapper|nlpaug_en_mapper|"
                     r"\w+_llm_\w+|(?:generate|optimize|calibrate|extract|dialog)_\w+_mapper|llm_extract_mapper)")
_OWN = "its code would not enter the stage's identity; needed module:function, an operator of your own."
# operators of Data-Juicer that do not go with experience -> why
UNFIT = {
    "python_file_mapper": _OWN,
    "python_lambda_mapper": _OWN,
    "mask_response_truncated": "set algorithm.mask_truncated_completions; else what is masked is the workflow's to "
                               "say: an action_mask of 0, or a filter here.",
    "dapo_dynamic_sampling": "set algorithm.max_resample_rounds, by which other groups take the place of those that "
                             "teach nothing.",
}
