"""Takes bounds of sampling out of a recipe that rollouts to train on cannot have (pipeline/settings/truncation.py)."""

from ouroboros.commands.bridges.tables import said
from ouroboros.commands.bridges.translation import Path, Translation, places
from ouroboros.commands.bridges.trinity_values import TRAINING_SET
from ouroboros.pipeline.settings.guide import general
from ouroboros.pipeline.settings.truncation import MOST


def leave_out_untrainable(made: Translation) -> None:
    """Withdraws a top_k that is too large to be kept with each token, then a top_p without a top_k."""
    for name, reason in (("top_k", "too_many_kept"), ("top_p", "needs_top_k")):
        for path in [path for path in made.entries if path[-1] == name and _is_trained_on(path)]:
            top_k, own = _top_k(made, path), made.entries[path].value
            lacks = top_k > MOST if name == "top_k" else own is not None and own < 1 and not 1 <= top_k <= MOST
            if lacks:
                made.withdraw(path, said(reason, most=MOST))


def _is_trained_on(path: Path) -> bool:
    return path[-2] == "model" or bool(TRAINING_SET.match(general(".".join(map(str, path)))))


def _top_k(made: Translation, path: Path) -> int:
    """Returns the top_k beside a bound: of the set, else that of the model; -1 for none."""
    own = (*path[:-1], "top_k")
    of_model = (*(path[:2] if path[0] == "stages" else ()), "model", "top_k")
    found = [made.value(*place) for one in (own, of_model) for place in places(one)]
    return next((one for one in found if isinstance(one, int)), -1)
