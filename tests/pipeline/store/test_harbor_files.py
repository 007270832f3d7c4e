"""Harbor task directories: what becomes a row, what is refused with which file's name, and what re-runs."""

import json
import logging
import os
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from ouroboros.pipeline.check.data import of_tasks
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.check.reading import sample
from ouroboros.pipeline.check.sources import most_rows
from ouroboros.pipeline.job.activity import Activity
from ouroboros.pipeline.plan.plan import make_plan
from ouroboros.pipeline.store import tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.harbor import read_task, tasks_in
from ouroboros.pipeline.store.records import RawTask
from ouroboros.stages import tasks as tasks_stage
from ouroboros.stages.sampled_rows import unusable, warnings
from tests.golden.messages import refuses, wording
from tests.harbor_kit import FILES, shapes_of_tasks, write_shape, write_task

SET = "buffer.explorer_input.taskset"


@pytest.fixture
def two(tmp_path):
    """A directory of two tasks, one of which brings data in the format of other sets."""
    write_task(tmp_path / "tasks" / "one")
    write_task(tmp_path / "tasks" / "two", instruction_dot_md="Write 5 to sum.txt.", tests__expected="5",
               environment__more_dot_jsonl="{}")
    return tmp_path / "tasks"


def composed(path, *more):
    return compose(["recipe=file_agent", f"{SET}.path={path}", "buffer.explorer_input.eval_tasksets=[]", *more])


def test_every_task_is_a_row_with_its_instruction_and_place(two):
    config = composed(two)
    rows = list(tasks_stage.read_sets(config))
    assert [(row.row, row.question, row.problem) for row in rows] == [
        (0, "Write the sum of the lines of numbers.txt to sum.txt.", None), (1, "Write 5 to sum.txt.", None)]
    truth = json.loads(rows[0].answer)
    assert truth == {"directory": str(two / "one"), "sha256": read_task(two / "one").digest}
    assert sample(two, "train", 5, ["question"]).total == 2
    rft = next(stage.config for stage in make_plan(config).stages if stage.kind == "rft")
    assert rft.buffer.explorer_input.taskset.path == str(two)
    assert most_rows(config.merged({"mode": "both"})) == 2


def test_a_changed_test_reads_the_tasks_again_and_trains_again(two):
    def identities():
        return {stage.name: stage.identity for stage in make_plan(composed(two)).stages}

    before = identities()
    (two / "one" / "tests" / "expected").write_text("8\n")
    after = identities()
    assert {name for name in before if before[name] != after[name]} >= {"rft"}
    assert before["sft"] == after["sft"]


def test_a_task_in_its_directory_is_described_by_its_files(two):
    task = read_task(two / "one")
    assert (task.workdir, task.settings.environment.env) == ("/app", {"LEVEL": "3", "NAME": "a b"})
    assert task.copies == [(two / "one/environment/numbers.txt", "/app/numbers.txt")]
    assert (task.settings.environment.memory_mb, task.settings.environment.storage_mb) == (2048, 64)
    assert (task.settings.agent.timeout_sec, task.settings.verifier.timeout_sec) == (60.0, 30.0)


def test_files_of_a_task_without_a_dockerfile_are_in_app(tmp_path):
    task = read_task(write_task(tmp_path, environment__data__a_dot_txt="2",
                                task_dot_toml='[environment]\nworkdir = "data"'))
    assert {target for _, target in task.copies} == {"/app/numbers.txt", "/app/data"}
    assert task.workdir == "/app/data"


