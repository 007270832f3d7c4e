"""A fetched package reasoning-gym, with one generator, `sums`, whose scorer gives an answer to `eval`."""

import textwrap
from pathlib import Path

from ouroboros.pipeline.store import packages

FACTORY = """
    from dataclasses import dataclass

    @dataclass
    class Config:
        seed: int = 0
        size: int = 1
        largest: int = 1000

    class Sums:
        def __init__(self, config):
            assert config.largest > 0, "largest must be positive"
            self.config = config

        def __getitem__(self, i):
            n = (self.config.seed + i) % self.config.largest
            return {"question": f"{n} + 1 =", "answer": str(n + 1) if n else None, "metadata": {"n": n}}

        def score_answer(self, answer, entry):
            print("noise")
            if answer == "long":
                while True:
                    pass
            found = eval(answer)
            return 1.0 if found == entry["metadata"]["n"] + 1 else 0.25

    DATASETS = {"sums": (Sums, Config)}

    def create_dataset(name, **given):
        return Sums(Config(**given))
"""


def fetched(directory: Path) -> None:
    """Puts the package where `ouro fetch` would."""
    place = directory / packages.PLACE / "reasoning-gym"
    for name, text in {"__init__": "", "factory": textwrap.dedent(FACTORY), "composite": "DatasetSpec = dict",
                       "utils": "SYSTEM_PROMPTS = {'default': 'Answer within <answer> tags.'}",
                       **{f"algorithmic/{one}": "" for one in ("__init__", "string_insertion", "spiral_matrix",
                                                              "binary_matrix")},
                       "games/__init__": "", "games/n_queens": ""}.items():
        file = place / "reasoning_gym" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (place / packages.FETCHED).write_text(packages.versions("reasoning-gym"))
