"""An rft stage that trains an adapter, whole, on weights as they are and in 4 bits: real vLLM, real DeepSpeed, killed
and taken up again.

test_agent.py has the run of `make test` that trains one.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from ouroboros.pipeline.settings.lora import ADAPTER, ADAPTER_CONFIG
from ouroboros.pipeline.store import checkpoints, files, records, tables
from tests.toy.conftest import REPOSITORY, copy_upstream, plan_in, stage_of
from tests.toy.kill import killed, made, start

LORA = ("stages.rft.model.lora_configs=[{lora_rank: 4, lora_alpha: 8}]", "stages.rft.algorithm.optimizer.lr=5e-3",
        "stages.rft.algorithm.kl_loss_fn=k3", "stages.rft.algorithm.kl_loss_fn_args.kl_coef=0.01")
UPSTREAM = ("tasks", "curate", "model", "sft")


def stage_in(root: Path, source, four_bits: bool):
    """The rft stage of a plan in another root, on complete stages of the first, and the model that it begins with."""
    plan = plan_in(root, *LORA, *four_bits * ["stages.rft.model.load_in_4bit=true", "stages.rft.model.dtype=float32"])
    plan.freeze()
    copy_upstream(source, plan, UPSTREAM)
    if not four_bits:
        return stage_of(plan, "rft"), Path(stage_of(plan, "sft").directory) / "model"
    base = stage_of(plan, "quantized")
    assert start(base).wait(timeout=400) == 0
    return stage_of(plan, "rft"), Path(base.directory)


@pytest.fixture(scope="module", params=[False, True], ids=["whole", "in 4 bits"])
def trained(finished, tmp_path_factory, request):
    """Directories of the stage and of the model that it began with, and whether that is in 4 bits."""
    stage, begun = stage_in(tmp_path_factory.mktemp("lora"), finished.plan, request.param)
    done = subprocess.run([sys.executable, "-m", "ouroboros.stages.rft", stage.directory], cwd=REPOSITORY,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return Path(stage.directory), begun, request.param


def assert_hand_overs_are_proved(stage: Path) -> None:
    """Every version that was sampled with was compared with the trainer's log-probs, and there are several."""
    found = [tables.read(tables.step_file(stage, "rollouts", step), records.Rollout).to_pylist()[0]
             for step in tables.steps_present(stage, "rollouts")]
    proved = [row["probe_max_difference"] for row in found if row["probe_max_difference"] is not None]
    assert len(proved) > 1
    assert max(proved) < 1e-4  # float32
    assert len({row["weights_version"] for row in found}) == len(proved)


def assert_whole_model_is_that_of_the_adapter(stage: Path, begun: Path) -> None:
    """A stage's `model` computes what peft does with its `adapter` on the model that it began with."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    whole, base = (AutoModelForCausalLM.from_pretrained(p, local_files_only=True) for p in (stage / "model", begun))
    tokens = torch.arange(5, 20)[None]
    with torch.no_grad():
        before = base(tokens).logits.clone()
        expected = PeftModel.from_pretrained(base, stage / "adapter")(tokens).logits
        torch.testing.assert_close(whole(tokens).logits, expected, atol=1e-5, rtol=0)
    assert (before - expected).abs().max() > 1e-3


def assert_adapters_alone(versions: list[Path]) -> None:
    assert versions
    for directory in versions:
        assert {ADAPTER, ADAPTER_CONFIG, files.MANIFEST} <= {path.name for path in directory.iterdir()}
        assert not (directory / checkpoints.WEIGHTS).exists()


@pytest.mark.kill
@pytest.mark.adapters
def test_killed_it_ends_with_the_same_weights_and_rows(trained, finished, tmp_path):
    """What was handed over when it was killed is adapters, and nothing else."""
    assert_hand_overs_are_proved(trained[0])
    assert_whole_model_is_that_of_the_adapter(*trained[:2])
    stage, _ = stage_in(tmp_path, finished.plan, trained[2])
    directory, original = Path(stage.directory), trained[0]
    killed(stage, "steps", 3)
    assert_adapters_alone([path for path in (directory / "weights").iterdir() if files.is_complete(path)])
    assert start(stage).wait(timeout=400) == 0
    assert checkpoints.weights_hash(directory / "adapter") == checkpoints.weights_hash(original / "adapter")
    assert made(directory) == made(original)