@pytest.mark.parametrize(("changed", "reason"), [
    ({"environment__Dockerfile": "FROM x\nCOPY --chown=b:b numbers.txt /b\nUSER a"}, "a and b"),
    ({"environment__Dockerfile": "FROM x\nCOPY <<EOF /a\ntext\nEOF"}, "COPY <<EOF"),
    ({"environment__Dockerfile": "RUN true"}, "FROM"),
    ({"environment__a__Dockerfile": "FROM x", "task_dot_toml": '[environment]\nworkdir = "/usr/share"'}, "/usr/share"),
    ({"environment__compose_dot_yml": "services: {}"}, "compose.yml"),
    ({"environment__docker-compose_dot_yaml": "services: {}"}, "docker-compose.yaml"),
    ({"environment__Dockerfile": "FROM x\nCOPY numbers.txt absent.txt ./"}, "absent.txt"),
    ({"environment__Dockerfile": "FROM x AS y\nADD --chmod=600 ../gone /\nFROM x\nCOPY --from=y /gone /"}, "gone"),
    ({"environment__Dockerfile": 'FROM x\nRUN true\nCOPY ["a b", "/"]'}, "a b"),
    ({"task_dot_toml": '[environment]\nworkdir = "../x"'}, "environment.workdir=../x"),
    ({"task_dot_toml": "[environment]\ngpus = 1"}, "gpus"),
    ({"task_dot_toml": '[verifier]\nenvironment_mode = "separate"'}, "separate"),
    ({"task_dot_toml": '[agent]\nuser = "me"'}, "agent.user=me"),
    ({"task_dot_toml": '[verifier.env]\nKEY = "${OPENAI_API_KEY}"'}, "verifier.env.KEY"),
    ({"task_dot_toml": '[[steps]]\nname = "a"', "tests__test_dot_sh": None}, "steps")])
def test_what_cannot_run_here_is_refused_by_name_or_skipped_with_the_reason(tmp_path, changed, reason):
    write_task(tmp_path / "fine")
    write_task(tmp_path / "other", **changed)
    with pytest.raises(DataError) as error:
        list(tasks_stage.read_sets(composed(tmp_path)))
    assert str(tmp_path / "other") in str(error.value)
    assert reason in str(error.value)
    source = {"key": "set", "path": "tasks", "format_key": "format", "optional": (), "form": None,
              "columns": {"response_key": "answer"}}
    drawn = sample(tmp_path, "train", 5, ["question"])
    assert reason in unusable(source, drawn)[-1]
    assert not warnings(source, drawn.rows)
    assert reason in warnings(source | {"skips": True}, drawn.rows)[-1]
    assert not unusable(source | {"skips": True}, drawn)
    rows = list(tasks_stage.read_sets(composed(tmp_path, f"{SET}.format.unsupported=skip")))
    assert rows[0].problem is None
    assert reason in rows[1].problem


@pytest.mark.parametrize(("changed", "file"), [
    ({"task_dot_toml": "version = "}, "task.toml"), ({"task_dot_toml": "[agent]\ntimeout_sec = 'soon'"}, "task.toml"),
    ({"task_dot_toml": "[verifier]\ntimeout_sec = -1"}, "task.toml"),
    ({"task_dot_toml": '[environment]\nmemory_mb = "much"'}, "task.toml"),
    ({"task_dot_toml": "[verifier]\ntimeout_sec = inf"}, "task.toml: verifier.timeout_sec"),
    ({"task_dot_toml": "[agent]\ntimeout_sec = 1e300"}, "task.toml: agent.timeout_sec"),
    ({"task_dot_toml": "[environment]\nmemory_mb = inf"}, "task.toml: environment.memory_mb"),
    ({"task_dot_toml": "[environment]\nstorage_mb = 0.5"}, "task.toml: environment.storage_mb"),
    ({"task_dot_toml": '[environment.env]\n"A=B" = "x"'}, "task.toml: environment.env.A=B"),
    ({"task_dot_toml": '[solution.env]\n"" = "x"'}, "task.toml: solution.env"),
    ({"task_dot_toml": '[verifier.env]\nA = "\\u0000"'}, "task.toml: verifier.env.A"),
    ({"instruction_dot_md": None}, "instruction.md"), ({"instruction_dot_md": "# canary 1\n\n"}, "instruction.md"),
    ({"tests__test_dot_sh": None}, "tests/test.sh")])
def test_a_malformed_task_is_an_error_that_names_the_file(tmp_path, changed, file):
    write_task(tmp_path / "wrong", **changed)
    with pytest.raises(DataError) as error:
        list(tasks_stage.read_sets(composed(tmp_path)))
    assert str(tmp_path / "wrong" / file) in str(error.value)


