"""Composes conf/ and the command line into one checked configuration (Hydra), or explains why it cannot.

`compose(overrides)` returns a plain dict: schema defaults, then conf/config.yaml, then the recipe, then the overrides.
Overrides are Hydra's (`key=value`, `group=choice`); `stages.<stage_name>.key=value` changes one stage of the recipe.
"""

import copy
import dataclasses
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

from pipeline import config as settings
from pipeline.data_rules import data_problems
from pipeline.errors import ConfigError, nearest
from pipeline.schedule import Schedule

CONF = Path(__file__).resolve().parent.parent / "conf"
SECRETS = re.compile(r"((^|_)(api_?key|password|passwd|secret)|(access|auth|api|bearer|hf)_?token|^token)$", re.I)


def compose(overrides: list[str]) -> dict[str, Any]:
    """The whole configuration as plain dicts and lists, checked. Raises ConfigError with every problem found."""
    for_stages = [o for o in overrides if o.lstrip("+~").startswith("stages.")]
    config = _hydra(_allow_new_arguments(_known([o for o in overrides if o not in for_stages])))
    for override in for_stages:
        _override_stage(config, override)
    problems = check(config)
    for stage in config["stages"]:
        own = check(effective(config, stage)) + _stage_name_problems(stage["stage_name"])
        problems += [f"stage '{stage['stage_name']}': {p}" for p in own if p not in problems]
    if problems:
        raise ConfigError("the configuration has problems:\n  " + "\n  ".join(dict.fromkeys(problems)))
    return config


def effective(config: dict, stage: dict) -> dict:
    """The settings of one stage: the global ones with the stage's own merged over them, key by key."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not stage.get("stage_name"):
        raise ConfigError(f"a stage of `stages` has no stage_name: {stage}")
    own = {k: v for k, v in stage.items() if k != "stage_name"}
    try:
        merged = OmegaConf.merge(_schema(), {**config, "stages": []}, own)
        return OmegaConf.to_container(merged, resolve=True)
    except OmegaConfBaseException as error:
        raise _explain(error, f"stage '{stage['stage_name']}'") from error


@cache
def _schema():
    from omegaconf import OmegaConf

    return OmegaConf.structured(settings.Config)


def groups() -> dict[str, list[str]]:
    """Config groups of conf/ and their choices. What Data-Juicer reads is in its own format, and none."""
    found = (d for d in sorted(CONF.iterdir()) if d.is_dir() and d.name != "data_juicer")
    return {d.name: sorted(f.stem for f in d.glob("*.yaml")) for d in found}


def known_keys() -> list[str]:
    return [key for key, _ in settings.walk()]


def _known(overrides: list[str]) -> list[str]:
    """Refuses overrides of keys that do not exist, before Hydra advises to append them."""
    leaves = dict(settings.walk())
    sections = {key.rsplit(".", n)[0] for key in leaves for n in range(1, key.count(".") + 1)}
    problems = []
    for override in overrides:
        if "=" not in override or override.startswith("~"):
            problems.append(f"'{override}' is no override; write key=value. (A setting cannot be deleted: give it "
                            "another value, such as null.)")
            continue
        key, value = override.lstrip("+").split("=", 1)
        if key in groups():
            value = value.strip("'\"")
            problems += [] if value in groups()[key] else [
                f"unknown {key} '{value}'.{nearest(value, groups()[key])} Known: {', '.join(groups()[key])}."]
            continue
        free = any(key.startswith(k + ".") for k, f in leaves.items() if f.default is dataclasses.MISSING)
        plain = re.sub(r"\.\d+(?=\.|$)", ".*", key)
        if not (key in leaves or plain in leaves or key in sections or free):
            problems.append(f"unknown key '{key}'.{nearest(key, [*leaves, *groups()])}")
    if problems:
        raise ConfigError("\n  ".join(problems) + "\n`ouro config show` prints every key.")
    return overrides


def _allow_new_arguments(overrides: list[str]) -> list[str]:
    """`*_args.x=1` adds x: what goes in there is known to the function, not to the schema."""
    free = [key for key, item in settings.walk() if item.type == dict[str, Any]]
    return ["++" + o if any(o.startswith(k + ".") for k in free) else o for o in overrides]


def _hydra(overrides: list[str]) -> dict[str, Any]:
    import yaml
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException, OverrideParseException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if "schema.yaml" not in ConfigStore.instance().repo:
        ConfigStore.instance().store(name="schema", node=_schema())
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return OmegaConf.to_container(hydra_compose("config", overrides), resolve=True)
    except OmegaConfBaseException as error:
        raise _explain(error, "conf/") from error
    except HydraException as error:
        cause = error.__cause__
        if isinstance(cause, OmegaConfBaseException):
            raise _explain(cause, "the configuration") from error
        which = f"'{error.override}': " if isinstance(error, OverrideParseException) else ""
        raise ConfigError(which + re.sub(r"\n.*--multirun.*", "", str(error))) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"a file of conf/ is no YAML: {error}") from error


def _explain(error, where: str) -> ConfigError:
    """OmegaConf's error in our words: the key, what is wrong, the nearest right key."""
    from omegaconf.errors import ConfigAttributeError, ConfigKeyError

    key = getattr(error, "full_key", None) or getattr(error, "key", None) or "?"
    if isinstance(error, (ConfigAttributeError, ConfigKeyError)):
        return ConfigError(f"{where}: unknown key '{key}'.{nearest(str(key), known_keys())}")
    return ConfigError(f"{where}: key '{key}': {str(error).splitlines()[0]}")


