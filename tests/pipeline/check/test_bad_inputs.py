"""Bad configurations, model directories and data files: each ends in a message that names it, none in a traceback."""

import gzip
import json
import os
from pathlib import Path

import pytest

from ouroboros.commands import cli
from ouroboros.pipeline.check.reading import sample
from ouroboros.pipeline.check.sources import sources
from ouroboros.pipeline.job.holders import is_locked
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.data_files import open_files
from ouroboros.pipeline.store.errors import ConfigError, DataError, ModelError, Problem, StageError
from ouroboros.pipeline.store.model_shape import read_config
from ouroboros.stages.sampled_rows import unusable
from tests.configs import changed
from tests.golden.messages import refuses, wording
from tests.models import safetensors
from tests.sizes import QWEN2

RECIPE = """
name: mine
model: {model_path: model, max_prompt_tokens: 64, max_response_tokens: 16}
buffer:
  batch_size: 8
  explorer_input:
    default_reward_fn_type: accuracy_reward
    taskset: {name: sums, path: data/a.jsonl, format: {prompt_key: q, response_key: a}}
    eval_tasksets: [{name: t, path: data/t.jsonl, format: {prompt_key: q, response_key: a}}]
algorithm: {repeat_times: 4}
data_processor: {task_pipeline: {generator: null, config_path: null}}
stages: [{stage_name: rft}]
"""
ROWS = b"".join(b'{"q": "%d+1=", "a": "2"}\n' % number for number in range(50))
BIG = "9" * 5000


@pytest.fixture
def checked(tmp_path, monkeypatch, capsys):
    """checked(*overrides): exit code and words of `ouro config check --no-data` beside good files."""
    monkeypatch.chdir(tmp_path)
    for name, content in (("mine.yaml", RECIPE.encode()), ("data/a.jsonl", ROWS), ("data/t.jsonl", ROWS),
                          ("model/config.json", json.dumps(QWEN2).encode()), ("model/tokenizer.json", b"{}"),
                          ("model/model.safetensors", safetensors({}))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)

    def run(*overrides: str) -> tuple[int, str]:
        code = cli.main(["config", "check", "recipe=mine.yaml", *overrides, "--no-data"])
        shown = capsys.readouterr()
        return code, " ".join((shown.out + shown.err).split())

    return run


def test_the_good_one_has_no_problem(checked):
    code, words = checked("buffer.total_steps=30")
    assert (code, "no problem found" in words) == (0, True)


READ = [  # what is reported of an invalid value
    ("seed=1e23", "seed: needed a number below 2^63, found one of 24 digits"),
    ("seed=-9223372036854775809", "seed: needed a number below 2^63"), ("seed=.5", "needed a whole number"),
    ("seed=nan", "seed=nan"), ("seed=inf", "seed=inf"),
    ("explorer.rollout_model.seed=100000000000000000000000", "rollout_model.seed: needed a number below"),
    ("buffer.batch_size=100000000000000000000000", "batch_size: needed a number below"),
    ("buffer.total_steps=1e300", "one of 301 digits"), ("buffer.batch_size=-8", "needed at least 1"),
    ("algorithm.optimizer.lr=inf", "needed a finite number"), ("algorithm.optimizer.betas=[inf,0.9]", "betas.0=inf"),
    ("buffer.explorer_input.taskset.reward_fn_args={timeout_seconds:inf}", "reward_fn_args.timeout_seconds=inf"),
    ("buffer.explorer_input.taskset.reward_fn_args={a:[1,{b:nan}]}", "reward_fn_args.a.1.b=nan: needed a finite"),
    ("explorer.rollout_model.extra_engine_args={x:-inf}", "extra_engine_args.x=-inf: needed a finite number"),
    ("algorithm.policy_loss_fn_args={clip_range_low:nan}", "clip_range_low=nan: needed a finite"),
    ("modle.model_path=x", "Did you mean 'model.model_path'?"),
    ("monitor.monitor_args={uri:3}", "monitor_args.uri=3: needed an address"),
    ("monitor.monitor_args={uri:'gopher://x'}", "'gopher:' is unknown"),
    ("explorer.rollout_model.external.base_url='http://h:99999/v1'", "base_url: needed http://"),
]


