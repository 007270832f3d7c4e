"""Every workflow that Trinity-RFT 0.6.0 registers: which works here, and what takes the place of the others."""

import importlib
import re

import jinja2
import pytest

from ouroboros.commands.bridges import tables
from ouroboros.operators.generate import GENERATORS
from ouroboros.pipeline.check.judge import judged
from ouroboros.pipeline.settings.arguments.answers import REWARDS, WORKFLOWS
from ouroboros.pipeline.store.files import CONF
from tests.bridges import from_trinity, left_out_of_trinity, written

KEY = "buffer.explorer_input.default_workflow_type"
SIMPLE = """simple_workflow async_simple_workflow math_workflow async_math_workflow math_boxed_workflow
async_math_boxed_workflow math_eval_workflow async_math_eval_workflow math_rm_workflow async_math_rm_workflow
on_policy_distill_workflow on_policy_distill_math_workflow tool_call_workflow toolcall_workflow"""
JUDGED = "math_ruler_workflow async_math_ruler_workflow"
ABSENT = """math_trainable_ruler_workflow
rubric_judge_openai_workflow agentscope_workflow_adapter
agentscope_workflow_adapter_v1 agentscope_v1_react_search_workflow email_search_workflow alfworld_workflow
step_wise_alfworld_workflow RAFT_alfworld_workflow RAFT_reflect_alfworld_workflow sciworld_workflow webshop_workflow
intercode_sql_workflow sudoku_workflow"""
REACTING = {"agentscope_react_math_workflow": "tool_call_workflow", "agentscope_react_workflow": "simple_workflow",
            "agentscopev0_react_math_workflow": "tool_call_workflow", "as_react_workflow": "simple_workflow"}
CONVERSING = "bots_math_boxed_workflow examples.bots.workflow.bots_math_boxed_workflow.BOTSMathBoxedWorkflow"
SEEING = "simple_mm_workflow async_simple_mm_workflow"
PLAYED = "frozen_lake_workflow examples.agentscope_frozenlake.workflow.FrozenLakeWorkflow"


def test_all_are_known():
    every = [*f"{SIMPLE} {JUDGED} {ABSENT} {PLAYED} {CONVERSING} {SEEING}".split(), *REACTING, "rubric_judge_workflow"]
    assert (len(every), set(every)) == (41, set(tables.workflows()))  # with those of examples
    assert all(("to" in group) != ("instead" in group) for group in tables.workflows().values())


@pytest.mark.parametrize("name", SIMPLE.split())
def test_single_turns_are_simple_workflows(name):
    made = from_trinity(f"buffer: {{explorer_input: {{default_workflow_type: {name}}}}}")
    found = written(made)
    assert found[KEY] == "simple_workflow"
    own = (name.startswith(("math_", "async_math_")) and "_rm_" not in name) or "distill" in name
    both = ["accuracy_reward", "format_reward"] if name.endswith("math_workflow") else "accuracy_reward"
    assert found.get("buffer.explorer_input.default_reward_fn_type") == (
        "accuracy_reward" if "distill" in name else both if own else None)
    differs = any(one in name for one in ("eval", "_rm_", "tool_call", "toolcall", "distill_math"))
    assert any(said.startswith(f"{name} (simple_workflow): ") for said in made.chosen) == differs


@pytest.mark.parametrize("name", SEEING.split())
def test_images_are_shown_by_the_simple_workflow_with_the_system_message_of_the_other(name):
    made = from_trinity(f"""
buffer: {{explorer_input: {{default_workflow_type: {name}, default_reward_fn_type: math_boxed_reward,
  taskset: {{path: /d, format: {{image_key: images}}}}}}}}""")
    found, source = written(made), "buffer.explorer_input"
    assert (found[KEY], made.lacking) == ("simple_workflow", {})
    assert found[f"{source}.taskset.format.image_key"] == "images"
    assert found[f"{source}.system_prompt"].endswith(
        "<think>\n ...your reasoning process here... </think>\n first. You should always include your final answer in "
        "\\boxed{} as closed-form results.")


