"""Three steps on rows of which one or none has images, on as many ranks as started it: what they saw, as JSON.

    RANK=... LOCAL_RANK=... WORLD_SIZE=... python -m tests.learner.seeing_ranks MODEL OUT key=value ...
"""

import sys
from pathlib import Path

from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.pictures import Kept, named
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.process import Process
from ouroboros.stages.learner.objective import Objective
from ouroboros.workflows.protocol.sight import Sight
from tests.configs import TINY, overridden
from tests.pictures import png

SIZES = ((8, 8), (13, 9), (90, 57))


def rows(model: Path, place: Path, seeing: int = 1) -> list[Row]:
    """Four, of which the first `seeing` have three images each."""
    kept = Kept(place / ".pictures.tmp")
    names = [kept.keep(png(*size, seed=number)) for number, size in enumerate(SIZES)]
    kept.write(place)
    pictures, sight, made = named(names, place), Sight(model), []
    for number in range(4):
        shown = pictures if number < seeing else ()
        prompt = sight.expanded([20 + number, *(token for _ in shown for token in (sight.mark, 30))], shown)
        reply = [5 + number, 9, 40 + number]
        made.append(Row(f"{number}", prompt + reply, len(prompt), [1] * 3, {
            "advantages": (-1.0) ** number, "rollout_logprobs": [-4.6] * 3, "is_expert": False}, pictures=shown))
    return made


def train(model: Path, process: Process, place: Path, settings) -> dict:
    config = overridden(*TINY, *settings)
    actor, objective = Actor(model, config, process, keep_initial=True), Objective(config)
    actor.expect_images()
    found: dict = {"losses": [], "norms": [], "before": [values.tolist() for values in actor.score_rows(
        rows(model, place))]}
    for number, seeing in enumerate((1, 0, 1), 1):  # no row of the second step has an image
        some = rows(model, place, seeing)
        found["lots"] = [bool(micro.pictures) for micro in process.pack(some, actor.budget.tokens, fill=actor.way.fill)]
        for row, values in zip(some, actor.reference_logprobs(some), strict=True):
            row.columns["ref_logprobs"] = row.columns["old_logprobs"] = row.spread(values)
        result = actor.step(some, objective, 1e-4, number)
        found["losses"].append(result.loss)
        found["norms"].append(result.grad_norm)
    some = rows(model, place)
    found["probe"] = actor.score(some[0].tokens, some[0].pictures)
    found["scores"] = [values.tolist() for values in actor.score_rows(some)]
    state = actor.zero.full_state(actor.zero.module.model.named_parameters())
    found["weights"] = {name: float(one.detach().double().norm()) for name, one in (state or {}).items()}
    return found


if __name__ == "__main__":
    _, path, out, *given = sys.argv
    group = Process.start(1, Path(f"{out}.ranks"))
    own = Path(f"{out}.{group.rank}")
    own.mkdir()
    made = train(Path(path), group, own, given)
    lots = group.gather_rows({group.rank: made.pop("lots")})
    if group.rank == 0:
        files.write_json(Path(out), made | {"lots": lots})
    group.barrier()
    group.stop()
