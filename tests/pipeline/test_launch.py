"""What the Snakefile is handed, and how a mistake ends there."""

import pytest

from pipeline.run.snakefile import MULTIRUN, load_plan, make_plan_or_sweep, split_overrides
from pipeline.store.errors import ConfigError


def test_a_person_may_type_overrides_as_shell_words():
    assert split_overrides("""seed=2 name='two words'""") == ["seed=2", "name=two words"]
    assert split_overrides(None) == []
    with pytest.raises(ConfigError, match="No closing quotation"):
        split_overrides("name='a")
    with pytest.raises(ConfigError, match="it was read as dict"):
        split_overrides({"seed": "2"})


@pytest.mark.parametrize(("given", "words"), [
    ({"seed": 2}, """--config seed=2: the only key that is read is `overrides`. Write --config overrides="seed=2", """
                  "or use `ouro run seed=2`."),
    ({"overrides": "name=x", "seed": 2}, 'overrides="name=x seed=2"'),
    ({"overrides": ["name=x"], "seed": 2}, "`ouro run name=x seed=2`"),
    ({"overrides": "checkpoint_root_dir=/dev/null/x"}, "checkpoint_root_dir=/dev/null/x: /dev/null is no directory."),
])
def test_what_cannot_be_run_is_a_message_and_exit_code_2(given, words, capsys):
    with pytest.raises(SystemExit) as ended:
        load_plan(given)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_overrides_are_the_plan(tmp_path):
    assert load_plan({"overrides": f"name=x checkpoint_root_dir={tmp_path}"}).name == "x"
    assert load_plan({}).project == "ouroboros"


@pytest.mark.parametrize("words", [[], ["seed=1"], ["seed=1", "name=x"]])
def test_a_sweep_in_which_nothing_varies_is_refused(words):
    with pytest.raises(ConfigError, match=r"no override has several\. Write them with commas, such as seed=1,2"):
        make_plan_or_sweep([MULTIRUN, *words])


def test_a_word_that_cannot_be_read_is_told_before_that():
    with pytest.raises(ConfigError, match="do not match"):
        make_plan_or_sweep([MULTIRUN, "seed=[1,2"])