@pytest.mark.parametrize(("name", "more", "word"), [
    ("math_workflow", "", "<answer>"), ("math_workflow", "default_reward_fn_type: math_reward", "<answer>"),
    ("math_workflow", "default_reward_fn_type: countdown_reward", None), ("math_boxed_workflow", "", "step by step"),
    ("math_boxed_workflow", "taskset: {path: /d, workflow_args: {with_think: true}}", "...your reasoning"),
    ("math_boxed_workflow", "taskset: {path: /d, workflow_args: {with_think: false}}, "
     "eval_tasksets: [{path: /e, workflow_args: {with_think: true}}]", "step by step"),
    ("math_workflow", "taskset: {path: /d, default_reward_fn_type: countdown_reward}, "
     "eval_tasksets: [{path: /e, default_reward_fn_type: math_reward}]", None),
    ("math_workflow", "taskset: {path: /d, default_workflow_type: simple_workflow}", None),
    ("simple_mm_workflow", "default_reward_fn_type: math_boxed_reward", "...your reasoning"),
    ("on_policy_distill_math_workflow", "", "step by step"), ("simple_workflow", "", None)])
def test_the_system_prompt_of_a_workflow_is_written(name, more, word):
    """math_workflow has one where it rewards by itself. Tasks to train on decide."""
    found = written(from_trinity(f"buffer: {{explorer_input: {{default_workflow_type: {name}, {more}}}}}"))
    prompt = found.get("buffer.explorer_input.system_prompt")
    assert prompt is None if word is None else word in prompt


@pytest.mark.parametrize("named", ["", "default_reward_fn_type: math_reward"])
def test_the_reward_of_math_workflow_is_the_same_with_its_name(named):
    made = from_trinity(f"buffer: {{explorer_input: {{default_workflow_type: math_workflow, {named}}}}}")
    assert written(made)["buffer.explorer_input.default_reward_fn_type"] == ["accuracy_reward", "format_reward"]


@pytest.mark.parametrize(("of_set", "thinks", "lost"), [
    ("taskset: {", True, True), ("taskset: {", False, False),
    ("taskset: {path: /d}, eval_tasksets: [{name: test, ", True, False)])
def test_a_reward_of_thoughts_is_lost_where_it_trains(of_set, thinks, lost):
    """There a response loses 0.1 without them, and has nothing more with them."""
    made = from_trinity(f"buffer: {{explorer_input: {{default_workflow_type: math_boxed_workflow, {of_set}path: /x, "
                        f"workflow_args: {{with_think: {thinks}}}}}{']' * ('[' in of_set)}}}}}")
    assert ("reward" in made.lacking) == lost
    assert [given.path[-1] for given, _ in made.left_out] == ["with_think"]


@pytest.mark.parametrize("name", JUDGED.split())
def test_answers_are_compared_by_the_first_auxiliary_model(name):
    made = from_trinity(f"""
buffer: {{explorer_input: {{default_workflow_type: {name}, taskset: {{path: /d}}, eval_tasksets: [{{path: /e}}]}}}}
explorer: {{auxiliary_models: [{{model_path: /judge}}]}}""")
    found, source = written(made), "buffer.explorer_input"
    assert (found[KEY], made.lacking) == ("simple_workflow", {})
    assert found[f"{source}.default_reward_fn_type"] == "judge_reward"
    assert found[f"{source}.taskset.reward_fn_args.compare"] is True
    assert found[f"{source}.taskset.reward_fn_args.judge_model"] == found["explorer.auxiliary_models.0.name"] == "judge"
    assert found[f"{source}.eval_tasksets.0.default_reward_fn_type"] == "accuracy_reward"


