"""What a configuration names outside itself: there or not, and called with arguments that exist."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from ouroboros.pipeline.check import data, model, named_functions, preflight, samples, user_code
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.check.sources import sources
from ouroboros.pipeline.compose.recipe import effective
from ouroboros.pipeline.settings import algorithms
from ouroboros.pipeline.settings.config import AuxiliaryModel
from ouroboros.pipeline.settings.data import AuxiliaryBuffer, Taskset
from ouroboros.pipeline.settings.kinds import PATHS, ROWS
from ouroboros.pipeline.settings.train_batch import REPLAY
from ouroboros.pipeline.store import launch
from ouroboros.pipeline.store.errors import Problem
from ouroboros.pipeline.store.model_shape import plain_config
from tests.configs import changed, element, overridden, places
from tests.sizes import QWEN2

TASKS, EXPLORER = "data_processor.task_pipeline", "buffer.explorer_input"


def rft(values: dict) -> dict:
    config = changed(values)
    return effective(config, config.stages[1])


def absent(values: dict) -> list[Problem]:
    settings = rft(values)
    return data.missing(settings, settings.model)


def test_everything_that_is_not_here_is_told_at_once(tmp_path):
    (tmp_path / "here.jsonl").write_text("{}\n")
    found = absent({f"{TASKS}.inputs": [str(tmp_path / "here.jsonl"), "/no/such.jsonl"],
                    f"{TASKS}.config_path": "no.yaml",
                    "model.init.enable": False, "model.model_path": "Qwen/Qwen2.5-0.5B",
                    f"{EXPLORER}.default_reward_fn_type": "no_such_module:reward"})
    assert places(found) == [f"{TASKS}.inputs.1", f"{TASKS}.config_path", "model.model_path",
                             f"{EXPLORER}.default_reward_fn_type"]


def test_an_empty_directory_of_rows_is_told_once(tmp_path, monkeypatch):
    """With its setting; neither the plan, which reads its content, nor the look at its rows tells it again."""
    monkeypatch.chdir(tmp_path)
    Path("rows/below").mkdir(parents=True)
    values = {f"{TASKS}.generator": None, f"{TASKS}.inputs": ["rows"]}
    line = f"{TASKS}.inputs.0: rows is an empty directory; needed data files in it."
    assert absent(values) == [line]
    samples.answered.cache_clear()
    answered = Answer()
    monkeypatch.setattr(launch, "subprocess", SimpleNamespace(run=answered))
    assert [found for found in preflight.check(changed(values), data=True).problems if "rows" in found] == [line]
    assert answered.sources == []


class Answer:
    """Stands for the process that looks at rows: finds nothing, and keeps which sources it was asked about."""

    def __call__(self, command, **_):
        self.sources = json.loads(Path(command[-2]).read_text())["sources"]
        Path(command[-1]).write_text(json.dumps({"problems": [], "warnings": [], "unjudged": [], "facts": [],
                                                "sizes": {}}))
        return subprocess.CompletedProcess(command, 0)


def test_every_path_of_a_cluster_is_told_and_none_that_nothing_reads(tmp_path):
    """ppo has a critic; grpo has none, and what is said of one is no path of that stage."""
    named = {"model.chat_template_path": "/cluster/chat.jinja", "model.critic_model_path": "/cluster/critic",
             "explorer.auxiliary_models": [element(AuxiliaryModel, {"model_path": "/cluster/judge"})],
             "environment.images": {"ubuntu:24.04": "/cluster/ubuntu"}}
    assert places(absent({**named, "algorithm.advantage_fn": "ppo"})) == [
        "model.chat_template_path", "environment.images.ubuntu:24.04", "model.critic_model_path",
        "explorer.auxiliary_models.0.model_path"]
    assert not any("critic" in line for line in absent(named))


def test_the_files_that_a_stage_is_made_of_are_looked_for_here_too():
    """A file that an identity needs, and that nobody looks for beforehand, is told alone when planning misses it."""
    known = (*data.FILES, *model.OTHER_MODELS, data.IMAGES, *PATHS, "data_processor.task_pipeline.inputs")
    assert {key for kind in ROWS for key in kind.external} <= set(known)


@pytest.mark.parametrize(("text", "words"), [
    ("[1]", "config.json there is not a JSON object"),
    ('{"a": ', "config.json there is not valid JSON (Expecting value"),
    (b"\xff", "config.json there is not valid JSON ("),
    (json.dumps({**QWEN2, "hidden_size": "896", "head_dim": 1.5}), "has hidden_size='896', head_dim=1.5; needed")])
def test_a_model_whose_configuration_cannot_be_read_is_told_beside_others(tmp_path, text, words):
    (tmp_path / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    here = str(tmp_path)
    settings = rft({"model.init.enable": False, "model.model_path": here, "algorithm.advantage_fn": "ppo",
                    "model.critic_model_path": here})
    found = model.wrong_models(settings, settings.model)
    assert [line.partition(f"={here}: ")[0] for line in found] == ["model.model_path", "model.critic_model_path"]
    assert all(words in line for line in found)
    assert plain_config(settings.model) is None
    (tmp_path / "config.json").write_text(json.dumps(QWEN2))
    assert model.wrong_models(settings, settings.model) == []


def test_sources_are_the_files_with_the_columns_that_are_wanted():
    (source,) = sources(rft({f"{TASKS}.inputs": ["a.jsonl"], f"{TASKS}.format.prompt_key": "problem"}))
    assert (source.key, source.path, source.split) == (f"{TASKS}.inputs.0", "a.jsonl", "train")
    assert dict(source.columns) == {"prompt_key": "problem", "response_key": "answer", "solution_key": "solution"}
    assert source.optional == ("solution_key",)


@pytest.mark.parametrize(("key", "given", "more", "words"), [
    ("algorithm.policy_loss_fn_args", {"clip_rang_low": 1}, {}, "'ppo' has no argument 'clip_rang_low'. Did you mean "),
    ("algorithm.advantage_fn_args", {"epsilom": 1}, {}, "'grpo' has no argument 'epsilom'. Did you mean 'epsilon'?"),
    (f"{EXPLORER}.taskset.reward_fn_args", {"answer": 1}, {}, "'countdown_reward' has no argument 'answer'"),
    (f"{EXPLORER}.eval_tasksets.0.reward_fn_args", {"x": 1}, {}, "It has: format_score."),
    (f"{TASKS}.generator_args", {"tasks": 1, "dirt": 0}, {}, "'countdown' needs the argument 'demonstrations'."),
    (f"{TASKS}.generator_args", {"tasks": 1, "dirt": 0, "demonstrations": 0, "hi": 3}, {}, "no argument 'hi'"),
    ("algorithm.kl_loss_fn_args", {"coef": 1}, {"algorithm.kl_loss_fn": "k2"}, "'k2' has no argument 'coef'"),
    ("algorithm.sample_strategy_args", {"expert_ratio": 0.1}, {"algorithm.sample_strategy": "mix"},
     "'mix' has no argument 'expert_ratio'. Did you mean 'expert_data_ratio'?"),
    (f"{REPLAY}.priority_fn_args", {"decai": 1}, {f"{REPLAY}.enable": True},
     "'linear_decay' has no argument 'decai'. Did you mean 'decay'?"),
    ("algorithm.policy_loss_fn_args", {"enable_sequence_masking": True, "fallback_to_policy_gradient": True}, {},
     "enable_sequence_masking")])
def test_arguments_that_a_function_does_not_take(key, given, more, words):
    (problem,) = named_functions.wrong_arguments(rft({key: given, **more}))
    assert problem.startswith(key)
    assert words in problem


@pytest.mark.parametrize(("override", "key"), [
    (f"{TASKS}.generator_args={{1: 2, low: 1}}", f"{TASKS}.generator_args"),
    (f"{EXPLORER}.taskset.workflow_args={{1: 2}}", f"{EXPLORER}.taskset.workflow_args"),
    (f"{EXPLORER}.taskset.reward_fn_args={{1: 2}}", f"{EXPLORER}.taskset.reward_fn_args"),
    ("stages.rft.algorithm.policy_loss_fn_args={1: 2}", "algorithm.policy_loss_fn_args"),
    ("algorithm.advantage_fn_args={1: 2}", "algorithm.advantage_fn_args"),
    ("monitor.monitor_args={1: 2}", "monitor.monitor_args")])
def test_a_name_that_is_a_number_is_one_that_no_function_has(override, key):
    """YAML reads `1: 2` as a number; JSON, which a stage is handed, knows texts alone, beside others or nested."""
    found = [line for line in preflight.check(compose([override])).problems if key in line]
    assert len(found) == 1
    assert "'1'" in found[0] or f"{key}.1: unknown" in found[0]


def test_names_of_free_arguments_are_texts_in_a_stage_and_in_the_run(monkeypatch):
    monkeypatch.setenv("OURO_TEST", "{5: 6}")
    words = [f"{key}.x={{1: [{{2: 3, true: 4}}], y: ${{oc.env:OURO_TEST}}}}"
             for key in (f"{TASKS}.generator_args", f"stages.rft.{TASKS}.generator_args")]
    config, named = compose(words), {"1": [{"2": 3, "true": 4}], "y": {"5": 6}}
    for settings in (config, effective(config, config.stages[1])):
        assert settings.data_processor.task_pipeline.generator_args["x"] == named


@pytest.mark.parametrize("kind", algorithms.names())
def test_no_algorithm_of_ours_has_an_argument_too_many(kind):
    plain = {f"algorithm.{part}": None for part in named_functions.PARTS} | {
        f"algorithm.{part}_args": {} for part in named_functions.PARTS}
    assert named_functions.wrong_arguments(rft({**plain, "algorithm.algorithm_type": kind})) == []


def test_arguments_that_a_stage_does_not_use_are_not_judged_by_it():
    config = changed({"algorithm.policy_loss_fn_args": {"x": 1}})
    assert named_functions.wrong_arguments(effective(config, config.stages[0])) == []  # sft


def test_a_wrong_function_is_told_with_its_stage_and_key(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def loss(logprobs): ...\n")
    monkeypatch.chdir(tmp_path)
    config = changed({"stages.rft.algorithm.policy_loss_fn": "mine:los"})
    (problem,) = [one for one in preflight.check(config).problems if "mine:los" in one and "has no" in one]
    assert places([problem]) == ["rft: algorithm.policy_loss_fn"]
    assert "'loss'?" in problem


def test_a_module_is_looked_through_for_a_function_without_running_it(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text("raise SystemExit\ndef strict(response, answer, scale=1.0): ...\n")
    (tmp_path / "my_broken.py").write_text("def strict(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for wrong, words in (("my_rewards:strickt", "has no 'strickt'. Did you mean 'strict'?"),
                         ("my_broken:strict", "line 1")):
        (problem,) = user_code.wrong_code(rft({f"{EXPLORER}.taskset.default_reward_fn_type": wrong}))
        assert words in problem
    assert user_code.wrong_code(rft({f"{EXPLORER}.taskset.default_reward_fn_type": "my_rewards:strict"})) == []


def test_every_set_with_files_of_its_own_is_a_source_with_the_columns_it_needs():
    source, shown = "buffer.explorer_input", "buffer.trainer_input.experience_buffer"
    verl = {"prompt_type": "messages", "messages_key": "talk", "response_key": "reward_model.ground_truth"}
    found = sources(changed({
        "data_processor.task_pipeline.generator": None, f"{shown}.path": "shown.jsonl",
        f"{source}.tasksets": [element(Taskset, {"path": ["a.jsonl", "b"], "subset_name": "main", "format": verl})],
        f"{source}.eval_tasksets": [element(Taskset, {"name": "held", "path": "held.jsonl", "split": "test"}),
                                    element(Taskset, {})]}))
    assert [(s.key, s.path, s.split) for s in found] == [
        (f"{source}.tasksets.0.path.0", "a.jsonl/main", "train"), (f"{source}.tasksets.0.path.1", "b/main", "train"),
        (f"{source}.eval_tasksets.0.path", "held.jsonl", "test"), (f"{shown}.path", "shown.jsonl", "train")]
    assert [(s.name, s.label) for s in found][2:] == [("held", f"{source}.eval_tasksets.0.path (held)"),
                                                    ("experience_buffer", f"{shown}.path (experience_buffer)")]
    assert dict(found[0].columns)["prompt_key"] == "talk"
    assert dict(found[0].columns)["response_key"] == "reward_model.ground_truth"
    assert dict(found[3].columns) == {"prompt_key": "prompt", "solution_key": "response"}


def test_buffers_of_an_expert_and_plain_texts_are_sources_too():
    """Of plain text only its own column is wanted."""
    shown = {"mine": element(AuxiliaryBuffer, {"path": "shown.jsonl"})}
    given = {"buffer.trainer_input.auxiliary_buffers": shown,
             "buffer.trainer_input.experience_buffer.path": "texts.jsonl", "algorithm.algorithm_type": "cpt"}
    texts, demonstrations = sources(effective(changed(given), {}))
    assert dict(texts.columns) == {"prompt_key": "prompt"}
    assert demonstrations.key == "buffer.trainer_input.auxiliary_buffers.mine.path"
    assert sources(rft(given))[1] == demonstrations


def test_a_file_of_pairs_has_both_responses():
    """Whether it is the buffer's own or the pool; of a stage that reads no pairs nothing of the kind is wanted."""
    dpo, both = {"algorithm.algorithm_type": "dpo"}, {"chosen_key": "chosen", "rejected_key": "rejected"}
    buffer = {"buffer.trainer_input.experience_buffer.path": "pairs.jsonl"}
    (pairs,) = sources(effective(changed(dpo | buffer), {}))
    assert dict(pairs.columns) == {"prompt_key": "prompt", "solution_key": "response"} | both
    assert pairs.optional == ("solution_key",)
    pool = {"data_processor.task_pipeline.generator": None, "data_processor.task_pipeline.inputs": ["pairs.jsonl"]}
    (pairs,) = sources(effective(changed(dpo | pool), {}))
    assert both.items() <= dict(pairs.columns).items()
    for other in (buffer | pool, dpo | buffer | {"mode": "bench"}):
        assert not any(both.keys() & dict(one.columns) for one in sources(effective(changed(other), {})))


