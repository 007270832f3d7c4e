"""One trial of a search: Hydra's sweeper (Optuna's, say) hands over overrides, and gets the score back.

    python docs/examples/search.py -m +algorithm.optimizer.lr=1e-4,3e-4                          Hydra's own sweeper
    python docs/examples/search.py -m hydra/sweeper=optuna hydra.sweeper.direction=maximize \\
        hydra.sweeper.n_trials=20 '+algorithm.optimizer.lr=tag(log,interval(1e-5,1e-3))'         Optuna's
"""

import hydra
from hydra.core.hydra_config import HydraConfig

from ouroboros.search import objective


@hydra.main(version_base="1.3", config_path=None)
def trial(_) -> float:
    """The sweeper's own configuration is empty, so it wants a `+` before every key; `objective` composes ours."""
    return objective([word.removeprefix("+") for word in HydraConfig.get().overrides.task])


if __name__ == "__main__":
    trial()
