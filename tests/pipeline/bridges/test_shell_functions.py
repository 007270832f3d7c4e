"""Functions of a script that it calls once, the arguments that they get, and texts of which a part is not known.

Expected values are what bash 5 prints for the same lines.
"""

import pytest

from pipeline.bridges.shell import read_script
from tests.bridges import from_verl, written

KEYS = "algorithm.adv_estimator=rloo data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=16"
START = f"python3 -m verl.trainer.main_ppo {KEYS}"
DOUBT = ", unless line {}, which could not be read, says otherwise"


def last(script: str) -> list[str]:
    """The arguments of the last command."""
    return [a.text for a in read_script(script).commands[-1].arguments]


@pytest.mark.parametrize(("script", "arguments"), [
    ("f() {\n  run $1 \"$@\"\n}\nf a b", ["run", "a", "a", "b"]),
    ("f() { run $# ${2} ${3:-none} ${@:2}; }\nf a b", ["run", "2", "b", "none", "b"]),
    ("f() { run \"${@:2:1}\"; }\nf a 'b c' d", ["run", "b c"]),
    ("f() {\n  local n=$1; shift\n  run n=$n \"$@\"\n}\nf 6 a=1", ["run", "n=6", "a=1"]),
    ("f() { shift 2; run $*; }\nf a b c d", ["run", "c", "d"]),
    ("function f {\n  run $1\n}\nf a", ["run", "a"]), ("function f() {\n  run $1\n}\nf a", ["run", "a"]),
    ("f()\n{\n  run $1\n}\nf a > log 2>&1", ["run", "a"]),
    ("f() { if test x; then run $1; fi; }\nf a", ["run", "a"]),
    ("g() { run $1; }\nf() { g $2; }\nf a b", ["run", "b"]),
    ("f() { run \"$@\" end; }\nA=(a 'b c')\nf \"${A[@]}\"", ["run", "a", "b c", "end"]),
    ("f() { run \"$@\"; }\nf \"$@\"", ["run"]),
    ("f() { run $1 $@; }\nf a $@", ["run", "a", "a"]),  # the script's own: none
    ("f() { X=4; }\nX=1\nf\nrun $X", ["run", "4"]), ("f() { local X=4; }\nX=1\nf\nrun $X", ["run", "1"]),
    ("f() { X=2; local X=4; }\nX=1\nf\nrun $X", ["run", "2"]),
    ("set -- a 'b c'\nrun \"$@\" $1", ["run", "a", "b c", "a"]), ("set -- a b\nshift\nrun $@", ["run", "b"])])
def test_a_call_is_followed_with_its_arguments(script, arguments):
    assert last(script) == arguments
    assert not any(construct.word == "function" for construct in read_script(script).commands[-1].inside)


@pytest.mark.parametrize("script", [
    "f() { run $1; }\nf a\nf b", "f() { run $1; }", "f() { f $1; run $1; }\nf a",
    "f() { g $1; }\ng() { f $1; run $1; }",
    "f() { run $1; }\nf \"$@\"", "f() { run $2; }\nf a $@", "f() { run $#; }\nf $@", "set -- a \"$@\"\nrun $2",
    "if x; then set -- a; fi\nrun $1", "f() { run $1; }\nf $(date)"])
def test_arguments_of_several_calls_or_of_none_are_not_known(script):
    run = next(c for c in read_script(script).commands if c.arguments[0].text == "run")
    assert run.arguments[-1].problem


@pytest.mark.parametrize(("before", "words", "unknown"), [
    ('C="a=1 b=$(date)"\nC+=" c=2"', ["a=1", "b=$(date)", "c=2"], ["b=$(date)"]),
    ('C="a=1"\nC="$C b=${0##*/} c=2"', ["a=1", "b=${0##*/}", "c=2"], ["b=${0##*/}"]),
    ('C="a=1 $(cat x)"', ["a=1", "$(cat ...)"], ["$(cat ...)"]),
    ('C=$(cat x)\nC+=" a=1"', ["$(cat ...)", "a=1"], ["$(cat ...)"]),
    ('C="a=1"\nif x; then C="$C b=2"; else C="$C c=3"; fi', ["a=1", "b=2", "c=3"], ["b=2", "c=3"]),
    ('C="a=1"\ncase $X in\n 1) C+=" b=2" ;;\n 2) C+=" c=3" ;;\nesac\nC+=" d=4"', ["a=1", "b=2", "c=3", "d=4"],
     ["b=2", "c=3"])])
