"""`ouro replay`: other algorithms on a train batch that a run has stored. Takes the parsed command line."""

import sys

from pipeline.store.errors import ConfigError, DataError


def replay(arguments) -> int:
    """What other algorithms would have made of a stored train batch: advantages, loss, gradient. Runs no rollout."""
    from pipeline.results import counterfactual, sweep_view
    from pipeline.results.view import View

    overrides = [word for word in arguments.words if "=" in word and not sweep_view.is_known(arguments.root, word)]
    names = [word for word in arguments.words if word not in overrides]
    if len(names) > 1:
        raise ConfigError(f"`ouro replay` takes the name of one run, found {', '.join(names)}.")
    shown = sweep_view.find(arguments.root, *names)
    if not isinstance(shown, View):
        raise DataError(f"{shown.run} is a sweep; name one of its points: "
                        f"{', '.join(entry.view.run for entry in shown.entries)}.")
    stage = counterfactual.choose_stage(shown, arguments.stage)
    request = counterfactual.prepare(shown, stage, arguments.step, overrides)
    found = counterfactual.ask(request)
    told = f"{shown.run}, stage {stage.name}, trainer step {request['step']}"
    print("\n".join([told, *counterfactual.proof_lines(found["proof"]), ""]),
          file=sys.stdout if arguments.format == "table" else sys.stderr)
    print(counterfactual.table(found["rows"], arguments.format))
    return 0 if counterfactual.is_faithful(found["proof"]) else 1
