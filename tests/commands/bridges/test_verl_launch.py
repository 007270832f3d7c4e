"""Which command of a script is read, as which program of veRL, and what is said of the rest of the script."""

import pytest

from ouroboros.commands.bridges.verl_entry import entry_of
from ouroboros.pipeline.store.errors import ConfigError
from tests.bridges import from_verl, launch, written
from tests.golden.messages import refuses, wording

SIZES = "data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=32"
START = "python3 -m verl.trainer.main_ppo trainer.nnodes=1"


@pytest.mark.parametrize(("word", "kind"), [
    ("verl.trainer.main_ppo", "rl"), ("verl/trainer/main_ppo.py", "rl"), ("main_ppo.py", "rl"),
    ("recipe.dapo.main_dapo", "rl"), ("recipe.dapo.src.main_dapo", "rl"),
    ("recipe.one_step_off_policy.async_main_ppo", "rl"), ("$HOME/verl/verl/trainer/main_ppo.py", "rl"),
    ("verl.experimental.fully_async_policy.fully_async_main", "rl"),
    ("verl.trainer.fsdp_sft_trainer", "sft"), ("verl.trainer.sft_trainer", "sft"),
    ("verl/trainer/fsdp_sft_trainer.py", "sft"), ("verl.trainer.main_generation", "other"),
    ("verl.trainer.main_eval", "other"), ("verl.model_merger", "other"), ("recipe.spin.main_spin", "other"),
    *((word, None) for word in ("python3", "-m", "data.train_files=main_ppo", "verl", "train.py", "domain_ppo_x",
                                "verl.utils.dataset", "main", "trainer.project_name=main_x"))])
def test_programs_are_told_apart_by_name_and_other_words_are_none(word, kind):
    assert getattr(entry_of(word), "kind", None) == kind


@pytest.mark.parametrize(("module", "why"), [
    ("verl.trainer.main_generation", "only generates responses"), ("verl.trainer.main_eval", "scores responses"),
    ("verl.model_merger merge", "only converts a checkpoint"), ("recipe.spin.main_spin", "SPIN")])
def test_a_program_that_cannot_be_meant_is_refused_with_those_that_are_read(module, why):
    with pytest.raises(ConfigError) as error:
        from_verl(f"python3 -m {module} trainer.nnodes=1 data.path=x\n")
    assert why in str(error.value)
    assert "Read are verl.trainer.main_ppo" in str(error.value)
    assert "verl.trainer.fsdp_sft_trainer" in str(error.value)


@pytest.mark.parametrize(("script", "line"), [
    (f"python3 -m verl.trainer.main_ppo {SIZES}\npython3 -m verl.model_merger merge --backend fsdp\n", 2),
    (f"python3 -m rllm.train {SIZES}\npython3 -m verl.trainer.main_ppo {SIZES}\n", 1)])
def test_beside_a_training_of_verl_another_program_is_passed_over_and_named(script, line):
    made = from_verl(script)
    assert written(made)["synchronizer.sync_interval"] == 2
    assert [(at, "another command" in what) for at, what in made.skipped] == [(line, True)]


@pytest.mark.parametrize("start", [
    "python3 -m verl.trainer.main config=examples/config.yaml worker.actor.model.model_path=m",  # EasyR1
    "python -m absolute_zero_reasoner.main_azr_ppo", "uv run --isolated -m skyrl.train.entrypoints.main_base",
    "uv run -m examples.train.algorithms.dapo.main_dapo", "python3 -m main_gkd",
    "python3 -m verl.trainer.main_ppo_split", "python3 -m recipe.entropy.main_entropies",
    "python3 -m verl_tool.trainer.main_ppo", "torchrun --nproc_per_node=8 train.py",
    "ray job submit -- python3 -m skyrl_train.entrypoints.main_base"])
@pytest.mark.parametrize("before", ["", "python3 prepare.py --local_dir x\n"])
def test_a_program_that_is_not_known_is_refused_by_name(start, before):
    """Its settings look like veRL's and need not mean the same."""
    words = start.split()
    module = next(w for w in words[1:] if w.endswith(".py") or words[words.index(w) - 1] == "-m")
    with pytest.raises(ConfigError) as error:
        from_verl(f"{before}{start} {SIZES} trainer.total_epochs=3\n")
    assert f"starts {module}, which is " in str(error.value)
    assert "Read are verl.trainer.main_ppo" in str(error.value)


