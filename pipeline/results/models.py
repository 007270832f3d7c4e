"""The model that a word of the command line means: a directory, a stage or checkpoint of the store, or a run."""

import os
from pathlib import Path

from ouroboros.pipeline.plan.hub import located
from ouroboros.pipeline.results import sweep_view
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.kinds import QUANTIZED
from ouroboros.pipeline.store.errors import ConfigError, DataError
from ouroboros.pipeline.store.model_shape import is_classifier
from ouroboros.pipeline.store.weights import whole_model


def model_of(named: str, stage: str | None, root: Path) -> Path:
    """The Hugging Face directory of a directory (a model, a stage, a checkpoint) or of a stage of a run.

    stage: default: the last one that trained or made a model that writes. Raises DataError or ModelError.
    """
    place = Path(os.path.expanduser(named))
    if place.is_dir() and not any((place / plan).is_file() for plan in sweep_view.PLANS):
        return _writing(whole_model(place, "CHECKPOINT"))
    if place.exists() and not place.is_dir():
        raise DataError(f"{named} is no directory; needed a model directory, a stage or checkpoint of the store, or "
                        "the name of a run.")
    shown = sweep_view.find(root, named)
    nodes = [node for one in sweep_view.runs_of(shown)[:1] for node in one.stages
             if any((node.directory / place / "config.json").exists() for place in ("model", ""))]
    chosen = [node for node in nodes if node.name == stage or not (
        stage or node.kind == QUANTIZED or _scores(node.directory))]
    if not chosen:
        raise DataError(f"{shown.run} has no model{f' of a stage {stage!r}' if stage else ''} yet. Stages that do: "
                        f"{', '.join(node.name for node in nodes) or 'none'}.")
    return _writing(whole_model(chosen[-1].directory, "CHECKPOINT"))


def with_models(config: Config, needed: bool) -> Config:
    """The settings with directories for hub ids and GGUF files. needed: raises ConfigError for one that is not had."""
    config, lacking = located(config)
    if lacking and needed:
        raise ConfigError.of("the recipe's models:", lacking)
    return config


def _writing(directory: Path) -> Path:
    """The directory of a model. Raises DataError for one that writes nothing."""
    if is_classifier(directory, "CHECKPOINT"):
        raise DataError(f"{directory} is a sequence classifier, which scores texts and writes none; needed a language "
                        "model. Explorers ask it by explorer.auxiliary_models.")
    return directory


def _scores(stage: Path) -> bool:
    """Whether a stage trained a reward model."""
    return (stage / "model").is_dir() and is_classifier(stage / "model", "CHECKPOINT")
