"""Which stages sample rows to train on from truncated distributions, by the settings that they are handed."""

from pathlib import Path

import pytest

from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.truncation import truncates
from ouroboros.pipeline.store import files
from tests.plans import planned


@pytest.mark.parametrize("mode", ["both", "colocate", "explore"])
@pytest.mark.parametrize("top_k", [-1, 20])
def test_a_stage_truncates_what_it_samples_to_train_on(tmp_path, mode, top_k):
    """Explored rows too, on which another stage may train; never what an evaluation samples."""
    plan = planned(tmp_path, {"stages": [{"stage_name": "rft", "mode": mode}], "model.top_k": top_k})
    plan.freeze()
    handed = {stage.name: Config.partial(files.read_json(Path(stage.directory) / "stage.json")["config"])
              for stage in plan.stages if stage.name == "rft" or stage.kind == "evaluate"}
    found = {name: truncates(config) for name, config in handed.items()}
    assert found == {name: name == "rft" and top_k > 0 for name in found}
    assert "rft" in found
