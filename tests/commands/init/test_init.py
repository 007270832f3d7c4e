"""`ouro init`: templates that compose, and recipes for the shapes of data files that users bring."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf

from ouroboros.commands import cli
from ouroboros.commands.init import data, recipe
from ouroboros.commands.init.columns import Guess, guess
from ouroboros.commands.init.command import AGENT, TEMPLATES
from ouroboros.commands.web import drafts, studio
from ouroboros.pipeline.check import preflight, samples
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.job.schedule import LASTING
from ouroboros.pipeline.store import gguf
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.files import CONF
from ouroboros.stages import gguf as stage
from tests.golden.messages import refuses, wording
from tests.pictures import png
from tests.pipeline.store.test_gguf import package  # noqa: F401

NAMES = sorted(path.name for path in TEMPLATES.iterdir() if path.name not in ("common", "own", "shared", AGENT))
SUMS = [(f"{i} + {i} = ?", str(2 * i)) for i in range(24)]
TALK = "It is a long story, and it begins where every story begins."


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A model directory: config.json, a tokenizer with a chat template, random weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from ouroboros.stages.model import character_tokenizer

    directory = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = character_tokenizer(2048)
    Qwen2ForCausalLM(Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
        intermediate_size=64, max_position_embeddings=2048)).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture
def in_process(monkeypatch):
    """stages/preview.py without a process of its own, which would import transformers anew each time."""
    from ouroboros.stages.model_size import sizes
    from ouroboros.stages.preview import Preview

    def ask(request):
        preview = Preview(request)
        for source in request["sources"]:
            preview.source(source)
        preview.recipes()
        return preview.found | {"sizes": sizes(request["models"], preview.found)}

    monkeypatch.setattr(samples, "ask", ask)


def lines(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def parquet(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.fixture
def init(tmp_path, monkeypatch, model):
    """init(data, ...): the exit code of `ouro init` for "my project", afterwards the current directory if it exists."""
    def command(data: Path, *more: str) -> int:
        project = tmp_path / "my project"
        code = cli.main(["init", str(project), "--from", str(data), "--model", str(model), *more])
        assert project.exists() == (code == 0)
        if code == 0:
            monkeypatch.chdir(project)
        return code

    return command


def said(role: str, content: str) -> dict:
    return {"role": role, "content": content}


def directory_of_parquet(root: Path) -> Path:
    for split, rows in (("train", SUMS[:20]), ("test", SUMS[20:])):
        parquet(root / "data" / f"{split}-00000-of-00001.parquet", [{"question": q, "answer": a} for q, a in rows])
    return root / "data"


def saved_dataset(root: Path) -> Path:
    from datasets import Dataset

    Dataset.from_list([{"problem": q, "solution": f"so \\boxed{{{a}}}"} for q, a in SUMS]).save_to_disk(root / "saved")
    return root / "saved"


# shape -> (how it is written, what the algorithm and the format must then be)
SHAPES = {
    "gsm8k: question and worked answer": (
        lambda root: lines(root / "a.jsonl", [{"question": q, "answer": f"It is {a}.\n#### {a}"} for q, a in SUMS]),
        "grpo", {"prompt_key": "question", "response_key": "answer"}),
    "prompt and completion": (
        lambda root: lines(root / "a.jsonl", [{"prompt": q, "completion": TALK} for q, _ in SUMS]),
        "sft", {"prompt_key": "prompt", "response_key": "completion"}),
    "messages and an answer": (
        lambda root: lines(root / "a.jsonl", [{"messages": [said("system", "Add."), said("user", q)], "answer": a}
                                              for q, a in SUMS]),
        "grpo", {"prompt_type": "messages", "prompt_key": "messages", "response_key": "answer"}),
    "messages that end with the assistant": (
        lambda root: lines(root / "a.jsonl", [{"messages": [said("user", q), said("assistant", TALK)]}
                                              for q, _ in SUMS]),
        "sft", {"prompt_type": "messages", "prompt_key": "messages"}),
    "messages alone": (
        lambda root: lines(root / "a.jsonl", [{"messages": [said("user", q)]} for q, _ in SUMS]),
        "grpo", {"prompt_type": "messages", "prompt_key": "messages", "response_key": "messages"}),
    "verl: parquet with ground_truth": (
        lambda root: parquet(root / "a.parquet", [
            {"data_source": "sums", "prompt": [said("user", q)], "reward_model": {"style": "rule", "ground_truth": a}}
            for q, a in SUMS]),
        "grpo", {"prompt_type": "messages", "prompt_key": "prompt", "response_key": "reward_model.ground_truth"}),
    "alpaca: instruction, input, output": (
        lambda root: lines(root / "a.jsonl", [
            {"instruction": "Add." if i < 2 else f"Add {i}.", "input": q if i % 2 else "", "output": TALK}
            for i, (q, _) in enumerate(SUMS)]),
        "sft", {"prompt_type": "messages", "prompt_key": "messages"}),
    "sharegpt: from and value": (
        lambda root: lines(root / "a.jsonl", [
            {"id": 1, "conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]} for q, a in SUMS]),
        "sft", {"prompt_type": "messages", "prompt_key": "conversations"}),
    "pairs of strings": (
        lambda root: lines(root / "a.jsonl", [{"Prompt": q, "Good Answer": a, "Bad": "no"} for q, a in SUMS]),
        "dpo", {"prompt_type": "plaintext", "prompt_key": "Prompt", "chosen_key": "Good Answer",
                "rejected_key": "Bad"}),
    "pairs of conversations": (
        lambda root: lines(root / "a.jsonl", [{"chosen": [said("user", q), said("assistant", a)],
                                               "rejected": [said("user", q), said("assistant", "no")]}
                                              for q, a in SUMS]),
        "dpo", {"prompt_type": "messages", "prompt_key": "chosen"}),
    "plain text": (
        lambda root: lines(root / "a.jsonl", [{"text": f"{q} {TALK * 9}", "url": "here"} for q, _ in SUMS]),
        "cpt", {"prompt_key": "text", "response_key": None}),
    "directory of parquet files": (
        directory_of_parquet, "grpo", {"prompt_key": "question", "response_key": "answer"}),
    "save_to_disk": (saved_dataset, "grpo", {"prompt_key": "problem", "response_key": "solution"}),
    "answer in a struct": (
        lambda root: lines(root / "a.jsonl", [{"question": q, "answer": {"value": int(a)}} for q, a in SUMS]),
        "grpo", {"prompt_key": "question", "response_key": "answer.value"}),
    "digits that are no number": (
        lambda root: lines(root / "a.jsonl", [{"question": q, "answer": f"0{a}"} for q, a in SUMS]),
        "grpo", {"prompt_key": "question", "response_key": "answer"}),
    "lists of answers that count": (
        lambda root: parquet(root / "a.parquet", [{"question": q, "answer": [a] * 30 + ["none"]} for q, a in SUMS]),
        "grpo", {"prompt_key": "question", "response_key": "answer"}),
    "short answers": (
        lambda root: lines(root / "a.jsonl", [{"question": q, "label": "even"} for q, _ in SUMS]),
        "grpo", {"prompt_key": "question", "response_key": "label"}),
}


def assert_extendable(config):
    """No learning rate after the warmup depends on how many steps a stage has (docs/branches.md)."""
    rates = [one.algorithm.optimizer for one in Recipe(config).settings.values() if one.kind.trains]
    assert {one.lr_scheduler_type for one in rates} <= LASTING
    assert {one.lr_warmup_steps_ratio for one in rates} == {0.0}


# no answer to compare numbers with
OWN_REWARD = ("messages alone", "short answers", "lists of answers that count", "digits that are no number")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_recipe_for_a_file_passes_the_check(tmp_path, in_process, init, capsys, shape):
    """What is written composes, names the right columns, and its data samples have no problem and no warning."""
    write, algorithm, columns = SHAPES[shape]
    assert init(write(tmp_path)) == 0
    assert "no problem found" in capsys.readouterr().out
    config = compose([])
    assert config.algorithm.algorithm_type == algorithm
    assert config.project == "my_project"
    assert_extendable(config)
    source, pool = config.buffer.explorer_input, config.data_processor.task_pipeline
    taken = config.buffer.trainer_input.experience_buffer if algorithm != "grpo" else (
        pool if pool.inputs else source.taskset)
    assert columns.items() <= dict(taken.format).items()
    assert bool(source.eval_tasksets) == (algorithm == "grpo")
    reward = source.default_reward_fn_type
    assert Path("reward.py").exists() == (reward == "reward:score")
    if algorithm == "grpo":
        assert reward == ("reward:score" if shape in OWN_REWARD else "accuracy_reward")
    if write is directory_of_parquet:  # files with a split in their name
        assert [one.split for one in (source.taskset, *source.eval_tasksets)] == ["train", "test"]
    if shape.startswith("alpaca"):
        assert [json.loads(line)["messages"] for line in Path("data/train.jsonl").read_text().splitlines()[:2]] == [
            [said("user", "Add."), said("assistant", TALK)],
            [said("user", "Add.\n\n1 + 1 = ?"), said("assistant", TALK)]]
    if shape == "short answers":
        # `23 + 23 = ?:` has 12 tokens of a character each; a quarter more, in steps of 8, is 16; 24 rows: batches of 4
        limits = config.model.max_prompt_tokens, config.model.max_response_tokens  # of a small model
        assert (limits, config.buffer.batch_size, config.algorithm.optimizer.lr) == ((16, 64), 4, 5e-4)


@pytest.mark.parametrize(("gpus", "mib", "transformers", "mode", "ahead"), [
    (0, 0, False, "both", 0), (1, 80000, False, "colocate", 0), (2, 80000, False, "colocate", 1),
    (2, 0.1, False, "colocate", 0),  # 0.3 of 0.1 MiB does not hold the weights
    (2, 80000, True, "colocate", 0)])  # transformers answers, and never while the ranks train
def test_with_several_gpus_engines_answer_on_all_of_them_while_the_ranks_train(tmp_path, init, monkeypatch, gpus, mib,
                                                                               transformers, mode, ahead):
    monkeypatch.setattr(recipe, "gpus_here", lambda: gpus)
    monkeypatch.setattr(recipe, "memory_here", lambda: [mib / 1024] * gpus)
    monkeypatch.setattr(recipe, "_samples_by_transformers", lambda *_: transformers)
    assert init(lines(tmp_path / "a.jsonl", [{"question": q, "answer": a} for q, a in SUMS])) == 0
    config = compose([])
    assert (config.mode, config.synchronizer.sync_offset) == (mode, ahead)
    assert config.explorer.rollout_model.gpu_memory_utilization == (0.3 if ahead else 0.9)
    assert config.trainer.ranks == config.explorer.rollout_model.engine_num == max(gpus, 1)


def test_each_answer_of_a_list_counts(tmp_path, in_process, init, capsys):
    """The reward reads the JSON that it is given of a list, in which a blank is no answer; rows without one are left
    out."""
    rows = [{"question": q, "answer": [a, f"{a}.0", ""]} for q, a in SUMS]
    rows += [{"question": "nothing?", "answer": answers} for answers in ([], [" "])]
    assert init(lines(tmp_path / "a.jsonl", rows)) == 0
    assert len(Path("data/train.jsonl").read_text().splitlines()) == len(SUMS)
    written: dict = {}
    exec(Path("reward.py").read_text(), written)
    exec(Path("test_reward.py").read_text().replace("from reward import score", ""), written)
    written["test_each_answer_counts"]()
    truth = json.dumps(rows[5]["answer"])
    assert [written["score"](text, truth)["accuracy"] for text in (*rows[5]["answer"], ".", truth)] == [1, 1, 0, 0, 0]


def test_the_studio_makes_the_recipe_of_init_and_overwrites_nothing(tmp_path, in_process, init, model, monkeypatch):
    data = SHAPES["short answers"][0](tmp_path)
    assert init(data) == 0
    theirs = Path("conf/recipe/project.yaml").read_text()
    here = tmp_path / "studio"
    here.mkdir()
    monkeypatch.chdir(here)
    made = studio.new(here, str(data), str(model), "my_project", None, None)
    assert (made["text"], made["file"]) == (theirs, "conf/recipe/my_project.yaml")
    assert {path.name for path in here.rglob("*")} == {"reward.py", "test_reward.py"}
    with pytest.raises(DataError):
        studio.new(here, str(data), str(model), "other", None, None)
    found = drafts.columns(here, str(data), None, None)
    assert found["format"].items() >= {"prompt_key": "question", "response_key": "label"}.items()
    assert not found["rewritten"]


def test_files_of_a_directory_that_no_split_takes_are_named(tmp_path, in_process, init, capsys):
    rows = [{"question": q, "answer": a} for q, a in SUMS]
    for name in ("train", "test", "demos"):
        lines(tmp_path / "data" / f"{name}.jsonl", rows)
    init(tmp_path / "data")
    told = capsys.readouterr()
    assert "  not used: demos.jsonl\n" in told.out
    assert told.err.startswith("ouro: ")  # at once, for it takes half a minute


REFUSED = {
    "columns in another language": ([{"Frage": "1 + 1 = ?", "Antwort": "2"}], [
        "Frage: 1 + 1 = ?", "Antwort: 2", "--prompt-key COLUMN --response-key COLUMN"]),
    "a prompt and no answer": ([{"prompt": "Hello", "source": "here"}], ["source: here", "--response-key"]),
    "labelled texts": ([{"text": "It rained.", "label": "weather"}], ["text: It rained.", "--prompt-key"]),
    "an unknown speaker": ([{"conversations": [{"from": "narrator", "value": "x"}]}], ["narrator"]),
    "both kinds of conversations": ([{"messages": [said("user", "a")]},
                                     {"messages": [said("user", "a"), said("assistant", "b")]}], ["messages"]),
    "no rows": ([], ["holds no rows"]),
}


@pytest.mark.parametrize("shape", REFUSED)
def test_what_cannot_be_told_is_asked_for(tmp_path, init, capsys, shape):
    rows, words = REFUSED[shape]
    assert init(lines(tmp_path / "a.jsonl", rows)) == 2
    shown = capsys.readouterr().err
    assert all(word in shown for word in words)


def test_the_options_name_what_could_not_be_guessed(tmp_path, in_process, init, capsys):
    path = lines(tmp_path / "a.jsonl", [{"Frage": q, "Antwort": a} for q, a in SUMS])
    assert init(path, "--prompt-key", "Frage", "--response-key", "Antwrt") == 2
    wording(capsys.readouterr().err, "--response-key", "'Antwort'")
    assert init(path, "--prompt-key", "Frage", "--response-key", "Antwort") == 0
    config = compose([])
    assert config.data_processor.task_pipeline.format.prompt_key == "Frage"
    assert config.buffer.explorer_input.default_reward_fn_type == "accuracy_reward"
    rows = [{"Q": "1+1?", "A": "2", "B": "3", "C": None}]
    found = guess(rows, "Q", chosen_key="A", rejected_key="B")
    assert (found.kind, found.format["rejected_key"], found.notes[-1]) == ("dpo", "B", "not used: C")
    with pytest.raises(DataError):
        guess(rows, "Q", chosen_key="A")


@pytest.mark.parametrize("template", NAMES)
def test_a_template_passes_the_check_and_its_own_tests(tmp_path, monkeypatch, capsys, template):
    assert cli.main(["init", str(tmp_path / "it"), "--template", template]) == 0
    assert "conf/recipe/project.yaml" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path / "it")
    config = compose([])
    assert config.project == "it"
    report = preflight.check(config)
    assert report.problems == report.warnings == []
    assert_extendable(config)
    assert Path(".gitignore").is_file()
    tests = subprocess.run([sys.executable, "-m", "pytest", "-q"], capture_output=True, text=True, check=False)
    assert tests.returncode == 0, tests.stdout


def rows_of(template: str, name: str) -> list[dict]:
    return [*map(json.loads, (TEMPLATES / template / "data" / f"{name}.jsonl").read_text().splitlines())]


@pytest.mark.parametrize("template", [*NAMES, AGENT])
def test_what_is_held_out_is_not_trained_on(template):
    def asked(name: str) -> set[str]:
        return {row["messages"][0]["content"] if "messages" in row else row.get("question", row.get("prompt"))
                for row in rows_of(template, name)}

    others = [path.stem for path in (TEMPLATES / template / "data").iterdir() if path.stem != "test"]
    assert len(others) == (1 if template == AGENT else 2)
    assert not any(asked("test") & asked(name) for name in others)
    assert template == AGENT or len(asked("pairs" if template == "preferences" else "train")) == 50


def test_the_tasks_of_a_new_agent_are_right():
    prices = {"fig": 7, "lime": 5, "pear": 4, "plum": 3}
    for row in rows_of(AGENT, "train") + rows_of(AGENT, "test"):
        number, fruit = re.fullmatch(r"What do (\d) (\w+)s cost\?", row["question"]).groups()
        assert int(row["answer"]) == int(number) * prices[fruit]


def test_a_directory_that_is_not_empty_is_refused(tmp_path, capsys):
    (tmp_path / "mine.txt").touch()
    assert cli.main(["init", str(tmp_path)]) == 2
    assert "mine.txt" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert cli.main(["init", str(tmp_path / "mine.txt")]) == 2
    assert "is a file" in capsys.readouterr().err
    assert cli.main(["init", str(tmp_path / "mine.txt" / "x")]) == 2
    wording(capsys.readouterr().err, "Not", "directory")


@pytest.mark.parametrize(("words", "shown"), [
    ([], "DIR"), (["x", "--from", "a.jsonl"], "--model"), (["x", "--model", "m"], "--from"),
    (["x", "--from", "a.jsonl", "--model", "m", "--template", "math"], "without --template"),
    (["x", "--prompt-key", "q"], "--from"), (["x", "--from", "a.jsonl", "--model", "nowhere"], "no such directory"),
    (["x", "--from", "evals://2d_movement", "--model", "nowhere"], "taskset.path"),
    # a second name is only for an agent
    *((words.split(), " ") for words in ("agent x --template math", "agents x", "x agent", "agent x --from a.jsonl",
                                        "agent x y"))])
def test_options_that_do_not_go_together(tmp_path, monkeypatch, capsys, words, shown):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init", *words]) == 2
    assert shown in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_project_for_an_agent_passes_the_check_its_tests_and_a_debug_run(tmp_path, monkeypatch, capsys):
    """Its own tests run `ouro debug workflow` with written replies, in a process."""
    assert cli.main(["init", "agent", str(tmp_path / "my agent")]) == 0
    assert "test_agent.py" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path / "my agent")
    config = compose([])
    assert (config.project, config.name) == ("my_agent", "first")
    report = preflight.check(config, data=True, code=True)
    assert report.problems == report.warnings == []
    assert str(CONF) not in Path("conf/recipe/project.yaml").read_text()  # the project may go to another machine
    jsonschema.validate(OmegaConf.to_container(OmegaConf.load("conf/recipe/project.yaml")), json.loads(
        (CONF / "schema.json").read_text()))
    for name in ("pythonic", "pythonic_tools"):  # the first does not tell the model of tools
        config = compose([f"model.chat_template_path=conf/chat_template/{name}.jinja"])
        warned = preflight.check(config, data=True, code=True).warnings
        assert ["workflow_args" in one for one in warned] == [True] * (name == "pythonic")
    tests = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], capture_output=True,
                           text=True, check=False)
    assert tests.returncode == 0, tests.stdout
    assert "3 passed" in tests.stdout


@pytest.mark.parametrize(("name", "row", "words"), [
    ("a.json", '{"data": [{"question": "1+1", "answer": "2"}]}', "below the key 'data'"),
    ("a.jsonl", '{"train": [{"question": "1+1", "answer": "2"}]}', "below the key 'train'"),
    ("a.JSONL", '{"question": "1+1", "answer": "2"}', "small letters"),
    ("*.jsonl", None, "pattern"),
    ("a.jsonl", '{"chosen": "Human: Hi Assistant: Yo", "rejected": "Human: Hi Assistant: No"}', "hh-rlhf")])
def test_files_of_another_shape_are_named(tmp_path, name, row, words):
    if row:
        (tmp_path / name).write_text(row + "\n")
    with refuses(DataError, words):
        guess(data.read(str(tmp_path / name)).drawn.rows, None, None)


def test_agent_needs_a_name_and_a_directory_called_agent_a_template(tmp_path, monkeypatch, capsys):
    from click.shell_completion import ShellComplete

    monkeypatch.chdir(tmp_path)
    assert cli.main(["init", "agent"]) == 2
    wording(capsys.readouterr().err, "NAME")
    assert not list(tmp_path.iterdir())
    assert cli.main(["init", "agent", "--template", "math"]) == 0
    assert compose([f"recipe={tmp_path}/agent/conf/recipe/project.yaml"]).project == "agent"
    assert cli.main(["init", "agent", "agent"]) == 2
    wording(capsys.readouterr().err, "agent")
    completed = ShellComplete(cli.ouro, {}, "ouro", "_OURO_COMPLETE").get_completions(["init"], "ag")
    assert [(one.value, one.type) for one in completed] == [("agent", "plain"), ("ag", "dir")]


def test_the_project_says_what_runs_and_the_command_line_decides(tmp_path, monkeypatch):
    cli.main(["init", str(tmp_path / "it")])
    monkeypatch.chdir(tmp_path / "it")
    assert compose([]).project == "it"
    assert compose(["recipe=countdown"]).project == "ouroboros"


@pytest.mark.parametrize("text", ["seed: 2\n", "defaults: {recipe: project}\n", "defaults: [project]\n",
                                  "defaults: [{recpie: project}]\n", ""])
def test_a_project_chooses_and_sets_nothing(tmp_path, monkeypatch, capsys, text):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["config", "check", "--no-data"]) == 2
    assert "conf/config.yaml" in capsys.readouterr().err


def test_solutions_beside_answers_are_a_warmup_on_rows_that_are_not_held_out(tmp_path, in_process, init):
    """Of 24 questions a fifth, 5, are held out."""
    rows = [{"question": q, "answer": a, "reasoning": f"{TALK} So it is {a}."} for q, a in SUMS]
    assert init(lines(tmp_path / "a.jsonl", rows)) == 0
    warmup, last = compose([]).stages
    assert (warmup["stage_name"], last["stage_name"]) == ("sft", "rft")
    taken = warmup["buffer"]["trainer_input"]["experience_buffer"]
    assert (taken["split"], taken["format"]) == ("train", {"prompt_key": "question", "response_key": "reasoning"})
    train, test = ([json.loads(line) for line in Path(f"data/{name}.jsonl").read_text().splitlines()]
                   for name in ("train", "test"))
    assert (len(train), len(test)) == (19, 5)
    assert sorted(row["question"] for row in train + test) == sorted(q for q, _ in SUMS)


@pytest.mark.parametrize(("answers", "kind"), [
    (["the year of the rat"] * 9, "rft"),  # five words
    (["Paris", "the left bank of the river Seine"], "rft"),  # seven, and half of them have one
    (["It is a city that lies on a river"] * 9, "sft"),  # nine
    (["Yes"] * 9 + ["word " * 17], "rft"), (["Yes"] * 8 + ["word " * 17] * 2, "sft")])  # nine tenths decide
def test_short_answers_are_compared_and_long_ones_imitated(answers, kind):
    found = guess([{"question": str(number), "answer": answer} for number, answer in enumerate(answers)])
    assert found.kind == kind


def test_files_that_the_recipe_does_not_read_are_named(tmp_path):
    for name in ("train.jsonl", "test.jsonl", "notes.jsonl"):
        (tmp_path / name).write_text('{"question": "1+1", "answer": "2"}\n')
    tasks, shown = Guess("rft", {}, reward="accuracy_reward"), Guess("sft", {})
    assert data.left_out(tasks, data.read(str(tmp_path / "train.jsonl"))) == [str(tmp_path / "test.jsonl")]
    assert data.left_out(tasks, data.read(str(tmp_path))) == ["notes.jsonl"]
    assert data.left_out(shown, data.read(str(tmp_path))) == ["notes.jsonl", "test.jsonl"]


def test_a_system_message_next_to_turns_of_sharegpt_becomes_one_of_them():
    talk = [{"from": "human", "value": "1+2?"}, {"from": "gpt", "value": "It is 3."}]
    found = guess([{"conversations": talk, "system": "Be brief.", "tools": "[]"}])
    assert found.kind == "sft"
    assert found.convert({"conversations": talk, "system": "Be brief.", "tools": "[1]"}) == {
        "tools": "[1]", "messages": [{"role": "system", "content": "Be brief."}, *talk]}


URI = "data:image/png;base64,iVBORw0KGgo="


@pytest.mark.parametrize(("column", "value"), [
    ("image", "photos/a.JPG"), ("images", ["a.png", "b.webp"]), ("picture", URI),
    ("photo", {"bytes": png(), "path": None}), ("image", {"bytes": png()}), ("image", png())])
def test_a_column_of_images_is_recognised(column, value):
    rows = [{"question": "How many?", "answer": str(i), column: value if i else None, "file": "notes.txt",
             "about": {}, "audio": {"bytes": b"RIFF", "path": "1.wav"}}
            for i in range(20)]
    found = guess(rows)
    assert (found.kind, found.format["image_key"]) == ("rft", column)
    assert "not used: file, about, audio" in found.notes


def test_rows_that_are_written_again_keep_images_but_not_the_names_of_files(tmp_path):
    rows = [{"instruction": "Look", "input": str(i), "output": "a cat", "image": URI} for i in range(10)]
    file = lines(tmp_path / "a.jsonl", rows)
    made = data.written(guess(rows), data.read(str(file)))
    assert json.loads(made["data/train.jsonl"].splitlines()[3])["image"] == URI
    rows = [row | {"image": "a.png"} for row in rows]
    file = lines(tmp_path / "b.jsonl", rows)
    with refuses(DataError, "a.png"):
        data.written(guess(rows), data.read(str(file)))


def test_a_column_of_tools_is_no_conversation_and_is_used():
    calls = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]}
    found = guess([{"messages": [{"role": "user", "content": "1+2?"}, calls], "tools": [{"type": "function"}]}])
    assert (found.kind, found.format["prompt_key"]) == ("sft", "messages")
    assert not any(note.startswith("not used") for note in found.notes)


@pytest.mark.parametrize(("odd", "count", "reward"), [
    ("none of these", 8, "accuracy_reward"), ("none of these", 21, "reward:score"), ("", 8, "accuracy_reward")])
def test_the_kind_of_nearly_all_answers_decides(odd, count, reward):
    """Of 200 answers a tenth may be otherwise."""
    rows = [{"question": str(i), "answer": odd if i < count else str(i)} for i in range(200)]
    found = guess(rows)
    assert (found.kind, found.reward) == ("rft", reward)
    told = [note for note in found.notes if note.startswith(f"{count} of 200 sampled answers are neither (rows 1, 2,")]
    assert len(told) == (reward == "accuracy_reward" and bool(odd))


@pytest.mark.parametrize("change", [
    {"answer": 7}, {"answer": 7.5}, {"answer": None}, {"other": 1}, {"answer": "word " * 50}, {"answer": ["1", "2"]},
    {"answer": {"value": 3}}, {"question": [said("user", "a")]}, {"question": 5}, {"question": None},
    *({"messages": odd} for odd in ([said("user", "a")], [], "text", [said("assistant", "a"), said("user", "b")],
                                    [{"content": "x"}], None))])
def test_a_few_rows_of_another_type_change_nothing(change):
    talks = "messages" in change
    rows = [{"messages": [said("user", f"{i}"), said("assistant", TALK)]} if talks else
            {"question": f"{i}?", "answer": str(i)} for i in range(200)]
    for i in range(1 if talks else 8):
        rows[20 * i + 50 * talks] |= change
    rows[10].pop("answer", None)
    found = guess(rows)
    assert (found.kind, found.reward, found.format["prompt_key"], found.format.get("response_key")) == (
        ("sft", None, "messages", None) if talks else ("rft", "accuracy_reward", "question", "answer"))


@pytest.mark.parametrize(("count", "code"), [(1, 0), (20, 0), (21, 2)])
def test_rows_that_cannot_be_rewritten_are_left_out_up_to_a_tenth(tmp_path, in_process, init, capsys, count, code):
    """All of 200 rows are rewritten. The 3rd, 6th ... have no output."""
    rows = [{"instruction": f"a{i}", "input": "", "output": "b"} for i in range(200)]
    for i in range(count):
        del rows[3 * i + 2]["output"]
    assert init(lines(tmp_path / "a.jsonl", rows)) == code
    shown = capsys.readouterr()
    assert f"{count} of 200 rows" in (shown.err if code else shown.out)
    assert "'output'" in shown.out + shown.err
    if code == 0:
        assert len(Path("data/train.jsonl").read_text().splitlines()) == 200 - count
        wording(shown.out, "rows (3)" if count == 1 else "15 more)")


@pytest.mark.parametrize(("count", "code"), [(20, 0), (21, 2)])
def test_speakers_that_nobody_knows_are_in_a_tenth_of_the_rows_at_most(tmp_path, in_process, init, capsys, count, code):
    """The stage `tasks` rejects these rows."""
    rows = [{"conversations": [{"from": "human", "value": f"a{i}"}, {"from": "gpt", "value": "b"}]} for i in range(200)]
    for i in range(count):
        rows[3 * i + 2]["conversations"][1]["from"] = "narrator"
    assert init(lines(tmp_path / "a.jsonl", rows)) == code
    shown = capsys.readouterr()
    assert f"{count} of 200 sampled rows" in (shown.err if code else " ".join(shown.out.split()))
    assert "narrator" in shown.out + shown.err


def test_answers_that_nothing_can_match_are_left_out(tmp_path, in_process, init, capsys):
    rows = [{"question": f"{i}+0", "answer": {7: "", 30: "\\boxed{"}.get(i, str(i))} for i in range(40)]
    assert init(lines(tmp_path / "a.jsonl", rows)) == 0
    wording(capsys.readouterr().out, "2 of", "40 rows", "(8, 31)")
    assert len(Path("data/train.jsonl").read_text().splitlines()) == 38


def test_heads_too_narrow_for_vllm_on_a_cpu_choose_transformers(tmp_path, in_process, init, model):
    wide = (model / "config.json").read_text()
    narrow = json.loads(wide) | {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    (model / "config.json").write_text(json.dumps(narrow))
    code = init(lines(tmp_path / "a.jsonl", [{"question": q, "label": "even"} for q, _ in SUMS]))
    (model / "config.json").write_text(wide)
    assert code == 0
    assert compose([]).explorer.rollout_model.engine_type == "transformers"


@pytest.mark.parametrize("by", ["file", "package"])
def test_a_gguf_file_is_the_model_of_a_project(tmp_path, in_process, package, monkeypatch, by):  # noqa: F811
    read = []  # once, and not before all that is quick
    monkeypatch.setattr(gguf, "_read", lambda *given: (read.append(given), stage.read(*given)))
    monkeypatch.setitem(sys.modules, "deepspeed", None)  # as in the process that reads a file
    named = str(package) if by == "file" else "wheel://tiny-model"
    for keys, reads in (("foo", "bar"), 0), (("question", "answer"), 1):
        rows = lines(tmp_path / "sums.jsonl", [dict(zip(keys, one, strict=True)) for one in SUMS])
        code = cli.main(["init", str(tmp_path / "mine"), "--from", str(rows), "--model", named])
        assert (code, len(read)) == (0 if reads else 2, reads)
    monkeypatch.chdir(tmp_path / "mine")
    assert compose([]).model.model_path == (os.path.relpath(named) if by == "file" else named)


@pytest.mark.parametrize(("row", "columns"), [
    ({"prompt": "def f(x):", "canonical_solution": " return x", "test": "def check(f):\n assert f(1) == 1"},
     ("prompt", "canonical_solution")),
    ({"text": "Write f.", "code": "def f(x): return x", "test_list": ["assert f(1) == 1"]}, ("text", "code")),
    ({"problem": "Echo.", "input_output": {"inputs": ["1"], "outputs": ["1"]}}, ("problem", "input_output"))])
def test_tests_in_rows_are_run(row, columns):
    found = guess([row] * 3)
    assert (found.kind, found.reward) == ("rft", "code_reward")
    assert (found.format["prompt_key"], found.format["response_key"]) == columns
    assert guess([row | dict.fromkeys(("test", "test_list", "input_output"))] * 3,
                 prompt_key=columns[0], response_key=columns[0]).reward == "reward:score"


def test_a_few_long_rows_do_not_set_the_limits(tmp_path, in_process, init, capsys):
    """Prompts of 2 tokens with the mark of the reply, and one of 401; a quarter more than 2, in steps of 8, is 8."""
    rows = [{"question": "a" * (400 if i == 9 else 1), "label": "even"} for i in range(40)]
    assert init(lines(tmp_path / "a.jsonl", rows)) == 0
    assert compose([]).model.max_prompt_tokens == 8
    said = " ".join(capsys.readouterr().out.split())  # it is wrapped, by the length of a temporary path too
    assert [figure for figure in ("95%", "2 tokens", "401 (row 10)") if figure not in said] == []


def test_a_template_that_loses_most_rows_is_refused_with_their_number(tmp_path, in_process, init, capsys):
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]}
    rows = [{"messages": [said("user", f"{i}"), call]} for i in range(20)]
    assert init(lines(tmp_path / "a.jsonl", rows)) == 2
    shown = capsys.readouterr().err
    wording(shown, "20 of", "20 sampled", "rows 1, 2", "3, 4, 5", "15 more")


@pytest.mark.parametrize(("row", "letter"), [
    ({"choices": ["3", "4", "5", "6"], "answer": 1}, "B"), ({"choices": ["3", "4"], "answer": "B"}, "B"),
    ({"choices": {"text": ["3", "4"], "label": ["1", "2"]}, "answerKey": "2"}, "B"),
    ({"options": ["3", "4"], "answer": "4", "answer_index": 1}, "B"), ({"options": ["3", "4"], "answer": "4"}, "B"),
    ({"endings": ["3", "4"], "label": "0"}, "A"), ({"choices": ["3", "4"], "answer": "(a)"}, "A"),
    ({"choices": ["3", "4"], "answer": 2}, "B")])  # numbers that reach the count of choices begin with 1
def test_the_choices_are_part_of_the_prompt(row, letter):
    rows = [{"question": f"What is {i}?"} | row for i in range(8)]
    found = guess(rows)
    assert (found.kind, found.reward) == ("rft", "accuracy_reward")
    made = found.convert(rows[2])
    assert made["answer"] == letter
    assert made["question"].startswith("What is 2?\n\nA. 3\nB. 4")


def test_choices_with_a_test_file_are_trained_on_and_evaluated(tmp_path, in_process, init):
    rows = [{"question": q, "choices": ["1", a], "answer": 1} for q, a in SUMS]
    lines(tmp_path / "data" / "train.jsonl", rows[:20])
    lines(tmp_path / "data" / "test.jsonl", rows[20:])
    assert init(tmp_path / "data") == 0
    explorer = compose([]).buffer.explorer_input
    assert [(one.path, one.split) for one in (explorer.taskset, *explorer.eval_tasksets)] == [
        ("data", "train"), ("data", "test")]
    assert [len(Path(f"data/{name}.jsonl").read_text().splitlines()) for name in ("train", "test")] == [20, 4]


def test_texts_that_a_label_calls_bad_are_not_imitated():
    for text in (TALK, "short"):
        with refuses(DataError, "label"):
            guess([{"prompt": q, "completion": text, "label": a == "2"} for q, a in SUMS])


def test_a_column_that_may_be_the_answer_to_conversations_is_asked_for():
    rows = [{"messages": [said("user", q)], "capital": a} for q, a in SUMS]
    with refuses(DataError, "capital"):
        guess(rows)
    assert guess(rows, response_key="capital").format["response_key"] == "capital"
    assert guess(rows, response_key="messages").format["response_key"] == "messages"


TABLE = 'question,answer\n"What, ""exactly"",\nis it?",007\nWhat?,NA\n' + "".join(f"{i}?,{i}\n" for i in range(30))


@pytest.mark.parametrize(("name", "content"), [
    ("a.csv", TABLE.encode()), ("a.csv", b"\xef\xbb\xbf" + TABLE.encode()), ("a.csv", TABLE.encode("utf-16")),
    ("a.csv.gz", gzip.compress(TABLE.encode())), ("a.csv", TABLE.replace(",", ";", 1).replace("?,", "?;").replace(
        '?",', '?";').encode())])
def test_cells_stay_what_they_are(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    first, second, *_ = [row for _, row in data.read(str(tmp_path / name)).records("train")]
    assert first == {"question": 'What, "exactly",\nis it?', "answer": "007"}
    assert second == {"question": "What?", "answer": "NA"}


@pytest.mark.parametrize(("name", "code"), [("a.json", "utf-8"), ("a.jsonl", "utf-16"), ("a.json", "utf-8-sig")])
def test_other_files_are_written_again_as_jsonl(tmp_path, in_process, init, name, code):
    rows = [{"question": q, "answer": a} for q, a in SUMS]
    text = json.dumps(rows) if name.endswith(".json") else "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / name).write_text(text, encoding=code)
    assert init(tmp_path / name) == 0
    assert [json.loads(line) for line in Path("data/train.jsonl").read_text().splitlines()] == rows
    assert compose([]).data_processor.task_pipeline.inputs == ["data/train.jsonl"]


@pytest.mark.parametrize(("name", "content", "words"), [
    ("a.jsonl", b'{"question": "1", "answer": "1"}\n{"question": \n', "line 2 is no JSON"),
    ("a.txt", b"once upon a time\n", "Write its rows as .jsonl"),
    ("a.csv", b"q,a\n1,2,3\n", "line 2: 3 cells; needed 2"), ("a.csv", b"q,q\n1,2\n", "several columns named q"),
    ("a.csv", b"", "holds no rows"), ("a.json", b"[1]", "entry 1 is a int"), ("a.json", b"[{", "is no JSON"),
    ("a.jsonl.gz", b"\x1f\x8bxx", "cannot be read"), ("a.csv", b"q,a\n\xff\xfa,1\n", "cannot be read")])
def test_a_broken_one_is_refused(tmp_path, init, capsys, name, content, words):
    (tmp_path / name).write_bytes(content)
    assert init(tmp_path / name) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "warmup", "made"), [
    ("rft", "", (100, 2, 45, 1)), ("rft", "solution", (100, 2, 33, 150)), ("sft", "", (100, 16, 75, 1))])
def test_a_first_run_on_a_cpu_takes_about_an_hour(kind, warmup, made, monkeypatch):
    """1e8 parameters on 2 threads, at 2e10 operations a second in training, 6 a weight, and 1e10 in sampling, 2 each:
    0.025 s a token, 0.015 of a given one, so 144,000 and 240,000 in an hour. A prompt has 100 tokens. Of the hour a
    warmup has a quarter, 60,000. In steps of 16 responses of 200 tokens these are 45 and 33, and 150 of 2 solutions."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert recipe._on_cpu(Guess(kind, {}, warmup=warmup), 10**8, 100, 200, 100, 64) == made


def test_a_recipe_for_a_cpu_is_shortened_and_says_so(tmp_path, in_process, init, monkeypatch, capsys):
    monkeypatch.setattr("ouroboros.pipeline.check.times.THREAD", (2e4, 1e4))
    rows = [{"question": f"{i} + {i} = ?", "answer": f"It is so.\n#### {2 * i}"} for i in range(400)]
    assert init(lines(tmp_path / "a.jsonl", rows)) == 0
    made = compose([])
    assert (made.buffer.batch_size, made.buffer.total_epochs) == (2, 1)
    assert 1 <= made.buffer.total_steps < 50
    assert f"{made.buffer.total_steps} steps of 2 rows" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("kind", "rows", "steps"), [
    ("rft", 300, (8, 3, 112)), ("rft", 3000, (32, 2, 187)), ("rft", 100_000, (64, 1, 1562)), ("sft", 20, (4, 20, 100)),
    ("dpo", 1, (1, 20, 20))])
def test_passes_and_batch_make_about_100_to_300_steps(kind, rows, steps):
    """A smaller batch, down to 8, comes before a third pass; more than 300 steps are cut by total_steps."""
    assert recipe._steps(Guess(kind, {}), rows) == steps