def rounds(cases: list[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Cases in groups of which each key is once on a command line."""
    made: list[dict[str, tuple[str, str]]] = []
    for case in cases:
        key = case[0].partition("=")[0]
        if all(key in one for one in made):
            made.append({})
        next(one for one in made if key not in one)[key] = case
    return [[*one.values()] for one in made]


@pytest.mark.parametrize("cases", rounds(READ))
def test_settings_that_cannot_be_read_are_told_together(checked, cases):
    code, found = checked(*(override for override, _ in cases))
    assert (code, [words for _, words in cases if words not in found]) == (2, [])


@pytest.mark.parametrize(("override", "words"), [
    ("model.chat_template_path=data", "model.chat_template_path: data is a directory; needed a file"),
    ("data_processor.task_pipeline.config_path=data", "config_path: data is a directory; needed a file"),
    ("model.model_path=data", "model.model_path=data: the directory has no file config.json"),
    ("algorithm.repeat_times=100000000", "a step holds 800,000,000 experiences"),
    ("buffer.explorer_input.taskset.name=''", "needed a name of each, found an empty one"),
    ("buffer.explorer_input.default_reward_fn_type=[accuracy_reward,accuracy_reward]", "needed each function once"),
    ("explorer.bench_steps=[-1]", "bench_steps=[-1]: needed numbers of trainer steps"),
    ("model.init.num_hidden_layers=100000000", "at most 1024"),
    ("data_processor.task_pipeline.num_process=100000", "num_process=100000: each is a process"),
    (f"model.model_path={'x' * 256}", "model.model_path"),
    (f"model.chat_template_path={'x/' * 2100}", "template_path="),
    (f"buffer.explorer_input.taskset.path=[data/a.jsonl,{'x' * 300}]", "taskset.path.1"),
    (f"stages=[{{stage_name: {'x' * 201}}}]", "stage_name")])
def test_a_setting(checked, override, words):
    code, found = checked(override)
    assert code == 2
    assert words in found


@pytest.mark.parametrize(("asked", "key"), [
    (("default_reward_fn_type=reward_model",), "auxiliary_models.0.model_path"),
    (("default_reward_fn_type=judge_reward", "reward_fn_args={judge_model: j, rubric: [{name: n, question: q}]}",
      "workflow_args={}"), None)])
def test_a_model_that_writes_gives_no_score_and_may_judge(checked, asked, key):
    code, found = checked("explorer.auxiliary_models=[{model_path:model,name:j}]",
                          *(f"buffer.explorer_input.taskset.{one}" for one in asked))
    assert code == 2 * bool(key)
    assert key is None or f"{key}=" in found


def test_an_infinity_means_no_bound_among_the_arguments_of_an_algorithm(checked):
    code, found = checked("algorithm.sample_strategy=staleness_control",
                          "algorithm.sample_strategy_args={max_staleness:inf}")
    assert (code, "finite" in found) == (0, False)


@pytest.mark.parametrize(("text", "words"), [
    (RECIPE.encode("utf-16"), "is no YAML"), (RECIPE.encode() + b"\xe9", "is no YAML"), (b"\0", "is no YAML"),
    (f"{RECIPE}seed: {BIG}\n".encode(), "is no YAML"), (f"{RECIPE}x: {'[' * 3000}{']' * 3000}".encode(), "too deep"),
    (RECIPE.encode() + b"~: 4\n", "a key here is null; needed a name. (mine.yaml, line 13)"),
    (RECIPE.encode() + b"\tlog: {}\n", "cannot start any token"), (RECIPE.encode() + b"---\nname: x\n", "is no YAML"),
    (RECIPE.encode() + b"seed: ${buffer.none}\n", "'buffer.none' not found (mine.yaml, line 13)"),
    (b"", "holds no settings"), (RECIPE.encode() + b"'': 3\n", "a key here is empty; needed a name. (mine.yaml, line"),
    (RECIPE.encode() + b"#" * (2 << 20), "has 2.0 MiB; needed a file of settings, of at most 1 MiB"),
    (b"defaults: x\n" + RECIPE.encode(), "defaults must be a list"),
    (b"defaults: [3]\n" + RECIPE.encode(), "Unsupported type in defaults"),
    (RECIPE.encode() + b"log: !!python/name:os.system\n", "log: has the tag"),
    (RECIPE.encode() + b"name: x\n", "(mine.yaml, line 13)"),
    (RECIPE.replace("model:", "modle:").encode(), "Did you mean 'model'?")])
def test_a_recipe(checked, tmp_path, text, words):
    (tmp_path / "mine.yaml").write_bytes(text)
    code, found = checked()
    assert code == 2
    assert words in found


@pytest.mark.parametrize("text", [RECIPE.encode("utf-8-sig"), RECIPE.replace("\n", "\r\n").encode()])
def test_marks_and_line_ends_of_other_systems_are_read(checked, tmp_path, text):
    (tmp_path / "mine.yaml").write_bytes(text)
    assert checked()[0] == 0


@pytest.mark.parametrize(("name", "words"), [
    ("model/model.safetensors", "no file of weights there"), ("model/tokenizer.json", "has no tokenizer"),
    ("model/config.json", "the directory has no file config.json"), ("data/a.jsonl", "data/a.jsonl does not exist")])
def test_a_file_that_is_not_there_or_leads_nowhere(checked, tmp_path, name, words):
    (tmp_path / name).unlink()
    assert words in checked()[1]
    (tmp_path / name).symlink_to("/nowhere/at/all")
    assert words in checked()[1]


@pytest.mark.parametrize(("changed", "words"), [
    ({"model_type": None}, "has no model_type"), ({"hidden_size": -64}, "hidden_size=-64; needed whole"),
    ({"hidden_size": "64", "num_attention_heads": 0}, "has hidden_size='64', num_attention_heads=0; needed"),
    ({"rope_scaling": "x"}, "has rope_scaling='x'; needed an object"),
    ({"rope_parameters": [1]}, "has rope_parameters=[1]; needed an object"),
    ({"layer_types": 3}, "has layer_types=3; needed a list"),
    ({"max_position_embeddings": "x"}, "has max_position_embeddings='x'; needed a whole number"),
    ({"sliding_window": "4"}, "has sliding_window='4'; needed a whole number"),
    ({"num_attention_heads": 4, "num_key_value_heads": 3}, "key/value heads that divides 4"),
    ({"num_attention_heads": 2, "num_key_value_heads": 4}, "key/value heads that divides 2"),
    ({"num_attention_heads": 11, "num_key_value_heads": 11}, "needed a number of heads that divides"),
    ({"sliding_window": 4, "use_sliding_window": True, "max_window_layers": "x"}, "has max_window_layers='x'; needed"),
    ({"model_type": "../../x"}, "no causal language model of model_type ../../x"),
    ({"quantization_config": {"quant_method": "awq"}}, "its weights are quantized (awq)")])
def test_a_model_that_cannot_be_built(checked, tmp_path, changed, words):
    (tmp_path / "model" / "config.json").write_text(json.dumps(QWEN2 | changed))
    code, found = checked()
    assert code == 2
    assert words in found


@pytest.mark.parametrize("make", [lambda path: path.write_text("x"), lambda path: path.symlink_to("conf")])
def test_a_conf_that_is_no_directory_is_not_left_out(checked, tmp_path, make):
    make(tmp_path / "conf")
    code, found = checked()
    assert code == 2
    assert "conf: is" in found


def test_defaults_that_lead_back_to_their_own_file(checked, tmp_path, capsys):
    (tmp_path / "conf" / "recipe").mkdir(parents=True)
    (tmp_path / "conf" / "recipe" / "own.yaml").write_text(f"# @package _global_\ndefaults: [/recipe: own]\n{RECIPE}")
    assert cli.main(["config", "check", "recipe=own", "--no-data"]) == 2
    assert "recipe=own" in capsys.readouterr().err


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/nowhere/at/all")])
def test_a_file_of_a_directory_that_cannot_be_read_is_not_left_out(tmp_path, make):
    (tmp_path / "a.jsonl").write_bytes(ROWS)
    make(tmp_path / "b.jsonl")
    with refuses(DataError, "b.jsonl"):
        sample(tmp_path, "train", 10, ["q"])


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.symlink_to("/nowhere/at/all")])
@pytest.mark.parametrize("name", ["config.yaml", "recipe/own.yaml"])
def test_a_file_of_the_project_that_is_none_is_named(checked, tmp_path, capsys, make, name):
    (tmp_path / "conf" / "recipe").mkdir(parents=True)
    if name != "config.yaml":
        (tmp_path / "conf" / "config.yaml").write_text("defaults: [{recipe: own}]")
    make(tmp_path / "conf" / name)
    assert cli.main(["config", "check", "--no-data"]) == 2
    assert f"{tmp_path / 'conf' / name}: " in capsys.readouterr().err


@pytest.mark.parametrize("content", ["[]", "{}", "3"])
def test_a_plan_that_is_none(tmp_path, content, capsys):
    (plan := tmp_path / "runs" / "p" / "r" / "plan.json").parent.mkdir(parents=True)
    plan.write_text(content)
    assert cli.main(["status", "--root", str(tmp_path)]) == 2
    assert f"{plan} is no" in capsys.readouterr().err


def test_a_long_value_is_cut_in_the_sentence(checked):
    code, found = checked(f"mode={'x' * 20000}")
    assert (code, "(20,000 characters)" in found, len(found) < 3000) == (2, True, True)


@pytest.mark.parametrize("words", [
    ["serve", "model", "--token-env", ""], ["serve", "model", "--record", ""], ["status", "--root", ""],
    ["logs", "--tail", "9" * 20]])
def test_an_option_without_a_value_that_can_be_used(checked, words):
    assert cli.main(words) == 2


@pytest.mark.parametrize(("option", "value"), [("--stage", "sft"), ("--engine", "vllm")])
def test_an_option_that_a_server_at_an_address_has_no_use_for(option, value, capsys):
    assert cli.main(["serve", "http://127.0.0.1:1/v1", option, value]) == 2
    assert option in capsys.readouterr().err


@pytest.mark.parametrize("content", ["[]", "null", "3", "[" * 100000, "\0", '{"a": 1}'])
def test_a_record_of_the_store_that_is_not_what_was_written(tmp_path, content):
    (record := tmp_path / "stage.json").write_text(content)
    with refuses(StageError, record):
        files.read_json(record)["config"]
    record.unlink()
    os.mkfifo(record)
    with refuses(StageError, record):
        files.read_json(record)


def test_a_deep_config_and_an_index_of_numbers(checked, tmp_path):
    (tmp_path / "model" / "model.safetensors").unlink()
    (tmp_path / "model" / "model.safetensors.index.json").write_text('{"weight_map": {"a": 3}}')
    assert "model.model_path=model: model.safetensors.index.json" in checked()[1]
    (tmp_path / "model" / "config.json").write_text("[" * 100000)
    assert "not valid JSON" in checked()[1]


@pytest.mark.parametrize(("source", "code"), [
    (b"# \xe9\ndef f(response, answer): return 1.0", 0), (b"def f(\xff", 2), (b"\0", 2)])
def test_a_module_that_is_no_text(checked, tmp_path, source, code):
    """0: what imports it, the check with data, reports it."""
    (tmp_path / "mine.py").write_bytes(source)
    found, words = checked("buffer.explorer_input.default_reward_fn_type=mine:f")
    assert (found, "Traceback" in words) == (code, False)


@pytest.mark.parametrize(("name", "named"), [
    ("data/a.jsonl", "buffer.explorer_input.taskset.path: data/a.jsonl"), ("mine.yaml", "mine.yaml"),
    ("model/tokenizer.json", "model/tokenizer.json"), ("model/config.json", "model.model_path=model: config.json"),
    ("model/model.safetensors", "model.model_path=model"), ("reward.py", "reward.py")])
def test_a_file_whose_reads_fail_is_named(checked, tmp_path, name, named):
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to("/proc/self/mem")
    code, words = checked("buffer.explorer_input.default_reward_fn_type=reward:f" if name == "reward.py" else "seed=1")
    assert (code, named in words) == (2, True)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: path.symlink_to("/nowhere/at/all")])
def test_what_stands_in_the_place_of_a_module_is_named(checked, tmp_path, make):
    make(tmp_path / "reward.py")
    code, words = checked("buffer.explorer_input.default_reward_fn_type=reward:f")
    assert (code, "reward.py is there" in words, "Did you mean" in words) == (2, True, False)


def test_a_pipe_is_not_waited_for(checked, tmp_path):
    for name in ("algorithm", "recipe"):
        (tmp_path / "conf" / name).mkdir(parents=True)
        os.mkfifo(tmp_path / "conf" / name / "x.yaml")
    assert checked()[0] == 0
    (tmp_path / "data" / "a.jsonl").unlink()
    os.mkfifo(tmp_path / "data" / "a.jsonl")
    wording(checked()[1], "(sums): data/a.jsonl")


@pytest.mark.parametrize(("content", "words"), [
    (gzip.compress(ROWS), "line 1 is compressed (gzip); needed one object a line"),
    (ROWS.decode().encode("utf-16"), "line 1 is UTF-16, not UTF-8"), (b"PAR1" + ROWS, "line 1 is Parquet, not text"),
    (b"version https://git-lfs.github.com/spec/v1\n", "line 1 is a pointer of Git LFS"),
    (ROWS[:-9], "line 50 is no JSON"), (b'{"q": %s}\n' % BIG.encode(), "line 1 is no JSON"),
    (b'{"q": ' + b"[" * 99999 + b"]" * 99999 + b"}", "line 1 is no JSON"), (b"[1]\n", "is a JSON list")])
def test_a_jsonl_file(tmp_path, content, words):
    (tmp_path / "a.jsonl").write_bytes(content)
    for read in (lambda: sample(tmp_path / "a.jsonl", "train", 10, ["q"]),
                 lambda: [list(rows) for _, rows in open_files(str(tmp_path / "a.jsonl"), None, "train", "path")]):
        with pytest.raises(DataError) as raised:
            read()
        assert words in str(raised.value)


@pytest.mark.parametrize(("key", "path", "words"), [
    ("buffer.explorer_input.taskset.path", "s3://bucket/a.jsonl", "s3://bucket/a.jsonl is an address (s3://)"),
    ("buffer.explorer_input.taskset.path", "https://x.org/a.jsonl", "https://x.org/a.jsonl is an address"),
    ("buffer.explorer_input.taskset.path", "file:///a.jsonl", "needed the path itself: /a.jsonl"),
    ("model.model_path", "gs://bucket/model", "is an address (gs://)"),
    ("model.model_path", "https://huggingface.co/org/name", "is an address (https://)"),
    ("model.chat_template_path", "s3://bucket/x.jinja", "is an address (s3://)")])
def test_an_address_of_another_machine(checked, key, path, words):
    code, found = checked(f"{key}='{path}'")
    assert (code, words in found) == (2, True)
    assert key in found


def column_problems(source):
    return unusable(source, sample(Path(source["path"]), source["split"], 1, ()))


def test_all_absent_columns_are_told_at_once(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"q": "1+1", "a": "2"}\n')
    columns = {"prompt_key": "prompt", "solution_key": "response"}
    source = {"key": "set", "path": str(tmp_path / "a.jsonl"), "split": "train", "format_key": "format",
              "columns": columns, "optional": ("solution_key",), "prompt_setting": "prompt_key",
              "paired": ("chosen", "rejected")}
    found = column_problems(source)
    assert [words in line for words, line in zip(("format.prompt_key", "format.response_key"), found, strict=True)] == [
        True, True]
    (tmp_path / "a.jsonl").write_text('{"prompt": "1+1", "chosen": "2", "rejected": "3"}\n')
    assert column_problems(source) == []


@pytest.mark.parametrize(("keys", "lacks"), [
    (["rate"], []), (["rate", "extra.level"], []), (["rote"], ["rote"]), (["rate", "extra.lvl"], ["extra.lvl"]),
    (["stages.look.avg_at_k"], [])])
def test_a_feature_that_no_record_has_is_told_before_a_run(tmp_path, keys, lacks):
    (tmp_path / "a.jsonl").write_text('{"question": "q", "answer": "1", "rate": 0.5, "extra": {"level": 2}}\n')
    own = {"buffer.explorer_input.taskset.data_selector.selector_type": "offline_easy2hard",
           "buffer.explorer_input.taskset.data_selector.feature_keys": keys}
    for place in ("data_processor.task_pipeline.inputs", "buffer.explorer_input.taskset.path"):
        path = str(tmp_path / "a.jsonl")
        config = changed(own | {"data_processor.task_pipeline.generator": None,
                                place: [path] if place.endswith("inputs") else path})
        found = [line for source in sources(config) for line in column_problems(source.request())]
        assert [key for line in found for key in lacks if f"'{key}'" in line] == lacks
        assert len(found) == len(lacks)


def test_columns_of_one_name(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["q", "q"])
    pq.write_table(table, tmp_path / "a.parquet")
    for read in (lambda: sample(tmp_path / "a.parquet", "train", 10, ["q"]),
                 lambda: [list(rows) for _, rows in open_files(str(tmp_path / "a.parquet"), None, "train", "path")]):
        with refuses(DataError, "several"):
            read()


def test_weights_that_are_cut_or_no_numbers_start_neither_a_server_nor_an_attempt(checked, tmp_path, capsys):
    for content, words in ((b"\x40\0\0\0\0\0\0\0{", "not a whole safetensors file"), (None, "no file of weights")):
        (tmp_path / "model" / "model.safetensors").unlink()
        if content:
            (tmp_path / "model" / "model.safetensors").write_bytes(content)
        for command in (["serve", "model"], ["debug", "workflow", "mine.yaml", "--checkpoint", "model"],
                        ["debug", "workflow", "mine.yaml"]):
            assert cli.main(command) == 2
            assert words in capsys.readouterr().err


def test_a_copy_of_weights_needs_its_step(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("ouroboros.pipeline.results.policies.choose_stage", lambda *_: None)
    monkeypatch.setattr("ouroboros.pipeline.results.policies.single", lambda view: view)
    monkeypatch.setattr("ouroboros.pipeline.results.sweep_view.find", lambda *_: None)
    assert cli.main(["weights", "base", "--out", str(tmp_path / "new")]) == 2
    assert "--out needs --step" in capsys.readouterr().err


def test_a_lock_that_is_a_pipe(tmp_path):
    """Opening it would never end."""
    (stage := tmp_path / "store" / "rft-0").mkdir(parents=True)
    os.mkfifo(stage / ".lock")
    with refuses(StageError, "file"):
        is_locked(stage / ".lock")
    with refuses(StageError, "file"), files.locked(stage / ".lock", print):
        pass
    assert cli.main(["gc", "--root", str(tmp_path)]) == 2


@pytest.mark.parametrize(("text", "lines", "most"), [
    ("x" * 1_000_000 + " needed: y", 1, 2100), ("\n".join(map(str, range(3000))), 101, 500), ("short", 1, 5)])
def test_a_long_message_is_shortened_in_the_middle(text, lines, most):
    for error in (DataError(text), ConfigError.of(text, []), Problem(needed=text)):
        assert len(str(error).split("\n")) == lines
        assert len(str(error)) <= most
        assert (str(error)[0], str(error)[-1]) == (text[0], text[-1])


def test_the_same_holds_for_names_of_commands_settings_and_queries(checked, capsys):
    for words in (["x" * 100_000], ["config", "explain", "x" * 100_000], ["status", "--root", "x" * 100_000]):
        capsys.readouterr()
        assert cli.main(words) == 2
        assert len(capsys.readouterr().err) < 6000


@pytest.mark.parametrize("kind", ["trinity", "verl"])
def test_an_import_of_too_many_keys(tmp_path, monkeypatch, capsys, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.yaml").write_text("".join(f"k{number}: 1\n" for number in range(2001)))
    assert cli.main(["import", kind, "k.yaml"]) == 2
    assert "2,001 keys" in capsys.readouterr().err


@pytest.mark.parametrize("fields", [
    {"rope_theta": 0}, {"rope_theta": -1.0}, {"rope_theta": "1e6"}, {"rope_theta": True}, {"rms_norm_eps": 0},
    {"rope_parameters": {"rope_theta": float("nan")}}, {"rope_parameters": {"full_attention": {"rope_theta": 0}}}])
def test_a_factor_of_positions_or_norms_that_is_no_positive_number(tmp_path, fields):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"} | fields))
    with refuses(ModelError, "above 0"):
        read_config(str(tmp_path))
