"""What of a Trinity-RFT configuration cannot stand in a recipe though its key can: it is left out, and told."""

import pytest

from ouroboros.commands import cli
from ouroboros.pipeline.check.judge import compose
from tests.bridges import from_trinity, left_out_of_trinity, written
from tests.golden.messages import wording


@pytest.mark.parametrize(("text", "key", "why"), [
    ("stages: 3", "stages", "needed a list of stages, each a mapping of settings with its stage_name. Found 3."),
    ("stages: [a, 1]", "stages", "needed a list of stages"),
    ("stages:\n- 3\n- stage_name: a", "stages.0", "needed a list of stages"),
    ("stages: {first: {stage_name: a}}", "stages.first.stage_name", "needed a list of stages"),
    ("buffer: [1]", "buffer", "needed a mapping of settings, found [1]."),
    ("model: 5", "model", "needed a mapping of settings, found 5."),
    ("trainer: null", "trainer", "no settings there."),
    ("buffer: {explorer_input: {taskset: {rollout_args: 3}}}", "buffer.explorer_input.taskset.rollout_args",
     "needed a mapping of settings, found 3.")])
def test_what_is_no_section_or_no_list_of_stages(text, key, why):
    assert left_out_of_trinity(text)[key].startswith(why)
    assert written(from_trinity(text)).keys() <= {"buffer.batch_size", "stages.0.stage_name",
                                                  "trainer.max_checkpoints_to_keep"}


@pytest.mark.parametrize(("text", "key", "why"), [
    ("cluster: {node_num: two}", "cluster.node_num", "needed a whole number, found the text 'two'; our default"),
    ("{cluster: {node_num: 2, gpu_per_node: 8}, explorer: {rollout_model: {engine_num: 3}}}", "cluster.node_num",
     "every machine has as many engines and as many ranks"),
    ("algorithm: {optimizer: {lr: fast}}", "algorithm.optimizer.lr", "needed a number, found the text 'fast'"),
    ("algorithm: {optimizer: {lr_scheduler_type: bar}}", "algorithm.optimizer.lr_scheduler_type", "needed one of"),
    ("trainer: {total_steps: many}", "trainer.total_steps",
     "as buffer.total_steps: needed a whole number, found the text 'many'"),
    ("model: {min_response_tokens: 16}", "model.min_response_tokens", "the engine would forbid the end"),
    ("buffer: {batch_size: 4.5}", "buffer.batch_size", "needed a whole number, found 4.5")])
def test_a_value_that_would_not_compose(text, key, why):
    assert left_out_of_trinity(text)[key].startswith(why)


def test_a_text_that_stands_for_a_number_is_one():
    """As the original reads it, whose settings have types too."""
    found = written(from_trinity(
        "model: {max_prompt_tokens: '12'}\ntrainer: {total_steps: '7', save_interval: '${x}'}"))
    assert (found["model.max_prompt_tokens"], found["buffer.total_steps"]) == (12, 7)
    assert found["trainer.save_interval"] == "${x}"


CRITIC = """
model: {critic_model_path: c}
trainer: {critic_warmup: 5, trainer_config: {critic: {optim: {lr: 1e-5}, cliprange_value: 0.5}}}
"""
OF_CRITIC = ["model.critic_model_path", "trainer.critic_warmup", "trainer.trainer_config.critic.cliprange_value",
             "trainer.trainer_config.critic.optim.lr"]


@pytest.mark.parametrize(("algorithm", "lost"), [
    ("algorithm: {algorithm_type: grpo}", OF_CRITIC),
    ("algorithm: {algorithm_type: ppo}", []),
    ("algorithm: {algorithm_type: grpo, advantage_fn: ppo}", []),
    ("algorithm: {algorithm_type: '${oc.env:ALGORITHM}'}", []),
    ("stages: [{stage_name: a, algorithm: {algorithm_type: sft}}, {stage_name: b, algorithm: {algorithm_type: ppo}}]",
     []),
    ("stages: [{stage_name: a, algorithm: {algorithm_type: sft}}, {stage_name: b, algorithm: {algorithm_type: rloo}}]",
     OF_CRITIC)])
def test_a_critic_is_left_out_where_no_algorithm_has_one(algorithm, lost):
    found = left_out_of_trinity(CRITIC + algorithm)
    assert sorted(key for key, why in found.items() if "has no critic." in why) == lost


def test_one_stage_with_a_critic_and_one_without():
    text = ("stages:\n- {stage_name: a, algorithm: {algorithm_type: ppo}, trainer: {critic_warmup: 3}}\n"
            "- {stage_name: b, algorithm: {algorithm_type: grpo}, trainer: {critic_warmup: 3}}\n")
    wording([left_out_of_trinity(text)], "stages.1.trainer.critic_warmup", "disabled")


def test_what_says_how_a_file_is_read_goes_with_its_path():
    buffer = "buffer: {trainer_input: {experience_buffer: {%s format: {prompt_key: q}, subset_name: main}}}"
    where = "buffer.trainer_input.experience_buffer"
    for given, why in (("storage_type: sql, path: x,", "its path is left out."), ("path: 'sqlite:///a.db',", "is left"),
                       ("", "none is given.")):
        found = left_out_of_trinity(buffer % given)
        assert why in found[f"{where}.format.prompt_key"]
        assert why in found[f"{where}.subset_name"]
    assert left_out_of_trinity(buffer % "path: rows.jsonl,") == {}


def test_a_stage_reads_the_file_that_all_stages_have():
    found = written(from_trinity("""
buffer: {trainer_input: {experience_buffer: {path: rows.jsonl}}}
stages: [{stage_name: a, buffer: {trainer_input: {experience_buffer: {format: {prompt_key: q}}}}}]
"""))
    assert found["stages.0.buffer.trainer_input.experience_buffer.format.prompt_key"] == "q"


def test_names_of_stages_become_such_as_can_be_one_here():
    made = from_trinity("""
stages:
- {stage_name: rft-2, seed: 1}
- {stage_name: rft 2, seed: 2}
- {stage_name: tasks, seed: 3}
- {seed: 4}
- {stage_name: 3, seed: 5}
- {stage_name: fine, seed: 6}
- {stage_name: bench, mode: bench}
""")
    found = written(made)
    assert [found[f"stages.{i}.stage_name"] for i in range(7)] == [
        "rft_2", "rft_2_2", "stage_tasks", "stage_4", "stage_3", "fine", "stage_bench"]
    assert [key for _, key in made.renamed] == [f"stages.{i}.stage_name" for i in (0, 1, 2, 4, 6)]


def test_a_configuration_with_every_such_fault_composes(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text(CRITIC + """
algorithm: {algorithm_type: grpo, repeat_times: '4', optimizer: {lr: fast}}
cluster: {node_num: 2, gpu_per_node: 8}
buffer:
  explorer_input: {taskset: {path: a.jsonl}, default_reward_fn_type: math_reward}
  trainer_input: {experience_buffer: {storage_type: sql, path: 'sqlite:///x.db', format: {prompt_key: q}}}
stages: [{stage_name: rft-2, explorer: 3}]
""")
    recipe = tmp_path / "made.yaml"
    assert cli.main(["import", "trinity", str(tmp_path / "c.yaml"), "--output", str(recipe)]) == 0
    assert "it composes" in capsys.readouterr().out
    assert [stage["stage_name"] for stage in compose([f"recipe={recipe}"]).stages] == ["rft_2"]
