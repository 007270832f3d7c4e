"""`ouro replay`: the alternatives to an algorithm, from a run's frozen configuration and overrides."""

from types import SimpleNamespace

import pytest

from ouroboros.commands import cli
from ouroboros.pipeline.compose.recipe import effective
from ouroboros.pipeline.results.counterfactual import alternatives
from ouroboros.pipeline.settings.kinds import ONLINE
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.files import write_json
from tests.configs import changed
from tests.golden.messages import wording


@pytest.fixture
def run(tmp_path):
    """run(dotted values): the directory of a run with these settings, and the section `algorithm` of its stage rft."""
    from omegaconf import OmegaConf

    def make(values):
        config = changed(values)
        (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(plain(config))))
        return tmp_path, effective(config, config.stages[1]).algorithm

    return make


def made(run, *overrides, **values):
    directory, original = run({key.replace("__", "."): value for key, value in values.items()})
    return alternatives(directory, "rft", original, list(overrides))


def refused(run, *overrides, **values) -> str:
    with pytest.raises(ConfigError) as caught:
        made(run, *overrides, **values)
    return str(caught.value)


def test_every_combination_is_an_alternative_and_a_name_may_be_spelt_as_for_a_run(run):
    found = made(run, "algorithm=gspo,dapo", "algorithm.kl_loss_fn=none,k2")
    assert list(found) == ["algorithm=gspo,kl_loss_fn=none", "algorithm=gspo,kl_loss_fn=k2",
                           "algorithm=dapo,kl_loss_fn=none", "algorithm=dapo,kl_loss_fn=k2"]
    assert [section.policy_loss_fn for section in found.values()] == ["gspo", "gspo", "ppo", "ppo"]
    assert found["algorithm=dapo,kl_loss_fn=k2"].policy_loss_fn_args["clip_range_high"] == 0.28
    for key in ("algorithm", "algorithm.algorithm_type"):
        (found,) = made(run, f"{key}=gspo-token").values()
        assert (found.algorithm_type, found.policy_loss_fn) == ("gspo_token", "gspo_token")
    assert made(run) == {}


def test_what_no_type_says_stays_and_groups_are_as_they_were(run):
    """dapo's own repeat_times is 16; the rows of the batch are in groups of 8. Its strategy says which rows."""
    (found,) = made(run, "algorithm=dapo", algorithm__bypass_old_logprobs=False,
                    algorithm__sample_strategy="staleness_control",
                    algorithm__rollout_correction__threshold=3.0).values()
    assert (found.bypass_old_logprobs, found.repeat_times) == (False, 8)
    assert found.sample_strategy == "staleness_control"
    assert plain(found.rollout_correction) == {"level": None, "mode": "truncate", "threshold": 3.0}


@pytest.mark.parametrize("place", ["algorithm", "stages.rft.algorithm"])
def test_a_type_that_is_named_is_tried_with_all_its_parts(run, place):
    """Whatever parts, arguments and averages the run named for its own type, or its stage did."""
    own = {"policy_loss_fn": "m2po", "policy_loss_fn_args": {"m2_threshold": 0.1},
           "advantage_fn_args": {"epsilon": 0.5}, "kl_loss_fn": "k3", "loss_agg_mode": "token-mean",
           "rollout_correction.level": "token"}
    expected = made(run, "algorithm=gspo,dapo,topr,grpo", algorithm__bypass_old_logprobs=False)
    found = made(run, "algorithm=gspo,dapo,topr,grpo", algorithm__bypass_old_logprobs=False,
                 **{f"{place}.{key}": value for key, value in own.items()})
    assert found == expected
    assert [section.policy_loss_fn for section in found.values()] == ["gspo", "ppo", "topr", "ppo"]
    assert found["algorithm=topr"].advantage_fn == "reinforce"


def test_a_type_with_a_part_of_another_is_said_in_the_same_alternative_and_without_a_type_the_runs_parts_stay(run):
    (found,) = made(run, "algorithm=dapo", "algorithm.kl_loss_fn=k2",
                    "algorithm.policy_loss_fn_args.clip_range_low=0.1", algorithm__kl_loss_fn="k3").values()
    assert found.kl_loss_fn == "k2"
    assert found.policy_loss_fn_args == {"clip_range_low": 0.1, "clip_range_high": 0.28}
    (found,) = made(run, "algorithm.policy_loss_fn=gspo", algorithm__kl_loss_fn="k3",
                    algorithm__advantage_fn_args={"epsilon": 0.5}).values()
    assert (found.kl_loss_fn, found.advantage_fn_args) == ("k3", {"epsilon": 0.5})


def test_arguments_of_another_function_are_left_behind(run):
    """Whether the run or its stage gave them."""
    for key in ("algorithm__policy_loss_fn_args", "stages__rft__algorithm__policy_loss_fn_args"):
        (found,) = made(run, "algorithm=sapo", **{key: {"clip_range": 0.1}}).values()
        assert found.policy_loss_fn_args == {}
        (same,) = made(run, "algorithm.policy_loss_fn_args.clip_ratio_c=5", **{key: {"clip_range": 0.1}}).values()
        assert same.policy_loss_fn_args == {"clip_range": 0.1, "clip_ratio_c": 5}