def test_a_loss_without_advantages_on_rollouts_is_told():
    """ppo takes them; of demonstrations there are none to take."""
    note = named_functions.loss_note(overridden("algorithm.policy_loss_fn=sft"), {})
    assert (note.key, note.found) == ("algorithm.policy_loss_fn", "sft")
    assert named_functions.loss_note(overridden("algorithm.policy_loss_fn=sft", "mode=explore"), {}) is None
    assert named_functions.loss_note(overridden(), {}) is None
    pairs = overridden("algorithm.algorithm_type=dpo", "algorithm.policy_loss_fn=dpo")
    assert named_functions.loss_note(pairs, {}) is None
    assert named_functions.loss_note(overridden("algorithm.algorithm_type=raft"), {}) is None  # the best row alone


@pytest.mark.parametrize(("words", "told"), [
    (("algorithm.algorithm_type=decoupled_ppo",), False),
    (("algorithm.algorithm_type=decoupled_ppo", "algorithm.policy_loss_fn_args.clip_range=0.1"), True),
    (("algorithm.policy_loss_fn_args.clip_range=0.1",), False),
    (("algorithm.bypass_old_logprobs=false",), True),
    (("algorithm.policy_loss_fn_args.fallback_to_policy_gradient=true", "algorithm.bypass_old_logprobs=false"), False),
    (("algorithm.algorithm_type=topr", "algorithm.policy_loss_fn=topr", "algorithm.policy_loss_fn_args={}",
      "algorithm.bypass_old_logprobs=false"), False),
    (("algorithm.policy_loss_fn_args.clip_range=0.1", "algorithm.bypass_old_logprobs=false", "mode=explore"), False)])