def test_a_rubric_of_each_row_is_the_truth_that_the_judge_reads():
    made = from_trinity("""
buffer:
  explorer_input:
    taskset: {path: /d, format: {response_key: reference}, default_workflow_type: rubric_judge_workflow}
explorer: {auxiliary_models: [{model_path: /judge}]}""")
    found, source = written(made), "buffer.explorer_input"
    assert found[f"{source}.taskset.format.response_key"] == "rubric"
    assert found[f"{source}.default_reward_fn_type"] == "judge_reward"
    assert (made.lacking, f"{source}.taskset.reward_fn_args.compare" in found) == ({}, False)


@pytest.mark.parametrize("name", CONVERSING.split())
def test_rows_that_are_conversations_are_asked_as_they_are(name):
    made = from_trinity(f"buffer: {{explorer_input: {{default_workflow_type: {name}}}}}")
    found = written(made)
    assert (found[KEY], found["buffer.explorer_input.default_reward_fn_type"]) == ("simple_workflow", "accuracy_reward")
    assert ("buffer.explorer_input.system_prompt" in found, made.lacking) == (False, {})


@pytest.mark.parametrize(("name", "ours"), REACTING.items())
def test_an_agent_that_reasons_and_acts_has_its_prompt_and_its_tool(name, ours):
    made = from_trinity(f"buffer: {{explorer_input: {{default_workflow_type: {name}, taskset: {{path: /d}}}}}}")
    found, source = written(made), "buffer.explorer_input"
    assert (found[KEY], found[f"{source}.default_reward_fn_type"], made.lacking) == (ours, "accuracy_reward", {})
    assert "boxed" in found[f"{source}.system_prompt"]
    place = found.get(f"{source}.taskset.workflow_args.environment_class")
    module, _, of_module = (place or "").partition(":")
    assert (place is not None) == (ours == "tool_call_workflow")
    assert place is None or hasattr(importlib.import_module(module), of_module)


@pytest.mark.parametrize("name", PLAYED.split())
def test_a_world_that_is_here_has_tasks_of_its_generator(name):
    """Of 8 and 10 moves the 8th is the last. A lake on which moves slip is another one."""
    text = f"""
buffer:
  explorer_input:
    default_workflow_type: {name}
    taskset: {{path: /d, split: train, workflow_args: {{env_max_steps: 8, agent_max_steps: 10, is_slippery: no}}}}
    eval_tasksets: [{{name: b, path: /d, format: {{prompt_key: q}}}}]"""
    made = from_trinity(text)
    found, source = written(made), "buffer.explorer_input"
    assert (found[KEY], made.lacking) == ("tool_call_workflow", {})
    assert found["data_processor.task_pipeline.generator"] == "frozen_lake"
    assert [key for key in found if key.endswith((".path", "prompt_key", "agent_max_steps"))] == []
    for of_set, split, moves in (("taskset", "train", 8), ("eval_tasksets.0", "test", 10)):
        assert found[f"{source}.{of_set}.split"] == split
        assert found[f"{source}.{of_set}.workflow_args.max_rounds"] == moves
        assert ":FrozenLake" in found[f"{source}.{of_set}.workflow_args.environment_class"]
    assert from_trinity(text.replace("is_slippery: no", "is_slippery: yes")).lacking


@pytest.mark.parametrize("name", ABSENT.split())
def test_others_stay_refused_and_the_report_says_what_to_use(name):
    made = from_trinity(f"buffer: {{explorer_input: {{default_workflow_type: {name}}}}}")
    assert written(made)[KEY] == name
    (said,) = [one for one in made.chosen if one.startswith(f"{name} (none here): ")]
    assert not any("Trinity-RFT's classes" in one for one in made.chosen)
    assert KEY in {problem.key for problem in judged([f"{KEY}={name}"])[1]}
    for workflow in re.findall(r"\b\w+_workflow\b", said.partition(": ")[2]):
        assert workflow in WORKFLOWS
    for module, of_module in re.findall(r"(workflows\.environments\.\w+):(\w+)", said):
        assert hasattr(importlib.import_module(module), of_module)
    for recipe in re.findall(r"\(recipe (\w+)\)", said):
        assert (CONF / "recipe" / f"{recipe}.yaml").is_file()
    assert set(re.findall(r"generator=(\w+)", said)) <= set(GENERATORS)
    assert set(re.findall(r"default_reward_fn_type=(\w+)", said)) <= set(REWARDS)


