"""`ouro run --until-decided A B`: makes seed after seed of two settings until their difference is decided."""

import shlex
import sys
from collections.abc import Sequence

from ouroboros.commands.run import search
from ouroboros.commands.run.invoke import INTERRUPTED
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.compose.axes import key_of
from ouroboros.pipeline.results import decide
from ouroboros.pipeline.results.compare import metric_of
from ouroboros.pipeline.results.view import View
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.store.errors import ConfigError, Problem

OPTION = "--until-decided"


def until_decided(words: Sequence[str], sides: Sequence[str], most: int, extra: Sequence[str] = ()) -> int:
    """Runs both settings with one seed after the other and says after each what is known; returns the exit code.

    words: overrides of both; their seed is the first. sides: the overrides of each, as a shell reads them. most: seeds
    after which it ends undecided. extra: words for snakemake. Runs that are complete are not made again, so the same
    command goes on.
    """
    own = [shlex.split(side) for side in sides]
    _refuse(own, most)
    first, _ = (_evaluated(search.composed([*words, *side])).seed for side in own)
    common = [word for word in words if key_of(word) != "seed"]
    made: list[list[View]] = [[], []]
    for seed in range(first, first + most):
        try:
            for runs, side in zip(made, own, strict=True):
                runs.append(search.make([*common, *side, f"seed={seed}"], extra))
        except KeyboardInterrupt:
            print(f"ouro: interrupted at seed {seed}; the same command goes on", file=sys.stderr)
            return INTERRUPTED
        found = decide.differences(*made, metric_of([*made[0], *made[1]]))
        print(f"ouro: seed {seed}: {sides[1]} against {sides[0]}: {found.words()}", flush=True)
        if found.decided:
            break
    project, name = made[0][0].path.parts[-2], compose(common).name
    better = sides[found.mean > 0]
    print((f"decided after {len(made[0])} seeds: {better} is better, {found.assumes()}" if found.decided else
           f"undecided after {len(made[0])} seeds, the most that were asked for (--max-seeds)")
          + f"; all runs: ouro compare {project}/{name}")
    return 0


def _evaluated(config: Config) -> Config:
    if not config.buffer.explorer_input.eval_tasksets:
        raise ConfigError(Problem("buffer.explorer_input.eval_tasksets",
                                  needed=f"a set, by whose scores {OPTION} decides"))
    return config


def _refuse(own: Sequence[list[str]], most: int) -> None:
    if most < decide.FEWEST:
        raise ConfigError(Problem("--max-seeds", found=most, needed=f"fewer than {decide.FEWEST} decide nothing"))
    for side in own:
        if taken := [word for word in side if key_of(word) in ("seed", "name", "project")]:
            raise ConfigError(Problem(OPTION, needed=f"overrides other than {taken[0]}: both sides have the same "
                                                     "seeds, and runs are named after what differs"))
    if own[0] == own[1]:
        raise ConfigError(Problem(OPTION, needed="two settings that differ"))
