"""`ouro config diff`: settings and stages in which two configurations differ."""

import pytest

from ouroboros.commands import cli
from ouroboros.commands.run.planning import make_checked_plan
from ouroboros.pipeline.results.difference import difference_lines, differing, flatten, is_how, side
from ouroboros.pipeline.store.errors import ConfigError, DataError
from tests.golden.messages import refuses, wording


def lines(root, a: str, b: str) -> list[str]:
    return squeezed(*difference_lines(side(root, a), side(root, b)))


def squeezed(*blocks: str) -> list[str]:
    return [" ".join(line.split()) for block in blocks for line in block.splitlines()]


def test_stages_are_compared_by_name_and_other_lists_by_number():
    nested = {"a": {"b": 1, "c": {}}, "stages": [{"stage_name": "rft", "seed": 2}], "l": [1, 2], "e": [{"x": 3}]}
    assert flatten(nested) == {"a.b": 1, "a.c": {}, "stages.rft.stage_name": "rft", "stages.rft.seed": 2, "l": [1, 2],
                               "e.0.x": 3}
    assert differing([{"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}]) == ["b", "c"]
    sides = [{"env_vars": {}, "seed": 1, "args": {}}, {"env_vars": {"X": "1"}, "seed": 1, "args": 3}]
    assert differing(sides) == ["args", "env_vars.X"]  # an empty mapping is no row beside the entries of the other


def test_overrides_against_the_default(tmp_path):
    found = lines(tmp_path, "", "algorithm.optimizer.lr=0.25 stages.sft.seed=3 log.level=DEBUG")
    wording(found[0], "(no overrides) algorithm.optimizer.lr=0.25", "stages.sft.seed=3 log.level=DEBUG")
    assert "algorithm.optimizer.lr 0.0005 0.25" in found
    wording(found, "stages.sft.seed 1 ", "stages")
    assert "log.level INFO DEBUG" in found
    stages = dict(line.split(": ", 1) for line in found if line.startswith("stages that"))
    assert [part.split(" ")[0] for part in stages["stages that differ"].split(", ")] == [
        "sft", "evaluate_sft", "rft", "evaluate_rft", "report"]
    assert stages.popitem()[1] == "tasks, curate, model"


def test_the_same_twice_says_so(tmp_path):
    found = lines(tmp_path, "seed=2", "seed=2")
    assert found[0] == "no setting differs"
    wording(found[-1], "stages")


def test_a_stage_that_only_one_has(tmp_path):
    found = lines(tmp_path, "", "'stages=[{stage_name: rft}]'")
    wording(found, "evaluate_sft")


def test_runs_by_name_against_each_other_and_against_overrides(tmp_path, capsys):
    for name, seed in (("one", 1), ("two", 2)):
        make_checked_plan([f"checkpoint_root_dir={tmp_path}", f"name={name}", f"seed={seed}"]).freeze()
    assert cli.main(["config", "diff", "one", "ouroboros/two", "--root", str(tmp_path)]) == 0
    out = squeezed(capsys.readouterr().out)
    assert out[0] == "key ouroboros/one ouroboros/two"
    assert {"name one two", "seed 1 2"} <= set(out)
    wording(out, "stages")
    found = lines(tmp_path, "one", f"checkpoint_root_dir={tmp_path} name=one")
    assert found[0] == "no setting differs"


def test_secrets_are_compared_and_never_shown(tmp_path):
    from dataclasses import replace

    plain = side(tmp_path, "")
    sides = [replace(plain, config={**plain.config, "service": {"api_key": key, "port": port}})
             for key, port in (("hunter1", 1), ("hunter2", 2))]
    found = squeezed(*difference_lines(*sides))
    assert "service.api_key *** ***" in found
    assert "hunter" not in "\n".join(found)


def test_settings_are_compared_without_the_files_that_they_name(tmp_path):
    pool = "data_processor.task_pipeline"
    other = f"{pool}.generator=null {pool}.inputs=[absent.jsonl]"
    lines = difference_lines(side(tmp_path, "seed=2"), side(tmp_path, other))
    assert [line.split()[0] for line in lines[0].splitlines()[2:]] == ["seed", f"{pool}.generator", f"{pool}.inputs"]
    wording(lines[-1], "compared", "absent.jsonl")


@pytest.mark.parametrize(("text", "kind", "said"), [
    ("onne", DataError, "'onne'"), ("one seed=3", DataError, "overrides"), ("seed='3", ConfigError, "key=value"),
    ("sed=3", ConfigError, "unknown")])
def test_what_is_neither_a_run_nor_overrides(tmp_path, text, kind, said):
    make_checked_plan([f"checkpoint_root_dir={tmp_path}", "name=one"]).freeze()
    with refuses(kind, said):
        side(tmp_path, text)


def test_a_frozen_configuration_that_is_gone_is_named(tmp_path):
    plan = make_checked_plan([f"checkpoint_root_dir={tmp_path}", "name=one"])
    plan.freeze()
    (plan.view / "config.yaml").unlink()
    with refuses(DataError, "config", "--write"):
        side(tmp_path, "one")


def test_a_sweep_has_no_configuration_of_its_own(tmp_path):
    from ouroboros.commands.run.sweep import make_sweep

    make_sweep([f"checkpoint_root_dir={tmp_path}", "name=s", "seed=1,2"]).freeze()
    with refuses(DataError, "ouroboros/s-seed=1, ouroboros/s-seed=2"):
        side(tmp_path, "s")


def test_settings_that_are_how():
    keys = ["log.level", "stages.rft.trainer.ranks", "monitor.monitor_args.uri", "seed",
            "stages.rft.algorithm.optimizer.lr"]
    assert [is_how(key) for key in keys] == [True, True, True, False, False]


def test_both_sides_are_told_at_once(capsys):
    assert cli.main(["config", "diff", "seed=x", "recipe=nope"]) == 2
    told_of = capsys.readouterr().err
    wording(told_of, "seed=x")
    assert "recipe=nope: unknown." in told_of
    assert cli.main(["config", "diff", "seed=x", "seed=2"]) == 2
    assert "'seed=x' has problems" in capsys.readouterr().err
