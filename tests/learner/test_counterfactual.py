"""`ouro replay`: a batch that real DeepSpeed has trained on, looked at again under other algorithms."""

import json
import math
import shutil
from dataclasses import replace

import pytest
import torch

from ouroboros.pipeline.results import counterfactual
from ouroboros.pipeline.results.view import Node, View
from ouroboros.pipeline.settings.kinds import KINDS
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store import files, records, tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.pictures import Kept, named
from ouroboros.stages import counterfactual as process_of_replay
from ouroboros.stages import learn
from ouroboros.stages.counterfactual import Outcome, compared, correlation, cosine, grouped
from ouroboros.stages.learner.actor import Result
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.process import Process
from ouroboros.workflows.protocol.sight import Sight
from tests.configs import TINY, overridden
from tests.factories import row
from tests.golden.messages import refuses, wording
from tests.pictures import png

# two tasks twice a step, three steps, the weights of each kept
SETTINGS = (*TINY, "buffer.batch_size=2", "algorithm.repeat_times=2", "buffer.total_steps=3", "trainer.save_interval=1",
            "trainer.max_checkpoints_to_keep=9", "synchronizer.sync_offset=0", "algorithm.optimizer.lr=0.01",
            "algorithm.optimizer.lr_warmup_steps=0", "synchronizer.sync_timeout=1")
ADAPTER = ("model.lora_configs=[{path: null, lora_rank: 4, lora_alpha: 8, target_modules: all-linear, "
           "exclude_modules: []}]")
REWARDS = ([1.0, 0.0, 0.5, 1.0], [0.0, 1.0, 1.0, 0.0], [1.0, 0.5, 0.0, 1.0])


def rollout(step, slot, reward, acts=True):
    """A response of slot + 2 arbitrary tokens, which the engine found as likely as one in e^2 each. acts: whether they
    are the policy's own."""
    length = slot + 2
    return row(records.Experience, experience_id=f"{step}/{slot}", step=step, slot=slot, group_id=f"{step}/{slot // 2}",
               prompt_tokens=[7, 8 + slot, 9], response_tokens=[10 + step + i for i in range(length)],
               rollout_logprobs=[-2.0] * length, action_mask=[int(acts)] * length, reward=reward, accuracy=reward,
               status="ok", weights_version=step - 1)