@pytest.mark.parametrize("start", ["bash train.sh", "./train", "$(which train)"])
def test_a_command_that_hides_its_program_is_refused(start):
    with refuses(ConfigError, "which"):
        from_verl(f"{start} {SIZES}\n")


def test_rollouts_go_before_sft_in_a_script_that_starts_both():
    first = "torchrun -m verl.trainer.fsdp_sft_trainer optim.lr=1e-5\n"
    made = from_verl(f"{first}python3 -m verl.trainer.main_ppo {SIZES}")
    assert written(made)["algorithm.algorithm_type"] == "ppo"
    wording([made.skipped], "(1,", "veRL", "2 was")


def test_a_launch_in_a_function_is_read_with_what_the_function_itself_sets():
    body = launch("actor_rollout_ref.rollout.n=$N", "data.train_batch_size=$((8 * N))",
                  "actor_rollout_ref.actor.ppo_mini_batch_size=8", "actor_rollout_ref.actor.optim.lr=$lr")
    made = from_verl(f"run() {{\n  local lr=$1\n  N=4\n  {body}\n}}\nrun $1\n")
    found = written(made)
    assert (found["algorithm.repeat_times"], found["synchronizer.sync_interval"]) == (4, 4)
    assert [u.given.key for u in made.unknown] == ["actor_rollout_ref.actor.optim.lr"]
    wording([made.assumed], "(1,", "$1")
    assert made.skipped == []


def test_a_test_of_a_file_is_of_no_file_of_this_machine(tmp_path):
    (tmp_path / "a").write_text("")
    made = from_verl(f"N=2\nif test -f {tmp_path}/a; then\n  N=3\nfi\n" + launch("trainer.nnodes=$N"))
    assert written(made)["cluster.node_num"] == 2
    wording([made.assumed], "(2,", f"{tmp_path}/a".replace(str(tmp_path), ""))


@pytest.mark.parametrize("script", [
    f"ssh node bash <<EOF\n{START}\nEOF\n", f"\nsrun bash -c '{START}'", f"CMD='{START}'\neval $CMD\n",
    f"cat > x.sh <<EOF\n{START}\nEOF\nchmod +x x.sh\n./x.sh", f"sh -c '{START}'", f"env A=1 nohup {START} &",
    f"$HOME/verl/bin/{START}", f"exec {START}", f"(cd /x && {START} > logs/$(date).log)", f"true | {START} | tee l/x"])
def test_a_launch_is_found_however_it_is_started(script):
    assert [given.key for given, _ in from_verl(script).renamed] == ["trainer.nnodes"]


@pytest.mark.parametrize(("before", "told"), [
    ("echo\nexit 1\n", ["Line 2"]),
    ('MODEL=${MODEL:-}\nif [ -z "$MODEL" ]; then\n  echo needed\n  exit 1\nfi\n', ["MODEL", "Line 4"])],
    ids=["line", "variable"])
def test_a_script_that_ends_before_its_launch_is_refused_with_line_and_variable(before, told):
    with refuses(ConfigError, *told, "`exit 1`"):
        from_verl(before + launch("trainer.nnodes=1", "actor_rollout_ref.model.path=$MODEL"))


def test_a_heredoc_without_a_launch_changes_nothing():
    made = from_verl("cat > x.json <<EOF\n{}\nEOF\n" + launch("trainer.nnodes=1"))
    assert (made.skipped, written(made)["cluster.node_num"]) == ([], 1)


def test_what_has_no_effect_is_counted_apart_from_what_is_lost():
    made = from_verl(launch("trainer.nnodes=${NNODES:-16}", "ray_init.num_cpus=4", "actor_rollout_ref.x=1",
                            "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.name=sglang"))
    assert [g.key for g, _ in made.idle] == ["ray_init.num_cpus"]
    assert [g.key for g, _ in made.left_out] == ["actor_rollout_ref.x", "actor_rollout_ref.rollout.name"]
    assert made.passed == []


def test_overrides_behind_a_pipe_are_not_of_the_launch():
    made = from_verl("python3 -m verl.trainer.main_ppo trainer.nnodes=1 | tee log \\\n trainer.total_epochs=9\n")
    wording([made.skipped], "(1,", "veRL")
    made = from_verl("echo trainer.total_epochs=9\npython3 -m verl.trainer.main_ppo trainer.nnodes=1\n")
    assert made.skipped == []