def test_a_note_says_that_a_clip_around_the_policy_before_the_only_update_cannot_act(words, told):
    """The ratio to it is 1; that to the rollout's policy is not."""
    assert ("clipping cannot act" in (named_functions.clip_note(overridden(*words), {}) or "")) == told


@pytest.mark.parametrize(("given", "refused"), [
    ({}, True), ({"algorithm.bypass_old_logprobs": False}, False),
    ({"algorithm.rollout_correction.level": None}, False),
    ({"algorithm.policy_loss_fn_args": {"fallback_to_policy_gradient": True}}, False),
    ({"algorithm.policy_loss_fn": "topr", "algorithm.policy_loss_fn_args": {}, "algorithm.bypass_old_logprobs": False},
     True),
    ({"algorithm.algorithm_type": "raft", "algorithm.advantage_fn": "raft", "algorithm.policy_loss_fn": "sft"}, False)])
def test_a_rollout_correction_is_refused_where_the_loss_has_a_ratio_to_the_rollout(given, refused):
    found = named_functions.wrong_arguments(rft({"algorithm.rollout_correction.level": "token", **given}))
    assert [("same gap twice" in line) for line in found] == [True] * refused


@pytest.mark.parametrize(("loss", "mask"), [("ppo", "enable_sequence_masking"), ("cispo", "enable_mask_clip")])
@pytest.mark.parametrize(("given", "refused"), [({}, False), ({"algorithm.bypass_old_logprobs": False}, True)])
def test_a_mask_by_staleness_is_refused_where_the_ratio_is_one(loss, mask, given, refused):
    words = {"algorithm.policy_loss_fn": loss, "algorithm.policy_loss_fn_args": {mask: True}, **given}
    assert [mask in line for line in named_functions.wrong_arguments(rft(words))] == [True] * refused
    off = words | {"algorithm.policy_loss_fn_args": {mask: False}}
    assert named_functions.wrong_arguments(rft(off)) == []


@pytest.mark.parametrize(("given", "key"), [
    # without weight
    ("kl_loss_fn=k2 kl_loss_fn_args.kl_coef=0", "kl_loss_fn_args.kl_coef"),
    ("kl_loss_fn=none kl_loss_fn_args.kl_coef=0", None),
    ("kl_loss_fn=k1 kl_loss_fn_args.kl_coef=0.0", "kl_loss_fn_args.kl_coef"),
    ("kl_loss_fn=k2 kl_loss_fn_args.kl_coef=1e-9", None),
    ("kl_penalty_fn=k1 kl_penalty_fn_args.kl_coef=0", "kl_penalty_fn_args.kl_coef"),
    # without a mean gradient; a penalty takes its value, which is unbiased
    ("kl_loss_fn=k1", "kl_loss_fn"), ("kl_loss_fn=k2", None), ("kl_penalty_fn=k1", None)])
def test_a_kl_that_cannot_act_is_named(given, key):
    config = overridden(*(f"algorithm.{one}" for one in given.split()))
    note = named_functions.estimate_note(config)
    assert (note and note.key) == (key and f"algorithm.{key}")
    assert named_functions.estimate_note(config.but("mode", "explore")) is None
