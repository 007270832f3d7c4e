"""Ids of the Hugging Face hub: fetched once, before any stage; pinned; what is wrong with one is one sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ouroboros.commands import cli
from ouroboros.commands.run.planning import checked_plan
from ouroboros.commands.run.sweep import make_sweep
from ouroboros.pipeline.check import machine, preflight, samples
from ouroboros.pipeline.plan import hub, repositories
from ouroboros.pipeline.results.difference import frozen
from ouroboros.pipeline.store.checkpoints import model_name
from ouroboros.pipeline.store.digests import HubPath, digest_input, digest_tree
from ouroboros.pipeline.store.errors import ConfigError, OuroError, StageError
from ouroboros.stages.model import character_tokenizer
from tests.configs import changed
from tests.damage import flip
from tests.golden.messages import refuses, wording
from tests.hub import Hub, model, serving, use
from tests.sizes import answered

SETS, POOL = "buffer.explorer_input", "data_processor.task_pipeline"
ROWS = "\n".join(json.dumps({"question": f"{i} 1 2 to {i}", "answer": str(i)}) for i in range(1, 9))
DATA = {"main/train-00000-of-00001.jsonl": ROWS, "main/test-00000-of-00001.jsonl": ROWS, "README.md": "rows",
        "socratic/train-00000-of-00001.jsonl": ROWS, "main/notes.txt": "none"}
WEIGHTS = "/org/m/resolve/{}/model.safetensors"


@pytest.fixture
def served():
    made = Hub()
    with serving(made) as made.address:
        yield made


@pytest.fixture
def config(served, tmp_path, monkeypatch):
    """config(key=value, ...): the default recipe from org/m of the hub, with dotted keys set."""
    monkeypatch.chdir(tmp_path)
    use(monkeypatch, served.address, tmp_path / "hf")
    again()
    hub.SIBLINGS.clear()
    own = {"checkpoint_root_dir": str(tmp_path), "model.init.enable": False, "model.model_path": "org/m"}
    return lambda values=None: changed(own | (values or {}))


def again() -> None:
    """What a further process begins with."""
    repositories.newest.cache_clear()


def identities(plan) -> dict[str, str]:
    return {stage.name: stage.identity for stage in plan.stages}


def test_the_first_run_fetches_what_is_read_and_the_second_asks_nothing(served, config, tmp_path):
    sha = served.push("org/m", model(**{"modeling_m.py": "x = 1"}))
    plan = checked_plan(config())
    looked_at = {path.rpartition("/")[2] for method, path in served.requests if method == "HEAD"}
    assert looked_at == {"config.json", "modeling_m.py", "tokenizer.json", "tokenizer_config.json"}
    assert hub.missing(plan.stages) == {f"org/m@{sha}": {"model.safetensors": 1000}}
    served.requests.clear()
    plan.freeze()
    assert served.requests == [("HEAD", WEIGHTS.format(sha)), ("GET", WEIGHTS.format(sha))]
    model_directory = Path(next(s for s in plan.stages if s.name == "sft").inputs["model"])
    assert (model_directory / "model.safetensors").read_bytes() == b"w" * 1000
    unread = ("pytorch_model.bin", "model.gguf", "onnx", "original")
    assert not any((model_directory / name).exists() for name in unread)

    again()
    served.requests.clear()
    second = checked_plan(config())
    second.freeze()
    assert served.requests == []
    assert identities(second) == identities(plan)


def test_the_frozen_configuration_and_the_stages_that_read_it_have_the_commit(served, config, tmp_path):
    sha = served.push("org/m", model())
    plan = checked_plan(config())
    plan.freeze()
    assert frozen(plan.view)["model"]["model_path"] == f"org/m@{sha}"
    assert json.loads((plan.view / "plan.json").read_text())["hub"] == {"org/m": sha}
    read = {s.name: json.loads(Path(s.directory, "stage.json").read_text())["hub"] for s in plan.stages}
    assert {name for name, ids in read.items() if ids == [f"org/m@{sha}"]} == {"sft"}
    again()
    by_commit = checked_plan(config({"model.model_path": f"org/m@{sha}", "name": "other"}))
    assert identities(by_commit) == {**identities(plan), "report": identities(by_commit)["report"]}


def test_a_push_moves_no_run_until_it_is_asked_to(served, config, monkeypatch):
    monkeypatch.setattr(samples, "preview", lambda config, stages, models: answered(models))  # these are no models
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**50))
    before = served.push("org/m", model())
    plan = checked_plan(config())
    plan.freeze()
    after = served.push("org/m", model(**{"model.safetensors": b"new"}))
    again()
    assert identities(checked_plan(config())) == identities(plan)
    updated = preflight.judged_plan(config(), update_hub=True)
    assert (hub.pins(plan.config), hub.pins(updated.config)) == ({"org/m": before}, {"org/m": after})
    moved = {name for name, _ in identities(updated).items() - identities(plan).items()}
    assert moved == {"sft", "evaluate_sft", "rft", "evaluate_rft", "report"}
    again()
    assert identities(checked_plan(config())) == identities(plan), "nothing was launched, so nothing is kept"
    updated.freeze()
    assert identities(checked_plan(config())) == identities(updated) != identities(plan)


def test_snakemake_and_its_jobs_take_what_ouro_run_has_found(served, config, monkeypatch):
    served.push("org/m", model())
    plan = checked_plan(config())
    served.push("org/m", model(**{"README.md": "another"}))
    again()
    served.requests.clear()
    for name, value in hub.variable(plan).items():
        monkeypatch.setenv(name, value)
    assert identities(checked_plan(config(), ask=False)) == identities(plan)
    assert served.requests == []
    with refuses(ConfigError, "org/none"):
        checked_plan(config({"name": "x", "model.model_path": "org/none"}), ask=False)
    assert served.requests == []


@pytest.mark.parametrize("offline", [True, False])
def test_without_a_network_the_cache_is_taken_or_one_sentence_says_what_to_fetch(
        served, config, tmp_path, monkeypatch, offline):
    sha = served.push("org/m", model())
    plan = checked_plan(config())
    plan.freeze()
    again()
    use(monkeypatch, "http://127.0.0.1:9", tmp_path / "hf", offline)  # 9: discard, nobody listens
    assert identities(checked_plan(config({"name": "x"})))["rft"] == identities(plan)["rft"]
    report = preflight.check(config({"model.model_path": "org/other@v1"}))
    assert len(report.problems) == 1
    wording(report.problems[0], "hf", "org/other --revision v1")
    with pytest.raises(OuroError):  # to move needs the hub
        preflight.judged_plan(config(), update_hub=True)
    next(tmp_path.glob("hf/hub/models--org--m/snapshots/*/model.safetensors")).unlink()
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    with refuses(OuroError, f"org/m --revision {sha}"):
        plan.freeze()


@pytest.mark.parametrize(("status", "code", "words"), [
    (404, "RepoNotFound", "the hub has no such model"),
    (401, "RepoNotFound", "`hf auth login`, or set HF_TOKEN"),
    (401, "GatedRepo", "access must be requested: open http://127.0.0.1"),
    (403, "GatedRepo", "`hf auth login`, or set HF_TOKEN"),
    (403, "", "`hf auth login`, or set HF_TOKEN"),
    (500, "", "status 500")])
def test_what_the_hub_refuses_is_one_sentence_without_the_token(served, config, tmp_path, status, code, words):
    served.refuse["org/m"] = (status, code)
    report = preflight.check(config())
    assert len(report.problems) == 1
    assert report.problems[0].startswith("model.model_path=org/m: ")
    assert words in report.problems[0]
    assert served.tokens == {"Bearer hf_secret_of_this_test"}
    written = [path for path in tmp_path.rglob("*") if path.is_file() and b"hf_secret" in path.read_bytes()]
    assert "hf_secret" not in report.text()
    assert not written


def test_a_branch_that_is_not_there_and_a_model_without_weights(served, config):
    files = model()
    served.push("org/m", files)
    served.push("org/m", model(**{"README.md": "two"}), branch="v2")
    assert checked_plan(config({"model.model_path": "org/m@v2"}))
    wording([preflight.check(config({"model.model_path": "org/m@v3"})).problems], "model.model_path=org/m@v3", "v3")
    del files["model.safetensors"], files["pytorch_model.bin"]
    served.push("org/bare", files)
    assert "has no weights" in preflight.check(config({"model.model_path": "org/bare"})).problems[0]


def test_a_body_that_ends_early_is_fetched_on_or_nothing_is_kept(served, config, monkeypatch):
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    served.push("org/m", model(**{"model.safetensors": bytes(range(200)) * 50}))
    plan = checked_plan(config())
    served.cut["model.safetensors"] = 1000
    with refuses(OuroError, "broke"):
        plan.freeze()
    assert hub.missing(plan.stages)
    assert not Path(plan.stages[0].directory, "stage.json").exists()
    served.cut["model.safetensors"] = 1
    plan.freeze()
    assert not hub.missing(plan.stages)
    assert next(Path(os.environ["HF_HOME"]).rglob("model.safetensors")).read_bytes() == bytes(range(200)) * 50


@pytest.mark.parametrize("path", ["models/here", "./org/m", "/org/m", "../org/m", "~/org/m"])
def test_what_exists_is_a_path_and_so_is_what_begins_like_one(served, config, tmp_path, path):
    (tmp_path / "models/here").mkdir(parents=True)
    asked = config({"model.model_path": path})
    assert hub.located(asked) == (asked, [])
    assert served.requests == []


def test_a_configuration_without_ids_is_left_alone_and_imports_no_hub():
    code = """if True:
        import sys
        from ouroboros.pipeline.plan import hub
        from ouroboros.commands import cli
        from ouroboros.pipeline.check.judge import compose
        config = compose(["recipe=countdown"])
        assert hub.located(config) == (config, [])
        from ouroboros.pipeline.plan.plan import make_plan
        hub.fetch_missing(make_plan(config).stages)
        assert "huggingface_hub" not in sys.modules"""
    subprocess.run([sys.executable, "-c", code], check=True)


def sets(train: str, test: str | None = None, **more) -> dict:
    """Settings by which a run has its rows of these paths, from a local model that is none."""
    def one(name, path, split):
        source = changed({}).buffer.explorer_input
        default = source.taskset if split == "train" else source.eval_tasksets[0]
        return default.model_copy(update={"name": name, "path": path, "split": split, **more})

    return {f"{SETS}.taskset": one("a", train, "train"), f"{POOL}.generator": None, f"{POOL}.config_path": None,
            f"{SETS}.eval_tasksets": [one("b", test or train, "test")], "stages": [{"stage_name": "rft"}]}


def test_of_a_dataset_the_files_of_the_subset_and_the_splits_are_fetched(served, config, tmp_path):
    served.push("org/m", model())
    sha = served.push("datasets/org/rows", DATA)
    plan = checked_plan(config(sets("hf://datasets/org/rows", subset_name="main")))
    kept = f"hf://datasets/org/rows@{sha}"
    assert set(hub.missing(plan.stages)[kept]) == {name for name in DATA if name.startswith("main/t")}
    plan.freeze()
    tasks = next(s for s in plan.stages if s.kind == "tasks")
    assert tasks.hub == (kept,)
    again()
    other = served.push("datasets/org/rows", {**DATA, "README.md": "changed"})
    moved = checked_plan(config({**sets("hf://datasets/org/rows", subset_name="main"), "name": "x"}))
    assert moved.stages[0].hub == (f"hf://datasets/org/rows@{other}",)
    assert identities(moved)["tasks"] != identities(plan)["tasks"]


def test_a_file_or_a_pattern_of_a_dataset(served, config):
    served.push("org/m", model())
    sha = served.push("datasets/org/rows", DATA)
    plan = checked_plan(config(sets("hf://datasets/org/rows/*/train-*.jsonl",
                                    f"hf://datasets/org/rows@{sha}/main/test-00000-of-00001.jsonl")))
    kept = f"hf://datasets/org/rows@{sha}"
    train, test = (s for s in plan.stages if s.kind == "tasks")
    assert sorted(train.hub) == [f"{kept}/{below}/train-00000-of-00001.jsonl" for below in ("main", "socratic")]
    assert test.hub == (f"{kept}/main/test-00000-of-00001.jsonl",)
    assert len(hub.missing(plan.stages)[kept]) == 3


@pytest.mark.parametrize(("files", "path", "words"), [
    ({"rows.py": "import", "README.md": ""}, "hf://datasets/org/rows", "@refs/convert/parquet"),
    ({"train.json": "[]"}, "hf://datasets/org/rows", "has no .jsonl or .parquet file"),
    ({"test.jsonl": ROWS}, "hf://datasets/org/rows", "no files of split 'train'; found test"),
    (DATA, "hf://datasets/org/rows/train.parquet", "has no file 'train.parquet'"),
    (DATA, "hf://org/rows", "needed hf://datasets/org/name[@revision][/file]"),
    (DATA, "hf://datasets/rows", "not an id of the Hugging Face hub")])
def test_a_dataset_that_cannot_be_read_is_told_before_the_run(served, config, files, path, words):
    served.push("org/m", model())
    served.push("datasets/org/rows", files)
    problems = preflight.check(config(sets(path))).problems
    assert problems
    assert words in problems[0]


def test_the_preview_leaves_out_rows_that_are_still_to_come(served, config):
    served.push("org/m", model())
    sha = served.push("datasets/org/rows", DATA)
    values = config(sets("hf://datasets/org/rows", subset_name="main"))
    report = preflight.check(values)
    assert report.problems == []
    assert not hub.is_here(HubPath("/x", "hf://datasets/org/rows", sha, f"hf://datasets/org/rows@{sha}/main"), "train")
    wording(report.facts[0][0], "`ouro run`")
    report.plan.freeze()
    assert not hub.missing(report.plan.stages)


def test_without_data_the_check_never_asks(served, config):
    served.push("org/m", model())
    report = preflight.check(config(), ask=False)
    assert served.requests == report.problems == []
    assert "org/m" in report.unjudged[0]
    assert report.plan is None


def test_the_points_of_a_sweep_have_one_commit(served, config, tmp_path):
    served.push("org/m", model())
    words = [f"checkpoint_root_dir={tmp_path}", "model.init.enable=false", "model.model_path=org/m"]
    make_sweep([*words, "seed=2,3"]).freeze()
    served.push("org/m", model(**{"README.md": "another"}))
    again()
    plans = [point.plan for point in make_sweep([*words, "seed=1,2,3"]).points]
    assert len({json.dumps(hub.pins(plan.config)) for plan in plans}) == 1
    assert set(hub.variable(make_sweep([*words, "seed=1,2,3"]))) == {hub.PINS}


def test_a_stage_never_asks(served, config, tmp_path):
    """Its environment is offline, and what it reads is there."""
    served.push("org/m", model())
    served.push("datasets/org/rows", DATA)
    plan = checked_plan(config(sets("hf://datasets/org/rows", subset_name="main")))
    plan.freeze()
    served.requests.clear()
    tasks = next(s for s in plan.stages if s.kind == "tasks")
    code = ("import os, sys; from ouroboros.stages import tasks; "
            "from ouroboros.pipeline.job.context import run_stage; sys.argv[1:] = "
            f"[{tasks.directory!r}]; run_stage(tasks.work, ''); assert os.environ['HF_HUB_OFFLINE'] == '1'")
    subprocess.run([sys.executable, "-c", code], check=True)
    manifest = json.loads(Path(tasks.manifest).read_text())
    assert manifest["rows"] == 8
    assert manifest["hub"] == list(tasks.hub)
    assert served.requests == []
    again()
    assert not any(name.startswith("hf://") and "train" in str(files) for name, files in
                   hub.missing(checked_plan(config(sets("hf://datasets/org/rows", subset_name="main"))).stages).items())


def test_difference_shows_ids_and_not_the_cache(served, config):
    from ouroboros.pipeline.results.difference import _planned

    sha = served.push("org/m", model())
    assert _planned("x", config()).stages is None
    checked_plan(config()).freeze()
    again()
    served.requests.clear()
    side = _planned("x", config())
    assert side.config["model"]["model_path"] == f"org/m@{sha}"
    assert served.requests == []


def test_a_local_directory_enters_an_identity_by_its_content_and_one_of_the_hub_by_its_name(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text("{}")
    by_content = digest_tree(tmp_path / "m", str(tmp_path))
    assert digest_input(str(tmp_path / "m"), str(tmp_path)) == by_content
    of_hub = HubPath(str(tmp_path / "m"), "org/m", "0" * 40, "org/m@" + "0" * 40)
    assert digest_input(of_hub, str(tmp_path)) == "org/m@" + "0" * 40
    kept = Path("/home/me/.cache/huggingface/hub/models--org--m-2/snapshots") / ("0123456789ab" + "0" * 28)
    assert [model_name(path) for path in (kept, Path("store/rft-0123abcd"), Path("m"))] == [
        "org/m-2@0123456789ab", "rft-0123abcd", "m"]  # in tables


def test_config_check_and_run_by_their_commands(served, config, tmp_path, capsys):
    """What a person types: a check, a dry run that changes nothing of the run, and an update."""
    character_tokenizer(2048).save_pretrained(tmp_path / "tokenizer")
    tokenizer = {file.name: file.read_text() for file in (tmp_path / "tokenizer").iterdir()}
    sha = served.push("org/m", model(**tokenizer))
    words = [f"checkpoint_root_dir={tmp_path}", "model.init.enable=false", "model.model_path=org/m"]
    assert cli.main(["config", "check", *words]) == 0
    wording(capsys.readouterr().out, "1 file(s)", sha[:12])
    assert cli.main(["run", "--update-hub", *words, "--", "-n", "--quiet"]) == 0
    assert f"org/m is at {sha[:12]}" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
    assert ("GET", WEIGHTS.format(sha)) not in served.requests


# ------------------------------------------------------------------------------------------------------ damaged files


@pytest.mark.parametrize("name", ["model.safetensors", "merges.txt"])
def test_a_file_that_is_damaged_on_the_way_or_in_the_cache_is_not_used(served, config, name):
    """Its sha256 is known, of small files the hash that git has."""
    served.push("org/m", model(**{"merges.txt": "a b"}))
    served.flip = {name}
    with refuses(OuroError, "org/m@") as caught:
        checked_plan(config()).freeze()
    served.flip = set()
    Path(str(caught.value).partition(",")[0]).unlink()  # as it says
    again()
    plan = checked_plan(config())
    plan.freeze()
    weights = Path(next(s for s in plan.stages if s.name == "sft").inputs["model"], "model.safetensors").resolve()
    flip(weights)
    with refuses(OuroError, "damaged", weights):
        plan.freeze()


def test_a_run_whose_plan_is_damaged_keeps_the_commits_that_it_had(served, config):
    """Those are in stage.json too; without repositories the plan is made again."""
    sha = served.push("org/m", model())
    plan = checked_plan(config())
    plan.freeze()
    flip(plan.view / "plan.json")
    again()
    with refuses(OuroError, f"org/m@{sha}"):
        checked_plan(config())
    (plan.view / "plan.json").unlink()
    assert identities(checked_plan(config())) == identities(plan)


def test_a_directory_is_pushed_to_a_private_repository(served, tmp_path, monkeypatch):
    use(monkeypatch, served.address, tmp_path / "cache")
    given = tmp_path / "given"
    given.mkdir()
    files = {"README.md": b"---\ntags:\n- ouroboros\n---\n", "config.json": b"{}",
             "model.safetensors": bytes(range(256))}
    for name, body in files.items():
        (given / name).write_bytes(body)
    assert repositories.push("org/given", given) == f"{served.address}/org/given"
    (pushed,) = served.commits["org/given"].values()
    assert (pushed, served.private) == (files, {"org/given": True})
    served.refuse["org/other"] = (403, "")
    with pytest.raises(StageError):
        repositories.push("org/other", given)
    (given / "README.md").write_text("---\nbase_model: /no/id\n---\n")
    with pytest.raises(StageError):
        repositories.push("org/given", given)
    use(monkeypatch, "http://127.0.0.1:9", tmp_path / "cache")  # where nobody listens
    with pytest.raises(StageError):
        repositories.push("org/given", given)


@pytest.mark.parametrize("name", ["given", "org/", "/given", "a/b/c", "org/gi ven", "hf://org/given", ""])
def test_a_name_to_push_to_is_checked_first(name):
    with pytest.raises(ConfigError):
        repositories.require_name(name)
