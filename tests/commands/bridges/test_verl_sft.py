"""Scripts that start veRL's SFT trainers become one sft stage on an experience buffer."""

import pytest

from tests.bridges import from_verl, written
from tests.golden.messages import wording

BUFFER = "buffer.trainer_input.experience_buffer"
FILE = "data.train_files=/d/x/train.parquet"


def sft(*overrides: str, before: str = "torchrun --nproc_per_node=4 -m verl.trainer.fsdp_sft_trainer") -> str:
    return " \\\n".join([before, *overrides])


def values(*overrides: str, **arguments) -> dict:
    return written(from_verl(sft(*overrides, **arguments)))


def test_a_script_becomes_a_stage_with_its_own_values():
    found = values(FILE, "data.train_batch_size=96", "data.max_length=2048", "data.micro_batch_size_per_gpu=4",
                   "model.partial_pretrain=/m", "model.enable_gradient_checkpointing=True", "optim.lr=2e-5",
                   "optim.betas=[0.9,0.99]", "optim.weight_decay=0.1", "optim.lr_warmup_steps_ratio=0.05",
                   "optim.lr_scheduler=cosine", "optim.clip_grad=0.5", "trainer.total_epochs=3", "trainer.save_freq=50",
                   "trainer.project_name=p", "trainer.experiment_name=e", "trainer.logger=['console','wandb']",
                   "trainer.default_local_dir=/c/p/e", "trainer.seed=7")
    assert found == {
        "project": "p", "name": "e", "mode": "train", "checkpoint_root_dir": "/c", "seed": 7,
        "algorithm.algorithm_type": "sft", "algorithm.optimizer.lr": 2e-5, "algorithm.optimizer.betas": [0.9, 0.99],
        "algorithm.optimizer.weight_decay": 0.1, "algorithm.optimizer.lr_warmup_steps_ratio": 0.05,
        "algorithm.optimizer.lr_scheduler_type": "cosine", "model.model_path": "/m", "model.max_prompt_tokens": 2048,
        "model.max_response_tokens": 2048, "cluster.gpu_per_node": 4, "buffer.train_batch_size": 96,
        "buffer.total_epochs": 3, f"{BUFFER}.path": "/d/x/train.parquet", f"{BUFFER}.format.prompt_key": "question",
        f"{BUFFER}.format.response_key": "answer", "trainer.ranks": 4, "trainer.zero_stage": 3,
        "trainer.max_checkpoints_to_keep": None, "trainer.max_token_len_per_gpu": 4 * 2048,
        "trainer.grad_clip": 0.5, "trainer.save_interval": 50,
        "trainer.enable_gradient_checkpointing": True, "monitor.monitor_type": "wandb", "stages.0.stage_name": "sft"}


def test_the_trainers_defaults_are_written_where_ours_differ():
    """veRL's sft_trainer.yaml: 256 rows, 4 epochs, AdamW 1e-5 (0.9, 0.95), 0.1 warmup, cosine; 1024 tokens."""
    found = values(FILE)
    assert {k: v for k, v in found.items() if k.startswith(("algorithm.optimizer", "buffer.t", "model"))
            and not k.startswith(BUFFER)} == {
        "algorithm.optimizer.lr": 1e-5, "algorithm.optimizer.betas": [0.9, 0.95],
        "algorithm.optimizer.lr_scheduler_type": "cosine", "algorithm.optimizer.lr_warmup_steps_ratio": 0.1,
        "buffer.train_batch_size": 256, "buffer.total_epochs": 4, "model.max_prompt_tokens": 1024,
        "model.max_response_tokens": 1024}


@pytest.mark.parametrize(("given", "absent"), [
    ("optim.lr_warmup_steps=10", "algorithm.optimizer.lr_warmup_steps_ratio"),
    ("trainer.total_training_steps=5", "buffer.total_epochs"), ("optim.lr=$1", "algorithm.optimizer.lr"),
    ("trainer.total_epochs=$1", "buffer.total_epochs"), ("data.train_batch_size=$(nproc)", "buffer.train_batch_size")])
def test_no_default_beside_what_the_script_says_otherwise(given, absent):
    assert absent not in values(FILE, given)


def test_steps_of_the_sft_trainer_are_optimizer_steps():
    found = values(FILE, "trainer.total_training_steps=500", "trainer.save_freq=100", "optim.lr_warmup_steps=20")
    assert (found["buffer.total_steps"], found["trainer.save_interval"]) == (500, 100)
    assert found["algorithm.optimizer.lr_warmup_steps"] == 20


