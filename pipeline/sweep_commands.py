"""`ouro compare` and `ouro config diff`: runs side by side. Each takes the parsed command line."""

import sys

from pipeline.store import files
from pipeline.store.errors import DataError, masked


def compare(arguments) -> int:
    """What differs between the points of a sweep, or between runs, against their scores, the best first."""
    from pipeline.results import query, sweep_view
    from pipeline.results.compare import answer, compared, metric_of
    from pipeline.results.compare_page import write

    shown = [sweep_view.find(arguments.root, name) for name in arguments.runs] or [_latest_sweep(arguments.root)]
    metric = arguments.metric or metric_of(shown)
    rows = compared(shown, metric)
    print(query.show(answer(rows), arguments.format))
    if len(shown) == 1 and isinstance(shown[0], sweep_view.SweepView):
        write(shown[0], rows, metric)
        print(f"picture: {files.near(shown[0].report)}", file=sys.stderr)
    return 0


def _latest_sweep(root):
    from pipeline.results import sweep_view

    found = [one for one in sweep_view.known(root) if isinstance(one, sweep_view.SweepView)]
    if not found:
        raise DataError(f"no sweep below {root / 'runs'}. Start one with `ouro run -m`, or name the runs to compare.")
    return found[0]


def config_diff(arguments) -> int:
    """What differs between two runs, or between configurations given as overrides in quotes: settings and stages."""
    from pipeline.results.difference import sides, told

    print(masked("\n".join(told(*sides(arguments.root, arguments.a, arguments.b)))))
    return 0