def test_a_set_and_a_stage_name_workflows_too():
    made = from_trinity("""
buffer: {explorer_input: {taskset: {path: /d, default_workflow_type: math_eval_workflow}}}
stages: [{stage_name: a, buffer: {explorer_input: {taskset: {default_workflow_type: sudoku_workflow}}}}]""")
    found = written(made)
    assert found["buffer.explorer_input.taskset.default_workflow_type"] == "simple_workflow"
    assert "sudoku_workflow" in found.values()
    assert [one.partition(" ")[0] for one in made.chosen if "(none here)" in one] == ["sudoku_workflow"]


def test_a_workflow_that_nobody_knows_is_code_of_the_user():
    made = from_trinity("buffer: {explorer_input: {default_workflow_type: my_registered_workflow}}")
    assert written(made)[KEY] == "my_registered_workflow"
    assert any(said.startswith("my_registered_workflow: code for") for said in made.chosen)


def test_arguments_of_a_workflow_that_is_another_here_are_left_out():
    text = ("buffer: {explorer_input: {taskset: {path: /d, default_workflow_type: tool_call_workflow, "
            "workflow_args: {max_rounds: 3}}}}")
    assert set(left_out_of_trinity(text)) == {"buffer.explorer_input.taskset.workflow_args.max_rounds"}


def test_the_prompts_of_a_base_model_are_a_chat_template():
    made = from_trinity("""buffer: {explorer_input: {
default_workflow_type: math_boxed_workflow, taskset: {path: /d, workflow_args: {use_base: true}}}}""")
    assert ["chat template" in why for given, why in made.left_out if given.path[-1] == "use_base"] == [True]
    text = jinja2.Template(written(made)["model.custom_chat_template"], keep_trailing_newline=True).render(
        messages=[{"role": "system", "content": "s"}, {"role": "user", "content": "q"}])
    assert text == "System:s\nUser:\nq\nAssistant:\n"


@pytest.mark.parametrize("image_key", [None, "images"])
def test_rows_with_images_are_not_split_over_ranks_and_weights_are(image_key):
    made = from_trinity(f"""
cluster: {{node_num: 1, gpu_per_node: 8}}
buffer: {{explorer_input: {{taskset: {{path: /d, format: {{image_key: {image_key or 'null'}}}}}}}}}
trainer: {{ulysses_sequence_parallel_size: 2}}""")
    assert ("trainer.ulysses_sequence_parallel_size" in written(made)) == (image_key is None)
    assert written(made)["trainer.zero_stage"] == 3


@pytest.mark.parametrize(("workflow", "lost"), [("math_ruler_workflow", True), ("math_boxed_workflow", False),
                                                ("frozen_lake_workflow", True)])
def test_a_workflow_of_an_evaluation_rewards_no_training(workflow, lost):
    made = from_trinity(f"""
buffer: {{explorer_input: {{default_workflow_type: math_workflow, taskset: {{path: /d}},
  eval_tasksets: [{{path: /e, default_workflow_type: {workflow}}}]}}}}
explorer: {{auxiliary_models: [{{model_path: /m}}]}}""")
    assert written(made)["buffer.explorer_input.default_reward_fn_type"] == ["accuracy_reward", "format_reward"]
    assert any(workflow in str(said) for said in made.lacking.values()) == lost


def test_each_of_several_sets_to_train_on_is_trained_on():
    found = written(from_trinity("""
buffer: {explorer_input: {tasksets: [{path: /d, default_workflow_type: math_boxed_workflow},
                                     {path: /e, default_workflow_type: simple_workflow}]}}"""))
    assert "step by step" in found["buffer.explorer_input.system_prompt"]
