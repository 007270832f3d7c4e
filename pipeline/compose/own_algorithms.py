"""Checks the files of user-defined algorithms, conf/algorithm/<name>.yaml with `algorithm_type: <name>`.

Such a file fills null values in the section `algorithm`, so it cannot change a setting that is never null.
"""

from typing import Any

from ouroboros.pipeline.settings import schema
from ouroboros.pipeline.settings.algorithm import Algorithm
from ouroboros.pipeline.settings.algorithms import own, parts
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.store.errors import Problem, nearest


def wrong_files(config: Config) -> list[Problem]:
    """Lists problems with the files of the algorithms that a run and its stages name."""
    named = [at(settings, "algorithm.algorithm_type") for settings in [config, *config.stages]]
    return [problem.but(file=f"conf/algorithm/{path.name}") for name, path in own().items() if name in named
            for problem in _problems(parts(name))]


def _problems(content: dict[str, Any]) -> list[Problem]:
    fields = {name: schema.default(field) for name, field in Algorithm.model_fields.items()}
    sections = {name: [key for key, value in fields[name].items() if value is None] for name in fields
                if isinstance(fields[name], dict) and None in fields[name].values()}
    names = ["algorithm_type", *(name for name in fields if fields[name] is None or name.endswith("_args")), *sections]
    elsewhere = "Other settings of the section belong into a recipe."
    wrong = [Problem(str(key), ("no part of an algorithm." if key in fields else "unknown.")
                     + f"{nearest(str(key), names)} Needed: {', '.join(names)}.", elsewhere)
             for key in content if key not in names]
    wrong += [Problem(f"{name}.{key}", f"no part of an algorithm. Needed: {', '.join(keys)}.", elsewhere)
              for name, keys in sections.items() if isinstance(content.get(name), dict)
              for key in content[name] if key not in keys]
    known = {key: value for key, value in content.items() if key in names}
    wrong += schema.read(known, Algorithm, "algorithm")[1]
    lacking = [name for name in ("repeat_times", *NEEDED) if content.get(name) is None]
    return wrong + [Problem(name, f"is missing{': ' + NEEDED[name] if name in NEEDED else ''}.") for name in lacking]


# required components of an algorithm on rollouts, and how to disable each
NEEDED = {
    "advantage_fn": "a name of operators/advantages, or package.module:function",
    "policy_loss_fn": "a name of operators/losses, or package.module:function",
    "kl_loss_fn": "none, or a name of operators/kl.py",
    "kl_penalty_fn": "none, or a name of operators/kl.py",
    "entropy_loss_fn": "none, default, or package.module:function",
}
