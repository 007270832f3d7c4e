"""Arguments of judge_reward: the judge, and the rubric by which it judges."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from ouroboros.pipeline.settings.arguments.addresses import NEEDED_ADDRESS, NEEDED_VARIABLE, is_address, is_variable
from ouroboros.pipeline.settings.arguments.base import LONGEST, Reward

FORMS = {"judge_url": (is_address, NEEDED_ADDRESS), "judge_key_env": (is_variable, NEEDED_VARIABLE)}


class Criterion(BaseModel):
    """One question of a rubric. choices: from the worst to the best, which are worth 0 to 1 in equal steps; of a
    negative weight, whose question is about a fault, 1 to 0."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    name: str = Field(pattern=r"^\w[\w-]*$")
    question: str = Field(min_length=1)
    weight: float = 1.0
    choices: tuple[str, ...] = Field(("no", "yes"), min_length=2)

    def worth(self, choice: str) -> float:
        worth = self.choices.index(choice) / (len(self.choices) - 1)
        return worth if self.weight > 0 else 1 - worth

    @field_validator("weight")
    @classmethod
    def _weighs(cls, value: float) -> float:
        if value == 0:
            raise ValueError("needed a number other than 0")
        return value


def rubric_of(value: Any) -> list[Criterion]:
    """The criteria in a list of mappings, or in its JSON text. Raises ValueError."""
    try:
        listed = json.loads(value) if isinstance(value, str) else value
        found = [Criterion.model_validate(_named(place, one)) for place, one in enumerate(listed, 1)] if isinstance(
            listed, list) else []
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "".join(f", {part}" for part in first["loc"])
        why = "needed a mapping {name, question, weight, choices}" if not place else first["msg"]
        raise ValueError(f"a criterion{place}: {why}") from error
    except (json.JSONDecodeError, RecursionError):
        found = []
    if not found or len({one.name for one in found}) < len(found):
        raise ValueError("needed a list of criteria {name, question, weight, choices} with names that differ, or its "
                         "JSON")
    return found


def _named(place: int, one: Any) -> Any:
    """A criterion of Rubrics as Rewards (arXiv:2507.17746), {title, description, weight}, by our names."""
    if not isinstance(one, dict) or "description" not in one:
        return one
    return {"name": f"criterion_{place}", "question": one["description"], "weight": one.get("weight", 1.0)}


class JudgeReward(Reward):
    """The judgement of a model of explorer.auxiliary_models, of a server, or of the policy, by rubric or in a group
    (RULER)."""
    reads_truths = True
    judge_url: str | None = Field(None, description="base_url of the server, up to and with /v1; null: the model "
                                                    "judge_model of explorer.auxiliary_models, or without one the "
                                                    "policy that answered")
    judge_model: str | None = Field(None, validate_default=True, description=(
        "name of the model on the server, or without judge_url in explorer.auxiliary_models"))
    judge_key_env: str | None = Field(None, description="environment variable with the API key; null: none is needed")
    rubric: Any = Field(None, description="criteria {name, question, weight, choices}; null: the task's truth has them")
    compare: bool = Field(False, description="whether one request compares the answers to a prompt (RULER), with "
                                             "scores from 0 to 1")
    instructions: str | None = Field(None, description="what the judge should know besides")
    structured: bool = Field(True, description="ask for JSON by response_format, or a mask of the policy; false: words")
    max_tokens: int = Field(2048, ge=1, description="longest judgement, tokens")
    judge_timeout: float = Field(120.0, ge=1, le=LONGEST, description="seconds of a request, which is then repeated")
    judge_retries: int = Field(5, ge=0, description="repetitions of a request that failed")
    judge_concurrency: int = Field(16, ge=1, description="number of requests at once")
    judge_requests_per_minute: int | None = Field(None, ge=1, description="requests begun in a minute; null: no limit")
    judge_tokens_per_minute: int | None = Field(None, ge=1, description="tokens in a minute; null: no limit")
    judge_cache: str | None = Field(None, description="directory of judgements, used again for equal requests")

    @field_validator("judge_url", "judge_key_env")
    @classmethod
    def _form(cls, value: str | None, info: ValidationInfo) -> str | None:
        has_form, needed = FORMS[info.field_name]
        if value is not None and not has_form(value):
            raise ValueError(needed)
        return value

    @field_validator("judge_model")
    @classmethod
    def _of_a_server(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None and info.data.get("judge_url") is not None:
            raise ValueError("needed together with judge_url; neither of them for the policy as its own judge")
        if value is not None and not value.strip():
            raise ValueError("needed the name that the server gives its model, or the setting")
        return value

    @field_validator("judge_cache")
    @classmethod
    def _of_one_model(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("judge_url") is None:
            raise ValueError("needed a judge_url: judgements of a model of the run itself are not kept")
        return value

    @field_validator("rubric")
    @classmethod
    def _criteria(cls, value: Any) -> Any:
        if value is not None:
            rubric_of(value)
        return value
