"""A search with Optuna: it proposes a point, the point runs, its score decides the next one. See docs/sweeps.md.

    pip install optuna && python docs/examples/optuna_search.py && ouro compare hunt
"""

import optuna

from ouroboros.errors import StageError
from ouroboros.search import objective

FIXED = ["name=hunt", "buffer.total_steps=60"]


def score(trial) -> float:
    """Sampled accuracy of the last model on the held-out tasks."""
    rate = trial.suggest_float("lr", 1e-4, 3e-3, log=True)
    clip = trial.suggest_float("clip_high", 0.2, 0.4)
    return objective([*FIXED, f"algorithm.optimizer.lr={rate:.3g}",
                      f"algorithm.policy_loss_fn_args.clip_range_high={clip:.2f}"])


study = optuna.create_study(study_name="hunt", storage="sqlite:///hunt.db", direction="maximize", load_if_exists=True)
study.optimize(score, n_trials=20, catch=(StageError,))  # a point that fails is no reason to stop
print(f"{study.best_value:.1%} at {study.best_params}")