def _override_stage(config: dict, override: str) -> None:
    """Applies `stages.<name>.key=value` to the stage of that name."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException as error:
        raise ConfigError(f"'{override}' is no override ({error}); write stages.<stage_name>.key=value.") from error
    if parsed.is_delete() or parsed.is_sweep_override():
        raise ConfigError(f"'{override}': needed one value, stages.<stage_name>.key=value. A list is [1,2], a text "
                          "with commas goes in quotes; a stage is left out by another list `stages`.")
    _, name, *path = parsed.key_or_group.split(".")
    names = [s.get("stage_name") for s in config["stages"]]
    if name not in names or not path:
        raise ConfigError(f"'{override}': no stage '{name}' in this recipe.{nearest(name, map(str, names))} "
                          f"Stages: {', '.join(map(str, names))}.")
    index = names.index(name)
    stage = OmegaConf.create(copy.deepcopy(config["stages"][index]))
    OmegaConf.update(stage, ".".join(path), parsed.value(), force_add=True)
    config["stages"][index] = OmegaConf.to_container(stage)


def _stage_name_problems(name: Any) -> list[str]:
    if name == "all":
        return ["stage_name='all': that rule is Snakemake's own; needed another name."]
    if isinstance(name, str) and re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
        return []
    return [f"stage_name={name!r}: needed a letter, then letters, digits and '_'; it names a rule and a directory."]


def check(config: dict) -> list[str]:
    """Every value outside its bounds or choices, and every rule between keys that is broken, one line each."""
    problems = []
    for key, item in settings.walk():
        for name, value in _values(config, key):
            problems += _check_one(name, value, item.metadata)
    return problems + _rules(config) + _secrets(config)


def _secrets(value: Any, key: str = "") -> list[str]:
    """Settings that look like a secret: every one is frozen into files that are copied and shown."""
    if isinstance(value, dict):
        return [p for k, v in value.items() for p in _secrets(v, f"{key}.{k}" if key else str(k))]
    if isinstance(value, list):
        return [p for i, v in enumerate(value) for p in _secrets(v, f"{key}.{i}")]
    if isinstance(value, str) and value and SECRETS.search(key.rsplit(".", 1)[-1]):
        return [f"{key}: a secret does not go into a configuration, which is written to files. Put it into the "
                "environment, where the code that needs it reads it."]
    return []


def _values(config: Any, key: str, prefix: str = ""):
    """Values of a dotted key; `*` stands for every element of a list."""
    head, _, rest = key.partition(".")
    if head == "*":
        for index, element in enumerate(config):
            yield from _values(element, rest, f"{prefix}{index}.")
    elif rest:
        yield from _values(config[head], rest, f"{prefix}{head}.")
    else:
        yield prefix + head, config[head]


def _check_one(key: str, value: Any, bounds: dict) -> list[str]:
    if value is None:
        return []
    if isinstance(value, float) and not math.isfinite(value):
        return [f"{key}={value}: needed a finite number."]
    if bounds["names"] and ":" not in value and value not in bounds["names"]:
        return [f"{key}={value}: needed one of {', '.join(bounds['names'])}, or package.module:function of your own."
                + nearest(value, bounds["names"])]
    if bounds["choices"] and value not in bounds["choices"]:
        return [f"{key}={value}: needed one of {', '.join(map(str, bounds['choices']))}."
                + nearest(str(value), map(str, bounds["choices"]))]
    tests = (("ge", lambda b: value >= b, "at least"), ("gt", lambda b: value > b, "greater than"),
             ("le", lambda b: value <= b, "at most"))
    return [f"{key}={value}: needed {words} {bounds[name]}." for name, holds, words in tests
            if bounds[name] is not None and not holds(bounds[name])]


def _rules(c: dict) -> list[str]:
    """Rules between keys."""
    model, init = c["model"], c["model"]["init"]
    problems = [f"{key}={c[key]!r}: needed letters, digits, '_', '-' and '.', beginning with none of the last two; it "
                "becomes a directory name." for key in ("project", "name") if not re.fullmatch(r"\w[\w.-]*", c[key])]
    if init["enable"] and model["model_path"]:
        problems.append("model.model_path and model.init.enable exclude each other: set one.")
    if init["enable"] and init["hidden_size"] % (32 * init["num_attention_heads"]):
        problems.append(f"model.init.hidden_size={init['hidden_size']}: needed a multiple of 32 x num_attention_heads "
                        f"({init['num_attention_heads']}); the CPU attention kernels of vLLM know no smaller heads.")
    if init["enable"] and init["num_attention_heads"] % init["num_key_value_heads"]:
        problems.append("model.init.num_key_value_heads must divide model.init.num_attention_heads.")
    needed = model["max_prompt_tokens"] + model["max_response_tokens"]
    if model["max_model_len"] is not None and model["max_model_len"] < needed:
        problems.append(f"model.max_model_len={model['max_model_len']}: prompt + response need {needed} tokens.")
    budget = c["trainer"]["max_token_len_per_gpu"]
    longest = model["max_model_len"] or needed
    if budget < longest:
        problems.append(f"trainer.max_token_len_per_gpu={budget}: a sequence is not cut, and the longest "
                        f"(model.max_model_len, or prompt + response) has {longest} tokens.")
    betas = c["algorithm"]["optimizer"]["betas"]
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        problems.append(f"algorithm.optimizer.betas={betas}: needed two numbers, at least 0 and less than 1.")
    if c["algorithm"]["algorithm_type"] == "grpo":
        problems += _rollout_rules(c)
    if c["algorithm"]["algorithm_type"] != "sft" and (model["top_p"] != 1 or model["top_k"] != -1):
        problems.append("model.top_p and model.top_k cut the sampling distribution, which the trainer does not: its "
                        "ratios would be biased. Leave them at 1 and -1; evaluation sets have their own rollout_args.")
    if re.search(r"[{}]", c["checkpoint_root_dir"]):
        problems.append(f"checkpoint_root_dir={c['checkpoint_root_dir']}: braces have a meaning to Snakemake; needed a "
                        "path without.")
    if c["mode"] == "train" and c["algorithm"]["algorithm_type"] != "sft":
        problems.append("mode=train: an rft stage needs its explorer; needed both or colocate.")
    return problems + data_problems(c)


def _rollout_rules(c: dict) -> list[str]:
    """Rules for training on rollouts."""
    algorithm, buffer = c["algorithm"], c["buffer"]
    problems = []
    if algorithm["advantage_fn"] == "grpo" and algorithm["repeat_times"] < 2:
        problems.append("algorithm.repeat_times=1: grpo compares the rollouts of a group, needed at least 2.")
    explored = buffer["batch_size"] * algorithm["repeat_times"]
    try:
        Schedule(explored, buffer["train_batch_size"] or explored, 1, 0, 1)
    except ConfigError as error:
        problems.append(str(error))
    return problems


def mask_secrets(value: Any) -> Any:
    """A copy with every value whose key names a secret shown as ***."""
    if isinstance(value, dict):
        return {k: "***" if SECRETS.search(str(k)) and v else mask_secrets(v) for k, v in value.items()}
    return [mask_secrets(v) for v in value] if isinstance(value, list) else value