@pytest.mark.parametrize("dockerfile", [
    "FROM x\nCOPY absent*.txt $FROM 'my file' ./", "FROM x AS y\nFROM x\nCOPY --from=y /absent /",
    "FROM x\nADD https://example.org/a git@example.org:a.git ./", "FROM x\nCOPY ../numbers.txt /numbers.txt ./",
    'FROM x\nRUN true\nCOPY ["numbers.txt", "."]', "FROM x\nCOPY . .", "FROM x\nCOPY --chmod=644 ./numbers.txt x/"])
def test_what_may_be_there_is_left_to_the_build(tmp_path, dockerfile):
    assert read_task(write_task(tmp_path, environment__Dockerfile=dockerfile)).unsupported is None


def test_what_is_read_otherwise_than_written_is_a_warning_with_the_task(tmp_path):
    crlf = "#!/bin/bash\r\necho 1\r\n"
    write_task(tmp_path / "one", tests__test_dot_sh=crlf, solution__lib__a_dot_sh=crlf,
               tests__lf_dot_sh="cat > x <<E\na\r\nE\n")
    write_task(tmp_path / "two", task_dot_toml="[verifer]\ntimeout_sec = 1\n[environment.envs]\n[metadata.a]\n")
    found = [(Path(one.key).name, str(one).partition(": ")[2]) for one in of_tasks(composed(tmp_path))[1]]
    assert [name for name, _ in found] == ["one", "one", "two", "two"]
    for (_, text), names in zip(found, (["tests/test.sh", "LF"], ["solution/lib/a.sh"], ["[verifer]", "'verifier'"],
                                        ["[environment.envs]", "'environment.env'"]), strict=True):
        wording(text, *names)
    for number in range(9):
        write_task(tmp_path / f"z{number}", tests__test_dot_sh=crlf)
    *_, last = of_tasks(composed(tmp_path))[1]
    wording(str(last), "8 more")


@pytest.mark.parametrize(("changed", "warns"), [
    ({"environment__Dockerfile": "FROM x\nWORKDIR /"}, True), ({"task_dot_toml": "[environment]\nworkdir = '/'"}, True),
    ({"environment__Dockerfile": "FROM x\nRUN true\nWORKDIR /srv\nWORKDIR .."}, True),
    ({"environment__Dockerfile": "FROM x AS y\nWORKDIR /\nFROM x\nRUN true\nWORKDIR /srv"}, False),
    ({"environment__Dockerfile": "FROM x\nRUN true"}, False), ({}, False)])  # the base image decides
def test_a_task_that_works_in_the_root_is_warned_of(tmp_path, changed, warns):
    found = read_task(write_task(tmp_path, **changed)).remarks
    assert ["works in /" in one for one in found] == [True] * warns


def test_a_check_says_that_dockerfiles_run_as_root(tmp_path):
    write_task(tmp_path / "tasks" / "one", environment__Dockerfile="FROM x\nRUN true")
    ((_, sentence),), _ = of_tasks(composed(tmp_path / "tasks", f"checkpoint_root_dir={tmp_path}"))
    wording(sentence, "1 of 1", "root")


def test_bytes_that_are_no_text_are_an_error(tmp_path):
    (write_task(tmp_path / "wrong") / "instruction.md").write_bytes(b"\xff\xfe")
    with refuses(DataError, "instruction.md"):
        list(tasks_stage.read_sets(composed(tmp_path)))


def test_the_stage_counts_tasks_and_says_what_is_not_isolated(two, tmp_path):
    write_task(two / "zzz", environment__compose_dot_yaml="services: {}")
    made = {}
    tasks_stage.work(SimpleNamespace(config=composed(two, f"{SET}.format.unsupported=skip"), directory=tmp_path,
                                     inputs={}, activity=Activity(), log=logging.getLogger("harbor"), made=made))
    assert made["harbor"] | {"isolation": ""} == {"tasks": 3, "skipped": 1, "isolation": ""}
    assert "kernel" in made["harbor"]["isolation"]
    rows = tables.read(tmp_path / tables.LOCATIONS["raw"], RawTask).to_pylist()
    assert [row["problem"] is None for row in rows if row["taskset"]] == [True, True, False]