def test_columns_within_a_column():
    found = values(FILE, "data.prompt_key=extra_info", "data.response_key=extra_info",
                   "data.prompt_dict_keys=['question']", "+data.response_dict_keys=['answer']")
    assert found[f"{BUFFER}.format.prompt_key"] == "extra_info.question"
    assert found[f"{BUFFER}.format.response_key"] == "extra_info.answer"


@pytest.mark.parametrize(("program", "overrides", "column"), [
    ("fsdp_sft_trainer", ["data.multiturn.enable=true"], "messages"),
    ("fsdp_sft_trainer", ["data.multiturn.enable=true", "data.multiturn.messages_key=chat"], "chat"),
    ("sft_trainer", [], "messages"), ("sft_trainer", ["data.messages_key=turns"], "turns")])
def test_conversations(program, overrides, column):
    found = values(FILE, *overrides, before=f"python3 -m verl.trainer.{program}")
    assert found[f"{BUFFER}.format.prompt_type"] == "messages"
    assert found[f"{BUFFER}.format.messages_key"] == column
    assert found[f"{BUFFER}.format.enable_concatenated_multi_turn"] is True
    assert f"{BUFFER}.format.prompt_key" not in found


@pytest.mark.parametrize(("files", "path"), [
    ("/d/a.parquet", "/d/a.parquet"), ("[/d/a.parquet,/d/b.parquet]", ["/d/a.parquet", "/d/b.parquet"]),
    ("['/d/a.parquet']", "/d/a.parquet"), ("~/a.parquet", "${oc.env:HOME}/a.parquet")])
def test_training_files(files, path):
    assert values(f'data.train_files="{files}"')[f"{BUFFER}.path"] == path


@pytest.mark.parametrize(("overrides", "budget"), [
    (["data.max_length=1000", "data.micro_batch_size_per_gpu=8"], 8000), (["data.micro_batch_size=1"], 2048),
    (["data.max_length=1000"], None), (["data.max_length=10000"], 20000),  # 16384 here by default
    (["data.max_length=1000", "data.max_token_len_per_gpu=9000"], 9000),
    (["data.max_length=1000", "data.max_token_len_per_gpu=1500"], 2000)])
def test_the_budget_of_a_micro_batch_holds_a_prompt_and_a_response(overrides, budget):
    assert values(FILE, *overrides).get("trainer.max_token_len_per_gpu") == budget


@pytest.mark.parametrize(("before", "ranks"), [
    ("torchrun --standalone --nnodes=1 --nproc_per_node=2 -m verl.trainer.fsdp_sft_trainer", 2),
    ("torchrun --nproc-per-node 2 -m verl.trainer.fsdp_sft_trainer", 2),
    ("python3 -m verl.trainer.fsdp_sft_trainer", 1),
    ("torchrun --nproc_per_node=$1 -m verl.trainer.fsdp_sft_trainer", None)])
def test_processes_are_those_of_torchrun(before, ranks):
    assert values(FILE, before=before).get("trainer.ranks") == ranks


def test_torchrun_goes_before_the_key_that_verl_only_notes():
    made = from_verl(sft(FILE, "trainer.n_gpus_per_node=8"))
    assert written(made)["trainer.ranks"] == 4
    wording(made.chosen, "torchrun's", "is 4")


@pytest.mark.parametrize(("number", "kept"), [(3, 3), (0, None), (-1, None)])
def test_the_number_of_checkpoints_is_written_and_counted_once(number, kept):
    made = from_verl(sft(FILE, f"trainer.max_ckpt_to_keep={number}", "trainer.save_freq=9"))
    assert written(made)["trainer.max_checkpoints_to_keep"] == kept
    fates = [given.key for given in made.kept] + [given.key for given, _ in [*made.renamed, *made.left_out, *made.idle]]
    assert fates.count("trainer.max_ckpt_to_keep") == 1


@pytest.mark.parametrize(("text", "name"), [
    ("data: {train_files: /d/a.parquet}\nmodel: {partial_pretrain: /m}\noptim: {lr: 1e-5}\n", "c.yaml"),
    ("data.train_files=/d/a.parquet\nmodel.partial_pretrain=/m optim.lr=1e-5\n", "-")])
def test_keys_alone_tell_sft(text, name):
    found = written(from_verl(text, name))
    assert (found["algorithm.algorithm_type"], found["model.model_path"]) == ("sft", "/m")


@pytest.mark.parametrize("key", ["data.multiturn.tools_key", "data.tools_key"])
def test_the_column_of_tools_is_that_of_conversations(key):
    assert values(FILE, "data.multiturn.enable=True", f"{key}=functions")[f"{BUFFER}.format.tools_key"] == "functions"
    assert f"{BUFFER}.format.tools_key" not in values(FILE, f"{key}=functions")
    assert from_verl(sft(FILE, "data.multiturn.enable=True", f"{key}=functions")).lacking == {}