def test_of_a_text_only_the_word_that_is_not_known_is_lost(before, words, unknown):
    found = read_script(f"{before}\nrun $C").commands[-1].arguments[1:]
    assert [a.text for a in found] == words
    assert [a.text for a in found if a.problem] == unknown


def test_what_every_branch_adds_to_an_array_is_kept_as_unknown():
    found = read_script("A=(a=1)\nif x; then A+=(b=2); else A+=(c=3); fi\nrun ${A[@]}").commands[-1].arguments[1:]
    assert [(a.text, bool(a.problem)) for a in found] == [("a=1", False), ("b=2", True), ("c=3", True)]


def test_a_text_with_an_unknown_part_is_read_as_a_script_too():
    for script in ('eval "run a=1 b=$(date)"', 'bash -c "run a=1 b=$(date)"', 'C="run a=1 b=$(date)"\neval $C'):
        found = read_script(script).commands[-1].arguments
        assert [(a.text, bool(a.problem)) for a in found] == [("run", False), ("a=1", False), ("b=$(date)", True)]


# ----------------------------------------------------------------------------------------------------------- launches


def test_the_keys_of_a_call_are_those_of_the_launch_with_the_lines_of_the_call():
    made = from_verl(f'main() {{\n  {START} actor_rollout_ref.rollout.n=$1 "${{@:2}}"\n}}\n'
                     "main 6 trainer.total_epochs=3 actor_rollout_ref.actor.optim.lr=9e-6\n")
    found = written(made)
    assert [found[key] for key in ("algorithm.repeat_times", "buffer.total_epochs", "algorithm.optimizer.lr")] == [
        6, 3, 9e-6]
    assert {given.key: given.line for given, _ in made.renamed}["trainer.total_epochs"] == 4
    assert (made.skipped, made.assumed, made.unknown, made.unread) == ([], [], [], [])


def test_several_calls_are_listed_and_defaults_are_marked():
    made = from_verl(f'go() {{ {START} "$@"; }}\ngo trainer.total_epochs=3\ngo trainer.total_epochs=4\n')
    assert [line for line, what in made.skipped if "a call of the function go" in what] == [2, 3]
    assert made.unread == [1]
    assert "buffer.total_epochs" in written(made)
    comment = made.entries["buffer", "total_epochs"].comment
    assert comment == "veRL's default of trainer.total_epochs" + DOUBT.format(1)
    assert made.entries["buffer", "batch_size"].comment == "actor_rollout_ref.actor.ppo_mini_batch_size"  # is said


@pytest.mark.parametrize("word", ["$(cat x)", "$EXTRA", "$1"])
def test_a_word_that_may_set_any_key_is_told_and_every_default_says_so(word):
    made = from_verl(f"{START} \\\n  {word} \\\n  actor_rollout_ref.rollout.n=4")
    assert made.unread == [2]
    assert "it may set any key" in made.skipped[0][1]
    doubted = {".".join(path) for path, entry in made.entries.items() if entry.comment.endswith(DOUBT.format(2))}
    assert {"buffer.total_epochs", "trainer.ranks", "explorer.rollout_model.engine_num"} <= doubted
    assert not {"algorithm.repeat_times", "buffer.batch_size", "buffer.train_batch_size", "mode"} & doubted


@pytest.mark.parametrize("word", ["$@", '"$@"', "${EXTRA:-}", "trainer.total_epochs=$(x)"])
def test_a_word_of_one_key_or_of_none_leaves_defaults_alone(word):
    made = from_verl(f"{START} {word}")
    assert made.unread == []
    assert not any("could not be read" in entry.comment for entry in made.entries.values())


def test_overrides_of_another_command_are_told():
    made = from_verl(f"{START}\npython3 other.py data.max_prompt_length=5")
    assert made.skipped == [(2, "python3: is not the command that starts veRL; its overrides are not read")]
