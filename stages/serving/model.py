"""The settings by which `ouro serve` answers with a model, or with a server as one.

A server of OpenAI's interface is passed on to: it is asked for replies, and what is said is recorded as of any model.
"""

import contextlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ouroboros.pipeline.settings import schema
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.remote import UNTOLD
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.model_shape import read_config
from ouroboros.workflows.engines.open import limited
from ouroboros.workflows.engines.openai_engine import write_model

# of the stage that made the model
KEPT = ("model.dtype", "model.enable_thinking", "model.temperature", "model.top_p", "model.top_k",
        "model.min_p", "model.max_prompt_tokens", "model.max_response_tokens", "model.max_model_len",
        "model.trust_remote_code", "explorer.tool_call_parser")


@contextlib.contextmanager
def model_of_server(config: Config) -> Iterator[Path]:
    """A server as a model directory, within the block. config: of settings_of_server."""
    with tempfile.TemporaryDirectory(prefix="ouro-serve-") as place:
        write_model(Path(place), config.explorer.rollout_model.external)
        yield Path(place)


def settings_of_server(address: str, overrides: Sequence[str]) -> Config:
    """The settings by which a server of OpenAI's interface is asked. Raises ConfigError."""
    config = _read({"explorer": {"rollout_model": {"engine_type": "openai", "external": {"base_url": address}}}},
                   overrides)
    if not (config.explorer.rollout_model.external.model_name or "").strip():
        raise ConfigError("explorer.rollout_model.external.model_name is not set; needed the name that the server at "
                          f"{address} has for its model.")
    if odd := [name for name, off in UNTOLD.items() if getattr(config.model, name) != off]:
        raise ConfigError(f"model.{odd[0]} is no sampling parameter of OpenAI's interface, so the server would not be "
                          "told of it. Leave it out.")
    return limited(config)


def settings_of(model: Path, engine: str, overrides: Sequence[str]) -> Config:
    """The settings of the stage that made a model, if one did, with the user's own over them. Raises ConfigError."""
    tree: dict[str, Any] = {"explorer": {"rollout_model": {"engine_type": engine, "engines_per_gpu": 1}}}
    places = (model, model.parent, *model.parents[2:3])  # of a model stage, of another stage, of a checkpoint
    made = next((place for place in places if (place / "stage.json").exists()), None)
    config = files.read_json(made / "stage.json")["config"] if made else {}
    if at(config, "model.max_prompt_tokens") is None:  # no stage's, or of one that reads no prompts
        longest = read_config(str(model)).get("max_position_embeddings") or 4096
        tree["model"] = {"max_prompt_tokens": longest // 2, "max_response_tokens": longest // 2,
                         "max_model_len": longest}
    for key in KEPT:
        section, name = key.split(".")
        if (value := at(config, key)) is not None:
            tree.setdefault(section, {})[name] = value
    return _read(tree, overrides)


def _read(tree: dict[str, Any], overrides: Sequence[str]) -> Config:
    """Nested settings with those of the user over them. Raises ConfigError."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if foreign := [word for word in overrides if not re.match(r"(model|explorer)\.", word)]:
        raise ConfigError(f"{', '.join(foreign)}: a server takes settings of model and explorer alone, as "
                          "model.temperature=0.7.")
    try:
        words = OmegaConf.from_dotlist(list(overrides))
        tree = OmegaConf.to_container(OmegaConf.merge(OmegaConf.create(tree), words))
    except (OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"{' '.join(overrides)}: {error}; needed key=value") from error
    config, problems = schema.read(tree, Config)
    problems += [one for one in [*config.model.broken_rules("model"), *config.explorer.broken_rules("explorer")]
                 if one.key != "model.max_model_len"]  # the lengths of prompt and response bound no request
    if problems:
        raise ConfigError.of("settings", problems)
    return config