def seen(directory, model):
    """What rows have whose prompts have an image, the first half of slots another one than the second: by slot."""
    kept, sight = Kept(directory / ".pictures.tmp"), Sight(model)
    names = [kept.keep(png(13, 9, seed=seed)) for seed in (0, 1)]
    kept.write(directory)
    shown = named(names, directory)
    return [{"pictures": [names[slot // 2]], "prompt_tokens": sight.expanded([7, sight.mark, 9], [shown[slot // 2]])}
            for slot in range(4)]


def trained(directory, tiny_model, context_of, process, *overrides, without_actions=(), sees=False):
    """A stage that trained on these rollouts, as its directory has it. without_actions: slots. sees: with images."""
    tasks = [row(records.Task, task_id=f"t{i}", row=i, split="train") for i in range(4)]
    tables.write(directory / "curate" / "tasks.parquet", records.Task, tasks)
    inputs = {"tasks": directory / "curate", "model": tiny_model}
    more = seen(directory / "curate", tiny_model) if sees else [{}] * 4
    context = context_of(directory / "rft", *SETTINGS, *overrides, **inputs)
    for step, rewards in enumerate(REWARDS, 1):
        rows = [replace(rollout(step, slot, reward, slot not in without_actions), **more[slot])
                for slot, reward in enumerate(rewards)]
        tables.write(tables.step_file(context.directory, "experience", step), records.Experience, rows)
        made = row(records.Rollout, step=step, weights_version=step - 1, rows=4)
        tables.write(tables.step_file(context.directory, "rollouts", step), records.Rollout, [made])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Process, "start", lambda *_: process)
        patch.setattr(Process, "stop", lambda self: None)
        learn.Trainer(context).run()
    spec = {"run": "toy/one", "name": "rft", "kind": "rft", "identity": "0123abcd", "root": str(directory),
            "inputs": {role: str(path) for role, path in inputs.items()},
            "config": plain(overridden(*SETTINGS, *overrides))}
    (context.directory / "stage.json").write_text(json.dumps(spec))
    return context.directory


@pytest.fixture(scope="module")
def stage(tmp_path_factory, tiny_model, process):
    return trained(tmp_path_factory.mktemp("replay"), tiny_model, context_with(), process)


def context_with():
    """As the fixture context_of, for fixtures that outlive a test."""
    import logging

    from ouroboros.pipeline.job.context import Context

    def make(directory, *overrides, **inputs):
        directory.mkdir(parents=True)
        return Context("toy/one", "rft", "0123abcd", directory, overridden(*overrides), inputs,
                       logging.getLogger("tests"))

    return make


def section(directory, **changes):
    return {**json.loads((directory / "stage.json").read_text())["config"]["algorithm"], **changes}


def asked(directory, step, alternatives):
    able = counterfactual.replayable(directory, tables_model(directory), False)
    return {"directory": str(directory), "step": step, "alternatives": alternatives,
            "weights": str(able[step]) if able[step] else None}


def tables_model(directory):
    from pathlib import Path

    return Path(json.loads((directory / "stage.json").read_text())["inputs"]["model"])


@pytest.mark.parametrize("step", [1, 2, 3])
def test_under_its_own_algorithm_a_batch_gives_what_the_stage_stored(stage, step):
    found = process_of_replay.answer(asked(stage, step, {}))
    assert counterfactual.is_faithful(found["proof"])
    what, stored, recomputed, _ = found["proof"][-1]
    assert what == "gradient norm"
    assert recomputed == pytest.approx(stored, rel=1e-4)
    own = found["rows"]["as it was"]
    assert (own["cosine"], own["advantage_correlation"], own["same_sign"]) == pytest.approx((1.0, 1.0, 1.0))


def test_other_weights_are_noticed(stage):
    """Step 3 with the weights that step 1 began with."""
    found = process_of_replay.answer({**asked(stage, 3, {}), "weights": None})
    assert not counterfactual.is_faithful(found["proof"])
    assert counterfactual.proof_lines(found["proof"])[0].startswith("NOT FAITHFUL")


def test_a_larger_step_size_of_the_same_direction_and_the_opposite_one(stage, tmp_path, monkeypatch):
    """Loss -2 A log p and A log p beside -A log p: gradients of twice the norm and cosine 1, of the same and -1."""
    (tmp_path / "replayed_losses.py").write_text(
        "def likelihood(logprobs, advantages, scale=1.0):\n    return -scale * advantages * logprobs, {}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    loss = {"policy_loss_fn": "replayed_losses:likelihood"}
    found = process_of_replay.answer({**asked(stage, 2, {
        "once": section(stage, **loss), "twice": section(stage, **loss, policy_loss_fn_args={"scale": 2.0}),
        "back": section(stage, **loss, policy_loss_fn_args={"scale": -1.0})})})["rows"]
    assert found["twice"]["grad_norm"] == pytest.approx(2 * found["once"]["grad_norm"], rel=1e-5)
    assert found["back"]["grad_norm"] == pytest.approx(found["once"]["grad_norm"], rel=1e-5)
    assert found["twice"]["cosine"] == pytest.approx(found["once"]["cosine"], abs=1e-6)
    assert found["back"]["cosine"] == pytest.approx(-found["once"]["cosine"], abs=1e-6)


def test_an_advantage_without_the_std(stage):
    """Step 1 has groups (1, 0) and (1/2, 1). GRPO divides by their unbiased std, 1/sqrt(2) and 1/sqrt(8): all +-0.7071.
    Dr. GRPO: +-1/2, +-1/4. Of x = (a, -a, -a, a), y = (1/2, -1/2, -1/4, 1/4) the correlation is 3/4 / sqrt(5/8)."""
    found = process_of_replay.answer(asked(stage, 1, {"dr": section(stage, advantage_fn="dr_grpo")}))["rows"]["dr"]
    assert found["advantage_correlation"] == pytest.approx(0.75 / math.sqrt(0.625), abs=1e-5)
    assert (found["advantage_mean"], found["same_sign"], found["rows"]) == (0.0, 1.0, 4)
    assert found["advantage_std"] == pytest.approx(math.sqrt(0.625) / 2)


def test_a_reference_is_scored_and_nothing_is_written(stage):
    before = sorted(path for path in stage.rglob("*"))
    alternatives = {"held": section(stage, kl_loss_fn="k2", kl_loss_fn_args={"kl_coef": 1.0}),
                    "penalised": section(stage, kl_penalty_fn="k1", kl_penalty_fn_args={"kl_coef": 9.0})}
    found = process_of_replay.answer(asked(stage, 2, alternatives))["rows"]
    assert found["held"]["kl_loss"] > 0
    assert found["as it was"]["kl_loss"] is None
    assert found["penalised"]["advantage_correlation"] < 0.999  # the reference weighs in every advantage
    assert sorted(path for path in stage.rglob("*")) == before


def test_a_critic_is_asked_with_the_weights_it_had(tmp_path, tiny_model, process):
    ppo = ("algorithm.algorithm_type=ppo", "trainer.critic.optimizer.lr=0.01")
    directory = trained(tmp_path, tiny_model, context_with(), process, *ppo)
    for step in (1, 3):
        found = process_of_replay.answer(asked(directory, step, {}))
        assert counterfactual.is_faithful(found["proof"]), found["proof"]


def test_a_row_without_action_tokens_is_replayed(tmp_path, tiny_model, process):
    """Its advantage is stored, and nothing is learnt from it."""
    directory = trained(tmp_path, tiny_model, context_with(), process, without_actions=(3,))
    found = process_of_replay.answer(asked(directory, 2, {}))
    assert counterfactual.is_faithful(found["proof"]), found["proof"]
    assert found["rows"]["as it was"]["advantage_std"] == pytest.approx(0.5**0.5, abs=1e-5)  # four of +-1/sqrt(2)


def test_a_stage_that_trains_an_adapter_is_replayed_with_it(tmp_path, tiny_model, process):
    """With the adapter of a checkpoint, and of a version; the gradient is that of A and B."""
    directory = trained(tmp_path, tiny_model, context_with(), process, ADAPTER)
    for step in (1, 3):
        alternatives = {"held": section(directory, kl_loss_fn="k2")}
        found = process_of_replay.answer(asked(directory, step, alternatives))
        assert counterfactual.is_faithful(found["proof"]), found["proof"]
        assert found["rows"]["held"]["kl_loss"] == pytest.approx(0.0) if step == 1 else (
            found["rows"]["held"]["kl_loss"] > 0)


@pytest.mark.parametrize(("frozen", "zero_stage"), [(True, 1), (False, 3)])
def test_a_batch_with_images_is_replayed_with_them(tmp_path, seeing_model, process, frozen, zero_stage):
    """Also of ZeRO-3, whose forwards all run the tower. With weights of a checkpoint or version; the gradient is that
    of the tower too where that is trained. With the images of the two tasks exchanged the batch is another one."""
    directory = trained(tmp_path, seeing_model, context_with(), process,
                        f"trainer.freeze_vision_tower={frozen}".lower(), f"trainer.zero_stage={zero_stage}", sees=True)
    for step in (1, 3):
        found = process_of_replay.answer(asked(directory, step, {"dr": section(directory, advantage_fn="dr_grpo")}))
        assert counterfactual.is_faithful(found["proof"]), found["proof"]
        assert found["rows"]["dr"]["grad_norm"] > 0
    replayed = process_of_replay.Replay(asked(directory, 3, {}), directory)
    towers = [name for name in replayed.under(replayed.original).gradient if "vision_model" in name]
    assert (not towers) == frozen
    path = tables.step_file(directory, "experience", 3)
    rows = tables.read(path, records.Experience).to_pylist()
    for one in rows:
        one["pictures"] = rows[3 - one["slot"]]["pictures"]
    tables.write(path, records.Experience, [records.Experience(**one) for one in rows])
    assert not counterfactual.is_faithful(process_of_replay.answer(asked(directory, 3, {}))["proof"])


@pytest.mark.parametrize("given", [1.5, [2.0, 1.0, 9.0]])
def test_the_advantage_of_a_row_as_one_number(given):
    """Mask 1 1 0: the scalar, or (2 + 1) / 2. Without an action: the scalar, or 0; never the mean of nothing."""
    rows = [Row("a", [1, 2, 3, 4], 1, mask, {"advantages": given}) for mask in ([1, 1, 0], [0, 0, 0])]
    assert [row.advantage for row in rows] == [1.5, 1.5 if given == 1.5 else 0.0]


def outcome(advantages, **gradient):
    gradients = {name.replace("_", "."): torch.tensor(values) for name, values in gradient.items()}
    return Outcome(advantages, Result(1.0, 5.0, 0.0, None, {"kl": 0.5}, 7, []), gradients)


def test_gradients_are_compared_as_a_whole_and_by_group():
    """(3, 4 | 0, 1) and (4, 3 | 1, 0): inner product 24 of norms sqrt(26); by group 24 / 25 and 0."""
    one = outcome({"a": 1.0}, model_layers_0_w=[3.0, 4.0], model_norm_w=[0.0, 1.0])
    other = outcome({"a": 1.0}, model_layers_0_w=[4.0, 3.0], model_norm_w=[1.0, 0.0])
    assert cosine(one.gradient, other.gradient) == pytest.approx(24 / 26)
    assert set(grouped(one.gradient, other.gradient)) == {"layers.0", "norm"}
    wording(compared(one, other)["least_alike"], "0.000, layers.0 0.960")


def test_rows_that_an_advantage_leaves_out_are_not_compared():
    """Of rows a, b, c the alternative has a and b: signs + and 0 beside + and -."""
    found = compared(outcome({"a": 2.0, "b": 0.0}, n_w=[1.0]), outcome({"a": 1.0, "b": -1.0, "c": 3.0}, n_w=[1.0]))
    assert (found["rows"], found["same_sign"], found["advantage_correlation"]) == (2, 0.5, pytest.approx(1.0))


def test_what_does_not_exist_is_null():
    import numpy as np

    assert correlation(np.array([1.0, 1.0]), np.array([1.0, 2.0])) is None
    assert correlation(np.array([1.0]), np.array([2.0])) is None
    assert cosine({"w": torch.zeros(2)}, {"w": torch.ones(2)}) is None


def view(directory, *kinds):
    stages = [Node(f"{kind}_{i}", KINDS[kind], directory) for i, kind in enumerate(kinds)]
    return View("toy/one", directory, stages)


def test_only_stages_that_train_on_rollouts_are_replayed(tmp_path):
    shown = view(tmp_path, "train", "rft", "evaluate")
    assert counterfactual.choose_stage(shown, None).name == "rft_1"
    for name, words in (("train_0", "does not train on rollouts"), ("rft", "no stage 'rft'. Did you mean 'rft_1'")):
        with refuses(DataError, words):
            counterfactual.choose_stage(shown, name)
    with refuses(DataError, "rollouts"):
        counterfactual.choose_stage(view(tmp_path, "train"), None)


@pytest.mark.parametrize("damage", [lambda data: data[:200], lambda data: data[:4] + bytes(200) + data[204:]])
@pytest.mark.parametrize("table", ["experience", "trained"])
def test_a_damaged_table_is_named_by_its_place_in_the_stage(stage, tmp_path, table, damage):
    damaged = tmp_path / "store" / "rft-0123abcd"
    shutil.copytree(stage, damaged)
    files.write_json(damaged / files.MANIFEST, {})
    file = tables.step_file(damaged, table, 2)
    file.write_bytes(damage(file.read_bytes()))
    with refuses(DataError, f"{file} is damaged", f"Delete {damaged}"):
        process_of_replay.answer(asked(damaged, 2, {}))


@pytest.mark.parametrize(("step", "words"), [(4, "step 4"), (2, "trainer.save_interval")])
def test_a_step_without_weights_is_refused_with_those_that_have(stage, tmp_path, tiny_model, step, words):
    import shutil

    shutil.copytree(stage, tmp_path / "rft")
    for place in ("checkpoints/step=000001", "weights/version=000001"):
        shutil.rmtree(tmp_path / "rft" / place, ignore_errors=True)
    shown = view(tmp_path / "rft", "rft")
    with refuses(DataError, words):
        counterfactual.prepare(shown, shown.stages[0], step, [])
    able = counterfactual.replayable(tmp_path / "rft", tiny_model, False)
    assert list(able) == [1, 3]
    assert list(counterfactual.replayable(tmp_path / "rft", tmp_path / "gone", True)) == [3]


def test_the_answer_is_told_in_columns_or_rows():
    line = dict.fromkeys(counterfactual.MEANINGS, 0.5) | {"rows": 4, "cosine": None, "least_alike": "norm 0.1"}
    told = counterfactual.table({"as it was": line, "algorithm=gspo": line}, "table").splitlines()
    assert "algorithm=gspo" in told[0]
    assert told[2].split() == ["rows", "trained", "on", "4", "4"]
    read = json.loads(counterfactual.table({"algorithm=gspo": line}, "json"))
    assert read == [{"algorithm": "algorithm=gspo", **line}]