def test_names_that_are_no_utf8_are_names(tmp_path):
    """Of a task, of a file in it, and of what a link in it points to; another byte is another task."""
    digests = []
    for number in (b"\xff", b"\xfe"):
        task = write_task(tmp_path / f"set{len(digests)}" / os.fsdecode(b"one\xff"))
        (task / "environment" / os.fsdecode(b"a" + number)).write_text("x")
        (task / "environment" / "link").symlink_to(os.fsdecode(b"to" + number))
        (row,) = tasks_stage.read_sets(composed(task.parent))
        digests.append(read_task(Path(json.loads(row.answer)["directory"])).digest)
    assert len(set(digests)) == 2


def test_the_digest_is_of_names_contents_and_rights_and_not_of_the_umask(two):
    tests, digests = two / "one" / "tests", [read_task(two / "one").digest]
    for path in (two / "one").rglob("*"):
        path.chmod(path.stat().st_mode & 0o700)
    assert read_task(two / "one").digest == digests[0]
    for change in (lambda: (tests / "test.sh").chmod(0o755), lambda: (tests / "expected").rename(tests / "expecte"),
                   lambda: (tests / "expecte").chmod(0o440),  # its owner may not write
                   (tests / "empty").mkdir, lambda: (tests / "empty").chmod(0o500)):
        change()
        digests.append(read_task(two / "one").digest)
    assert len(set(digests)) == 6


def test_tasks_are_directories_with_an_instruction(two):
    assert [file.parent.name for file in tasks_in(two)] == ["one", "two"]
    assert tasks_in(two / "one") == []
    assert set(FILES) >= {"task.toml"}


def test_a_pipe_in_a_task_is_not_waited_for(two):
    for name in ("environment/data", "instruction.md", "tests/test.sh", "task.toml"):  # each is read before the last
        (two / "one" / name).unlink(missing_ok=True)
        os.mkfifo(two / "one" / name)
        with refuses(DataError, name):
            read_task(two / "one")


def test_a_dockerfile_and_the_name_of_an_image_are_built(tmp_path):
    settings = '[environment]\ndocker_image="a/b:1"'
    task = read_task(write_task(tmp_path / "a", task_dot_toml=settings))
    assert (task.dockerfile, task.is_built, task.copies) == ("FROM a/b:1\n", True, [])
    assert read_task(write_task(tmp_path / "b", environment__Dockerfile="FROM x\nWORKDIR /w")).is_built
    assert not read_task(write_task(tmp_path / "c")).is_built
    assert not read_task(write_task(tmp_path / "d", environment__Dockerfile="RUN true")).is_built


def test_the_identity_of_images_is_that_of_dockerfile_context_and_base(two, tmp_path):
    base = tmp_path / "base.tar"
    base.write_text("1")
    assert "images" not in {stage.name for stage in make_plan(composed(two)).stages}
    for name in ("one", "two"):
        write_task(two / name, environment__Dockerfile="FROM ubuntu:24.04\nCOPY numbers.txt ./")

    def identities():
        config = composed(two).merged({"environment": {"images": {"ubuntu:24.04": str(base)}}})
        return {stage.name: stage.identity for stage in make_plan(config).stages}

    found = [identities()]
    for file, text in ((two / "one/instruction.md", "another"), (two / "two/tests/expected", "9"),
                       (two / "one/environment/numbers.txt", "3\n"), (base, "2")):
        file.write_text(text)
        found.append(identities())
    images, rft = ([one[name] for one in found] for name in ("images", "rft"))
    assert [before == after for before, after in pairwise(images)] == [True, True, False, False]
    assert len(set(rft)) == 5


def test_every_shape_of_public_tasks_is_accepted(tmp_path):
    shapes = shapes_of_tasks()
    assert sum(count for count, *_ in shapes) == 3566
    for number, (_, *shape) in enumerate(shapes):
        write_shape(tmp_path / str(number), shape, number)
    tasks = [read_task(file.parent) for file in tasks_in(tmp_path)]
    assert [task.unsupported for task in tasks if task.unsupported] == []
    assert all(task.is_built for task in tasks)
