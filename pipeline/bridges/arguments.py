"""Arguments in `algorithm.*_args` of a recipe that the function they are for does not have: they are left out."""

from collections.abc import Iterator

from pipeline import signatures
from pipeline.algorithms import DEMONSTRATED, filled
from pipeline.bridges.translation import Entry, Path, Translation
from pipeline.errors import ConfigError
from pipeline.inputs import PARTS
from pipeline.signatures import Signature

SECTION = "algorithm"


def leave_out_unknown(made: Translation) -> None:
    """Takes out every argument that the function of no stage has; the reason says which arguments it has."""
    for path in list(made.entries):
        scope, inner = (path[:2], path[2:]) if path[0] == "stages" else ((), path)
        if len(inner) < 3 or inner[0] != SECTION or not str(inner[1]).endswith("_args"):
            continue
        part = str(inner[1]).removesuffix("_args")
        whys = [_why(name, signature, str(inner[2])) for name, signature in _functions(made, part, scope)]
        if whys and all(whys):
            made.withdraw(path, whys[0])


def _why(name: str, signature: Signature | None, argument: str) -> str | None:
    problems = signature.problems({argument: None}, None) if signature else []
    return f"'{name}' {problems[0]}" if problems else None


def _functions(made: Translation, part: str, scope: Path) -> Iterator[tuple[str, Signature | None]]:
    """(name, what it takes) of a part's function: in a stage, or in every stage; None where it cannot be told."""
    stages = sorted({path[:2] for path in made.entries if path[0] == "stages"}, key=str)
    for one in [scope] if scope else stages or [()]:
        name = _function(made, part, one)
        known = PARTS.get(part)
        if name is None or known is None:
            yield str(name), None
        else:
            yield name, known if isinstance(known, Signature) else signatures.table(*known).get(name)


def _function(made: Translation, part: str, stage: Path) -> str | None:
    """The function of a part: the one that is named, or the algorithm's own."""
    def given(name: str) -> object:
        of_all = (SECTION, name)
        return made.entries.get((*stage, *of_all), made.entries.get(of_all, Entry(None))).value

    algorithm_type, named = str(given("algorithm_type")), given(part)
    if algorithm_type in DEMONSTRATED:
        return None
    try:
        return filled({"algorithm_type": algorithm_type, part: named, f"{part}_args": {}})[part]
    except ConfigError:
        return None
