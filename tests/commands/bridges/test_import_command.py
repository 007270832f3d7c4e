"""`ouro import`: what it prints, where it writes, what it refuses, and that its recipe composes to the same values."""

import io

import pytest
import yaml

from ouroboros.commands import cli
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.settings.setting import plain
from tests.bridges import SOURCES, flat
from tests.golden.messages import wording

# of keys that have long been here, so that the recipe composes
SMALL = """\
project: p
name: small
ray_namespace: r
algorithm: {algorithm_type: grpo, repeat_times: 4, optimizer: {lr: 2e-6}}
model: {model_path: m, max_prompt_tokens: 64, max_response_tokens: 64}
buffer: {batch_size: 8, total_steps: 5}
trainer: {trainer_strategy: fsdp, save_interval: 7}
monitor: {monitor_type: none, monitor_args: {api_key: hunter2}}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SMALL)
    return tmp_path


def ouro(capsys, *words: str):
    code = cli.main(["import", *words])
    return code, capsys.readouterr()


def test_the_recipe_is_written_told_checked_and_composes_to_the_same_values(here, capsys):
    code, told = ouro(capsys, "trinity", "small.yaml")
    assert code == 0
    wording(told.out, "small.yaml: 15", "12 as", "1 renamed", "2 left", "conf/recipe/small.yaml", "recipe=small")
    config = compose(["recipe=small"])
    assert config.algorithm.optimizer.lr == 2e-6
    assert config.trainer.zero_stage == 3
    assert (config.buffer.batch_size, config.buffer.total_steps) == (8, 5)
    written = flat(yaml.safe_load((here / "conf/recipe/small.yaml").read_text()))
    composed = flat(plain(config))
    assert {k: composed[k] for k in written if k != "algorithm.optimizer.lr"} == {
        k: v for k, v in written.items() if k != "algorithm.optimizer.lr"}  # YAML 1.1 reads 2e-6 as a text


def test_what_is_left_out_is_told_with_line_and_reason_and_without_secrets(here, capsys):
    _, told = ouro(capsys, "trinity", "small.yaml")
    wording(told.out, "line 3", "ray_namespace=r")
    assert "line 8    monitor.monitor_args.api_key='***'" in told.out
    assert "hunter2" not in told.out + (here / "conf/recipe/small.yaml").read_text()


@pytest.mark.parametrize("name", ["0", "1e5", "null", "true", "${x}", "-x", "a b", "Ü", "_self_", "長" * 83])
@pytest.mark.parametrize(("kind", "suffix", "text"), [
    ("trinity", ".yaml", SMALL.replace("name: small\n", "")), ("verl", ".sh", "data.train_batch_size=8"),
    ("verl", ".sh", "trainer.experiment_name=''")])
def test_a_recipe_is_found_by_the_name_of_any_file(here, capsys, kind, suffix, text, name):
    (here / f"{name}{suffix}").write_text(text)
    ouro(capsys, kind, f"./{name}{suffix}")
    path, = (here / "conf/recipe").iterdir()
    config = compose([f"recipe={path.stem}"])
    assert config.buffer.batch_size != compose([]).buffer.batch_size or config.name != "run"


def test_to_the_standard_output_and_from_the_standard_input(here, capsys, monkeypatch):
    _, told = ouro(capsys, "trinity", "small.yaml", "--stdout")
    assert yaml.safe_load(told.out)["project"] == "p"
    assert "15 keys" in told.err
    assert not (here / "conf").exists()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(SMALL.encode())))
    code, told = ouro(capsys, "trinity", "-", "--name", "other")
    assert code == 0
    assert (here / "conf/recipe/other.yaml").exists()
    wording(told.out, "15 keys")


def test_a_recipe_that_says_something_else_is_not_replaced_unless_told(here, capsys):
    ouro(capsys, "trinity", "small.yaml", "--output", "there/r.yaml")
    assert ouro(capsys, "trinity", "small.yaml", "--output", "there/r.yaml")[0] == 0  # the same again
    (here / "small.yaml").write_text(SMALL.replace("save_interval: 7", "save_interval: 8"))
    code, told = ouro(capsys, "trinity", "small.yaml", "--output", "there/r.yaml")
    assert (code, "--force" in told.err) == (2, True)
    assert ouro(capsys, "trinity", "small.yaml", "--output", "there/r.yaml", "--force")[0] == 0


def test_the_name_of_a_recipe_of_ours_is_refused(here, capsys):
    code, told = ouro(capsys, "trinity", "small.yaml", "--name", "countdown")
    assert (code, "recipe of ours" in told.err) == (2, True)


def test_a_recipe_that_does_not_compose_is_written_with_its_problems(here, capsys):
    (here / "small.yaml").write_text(SMALL.replace("grpo,", "brand_new,"))
    code, told = ouro(capsys, "trinity", "small.yaml")
    assert (code, (here / "conf/recipe/small.yaml").exists()) == (1, True)
    wording(told.out, "1 problem")
    wording(told.out.replace("\n    ", " "), "algorithm.algorithm_type=brand_new")
    code, told = ouro(capsys, "trinity", "small.yaml", "--stdout")
    assert (code, yaml.safe_load(told.out)["project"]) == (1, "p")
    wording(told.err, "1 problem")


def test_a_script_of_which_no_key_could_be_translated_is_a_failure(here, capsys):
    (here / "x.sh").write_text("python3 -m verl.trainer.main_ppo foo.bar=1 ray_init.num_cpus=2\n")
    code, told = ouro(capsys, "verl", "x.sh")
    assert code == 1
    wording(told.out, "x.sh: 2", "0 translated", "1 left", "1 without", "translated")
    assert "it composes" not in told.out


def test_the_story_of_the_documentation_is_what_the_command_prints(here, capsys):
    docs = SOURCES.parents[3] / "docs"
    page = (docs / "migrate.md").read_text()
    (here / "trinity.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    (here / "run_grpo.sh").write_text((SOURCES / "grpo_seq_balance.sh").read_text())
    for words in (["trinity", "trinity.yaml", "--name", "ported"], ["verl", "run_grpo.sh", "--name", "grpo"]):
        shown = page.split(f"$ ouro import {' '.join(words)}\n")[1].split("```")[0].split("wrote conf")[0]
        _, told = ouro(capsys, *words)
        assert told.out.startswith(shown.rstrip("\n"))


@pytest.mark.parametrize(("content", "said"), [
    (b"\xff\xfe\x00", "no text in UTF-8"), (b"a: [", "no YAML"), (b"", "holds no settings")])
def test_a_source_that_cannot_be_read_is_one_message(here, capsys, content, said):
    (here / "x.yaml").write_bytes(content)
    for kind in ("trinity", "verl"):
        code, told = ouro(capsys, kind, "x.yaml")
        assert (code, said in told.err) == (2, True)


def test_a_word_that_could_not_be_read_ends_with_1_and_says_how_many_lines_hang_on_it(here, capsys):
    (here / "run.sh").write_text((SOURCES / "grpo_seq_balance.sh").read_text().replace("$@", "$(cat more.txt)"))
    code, told = ouro(capsys, "verl", "run.sh", "--name", "more")
    assert code == 1
    assert "it composes" in told.out
    line = len((here / "run.sh").read_text().splitlines())
    doubt = f"veRL's defaults, unless line {line}, which could not be read, says otherwise"
    assert doubt in " ".join(told.out.split())
    recipe = (here / "conf/recipe/more.yaml").read_text()
    count = next(words for words in told.out.splitlines() if "of its lines" in words).split()[0]
    assert recipe.count(f"unless line {line},") == int(count) > 0


@pytest.mark.parametrize(("script", "code", "said"), [
    ("python3 -m verl.trainer.main_ppo trainer.nnodes=1 actor_rollout_ref.actor.optim.lr=$(cat lr)", 1,
     "set algorithm.optimizer.lr."),
    ("python3 -m verl.trainer.main_ppo trainer.nnodes=1 trainer.experiment_name=run_$(date) "
     "trainer.n_gpus_per_node=$(nproc)", 0, "it composes"),
    ("python3 -m verl.trainer.main_ppo trainer.nnodes=1\n  trainer.total_epochs=2", 1,
     "it lacks the overrides of line 2, which were not read")])
def test_what_the_recipe_lacks_of_what_is_made_ends_with_1(here, capsys, script, code, said):
    """A learning rate of ours instead of the script's is another run; a name or a number of GPUs is not."""
    (here / "x.sh").write_text(f"{script}\n")
    found, told = ouro(capsys, "verl", "x.sh")
    assert (found, said in " ".join(told.out.split())) == (code, True)