@pytest.mark.parametrize(("override", "words"), [
    ("algorithm=gspoo", "algorithm.algorithm_type=gspoo: Did you mean 'gspo'?"),
    ("algorithm=dpo", "dpo learns from given responses"),
    ("algorithm=ppo", "needs the values of a critic, and this stage trained none"),
    ("algorithm=on_policy_distill", "needs the log-probs of a teacher, and this stage has none"),
    ("algorithm.policy_loss_fn=gspo,pppo", "policy_loss_fn=pppo: algorithm.policy_loss_fn=pppo: Did you mean 'ppo'?"),
    ("algorithm.policy_loss_fn_args.clip=1", "'ppo' has no argument 'clip'"),
    ("algorithm.policy_loss_fn=no_such_parts:loss", "'no_such_parts:loss': no such module"),
    ("algorithm=remax", "needs the column baseline_reward, the reward of a greedy response to each task, which the "
                        "rows lack. They have it with stages.rft.algorithm.greedy_baseline=true."),
    ("algorithm=gigpo", "(column state_hash), and the workflow of stages.rft.buffer.explorer_input.taskset, simple_wo"),
    ("algorithm.greedy_baseline=true", "judged by another algorithm, and nothing else can be another"),
    ("algorithm.repeat_times=4", "judged by another algorithm, and nothing else can be another"),
    ("seed=2", "'seed=2': a batch that is there is judged by another algorithm"),
    ("algorithm.optimizer.lr=range(1,200)", "alternatives; needed at most 100"),
    ("algorithm.lr=1", "algorithm.lr: unknown key")])
def test_what_cannot_be_tried_is_refused(run, override, words):
    assert words in refused(run, override)


def test_rows_count_as_they_were_explored(run):
    """A baseline was asked for; groups of one have nothing to compare."""
    (found,) = made(run, "algorithm=remax", algorithm__greedy_baseline=True).values()
    assert (found.advantage_fn, found.greedy_baseline, found.repeat_times) == ("remax", True, 8)
    alone = {"algorithm__algorithm_type": "reinforce", "algorithm__repeat_times": 1}
    wording(refused(run, "algorithm=grpo", **alone), "stages.rft.algorithm.repeat_times", "least 2")
    (found,) = made(run, "algorithm.policy_loss_fn=gspo", **alone).values()
    assert found.repeat_times == 1


def test_problems_of_all_alternatives_come_at_once(run):
    said = refused(run, "algorithm=dpo,gspo,sft")
    assert "algorithm=dpo: dpo learns" in said
    assert "algorithm=sft: sft learns" in said


def test_the_command_refuses_what_it_cannot_replay(tmp_path, monkeypatch, capsys):
    view = tmp_path / "runs" / "toy" / "one"
    write_json(view / "plan.json", {"project": "toy", "name": "one", "stages": [
        {"name": "sft", "kind": "train"}, {"name": "rft", "kind": "rft"}]})
    for words, said in ((["one", "two"], "the name of one run, found one, two"), (["three"], "no run 'three'"),
                        (["one", "--stage", "sft"], "does not train on rollouts"),
                        (["one"], "is not there; `ouro run`")):
        assert cli.main(["replay", *words, "--root", str(tmp_path)]) == 2
        assert said in capsys.readouterr().err


def test_an_unfaithful_replay_is_told_by_the_exit_code(tmp_path, monkeypatch, capsys):
    from ouroboros.pipeline.results import counterfactual, sweep_view
    from ouroboros.pipeline.results.view import Node, View

    shown = View("toy/one", tmp_path, [Node("rft", ONLINE, tmp_path)])
    monkeypatch.setattr(sweep_view, "find", lambda root, *names: shown)
    monkeypatch.setattr(counterfactual, "prepare", lambda *asked: {"step": 7})
    for found, code in ((1.0, 0), (1.5, 1)):
        line = dict.fromkeys(counterfactual.MEANINGS) | {"rows": 4, "loss": found}
        answer = {"proof": [["loss", 1.0, found, 0.1]], "rows": {"as it was": line}}
        monkeypatch.setattr(counterfactual, "ask", lambda request, answer=answer: answer)
        assert cli.main(["replay", "--format", "csv"]) == code
        said = capsys.readouterr()
        assert said.out.splitlines()[1].startswith(f"as it was,4,,,,,{found},")
        assert ("DIFFERS" in said.err) == bool(code)


def test_a_sweep_is_not_replayed(monkeypatch, capsys):
    from ouroboros.pipeline.results import sweep_view

    entry = SimpleNamespace(view=SimpleNamespace(run="toy/one-seed=1"))
    monkeypatch.setattr(sweep_view, "find", lambda root: SimpleNamespace(run="toy/one", entries=[entry]))
    assert cli.main(["replay"]) == 2
    wording(capsys.readouterr().err, "toy/one-seed=1")
