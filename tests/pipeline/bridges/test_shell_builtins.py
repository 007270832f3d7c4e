"""What bash calculates and cuts without running anything, and what commands other than `name=value` set.

Expected values are what bash 5 prints for the same lines.
"""

import pytest

from pipeline.bridges.shell import read_script
from tests.bridges import from_verl, launch


def last(script: str) -> list[str]:
    """The arguments of the last command."""
    return [a.text for a in read_script(script).commands[-1].arguments]


def problem(script: str) -> str | None:
    """Why the last argument of the last command is not known."""
    return read_script(script).commands[-1].arguments[-1].problem


@pytest.mark.parametrize(("script", "value"), [
    ("let X=64", "64"), ("let 'X = 3' Y=X+1 X=Y*2", "8"), ("X=2; let X+=3", "5"), ("(( X = 32 ))", "32"),
    ("X=4; ((X++))", "5"), ("X=4\n((X -= 1, X *= 2))", "6"), ("N=3\n(( X = N > 2 ? 7 : 8 ))", "7"),
    ("X=6; (( X == 5 ))", "6"), ("X=6; (( 0 ? X = 5 : 1 ))", "6"), ("declare -i X=2*4", "8"),
    ("declare -i X=4\nX+=1", "5"), ("X=1; for ((i = 0; i < 3; i++)); do echo; done", "1"), ("X=5; unset X", "")])
def test_arithmetic_that_sets_variables_is_calculated(script, value):
    assert last(f"{script}\nrun k=$X") == ["run", f"k={value}"]


def test_parentheses_that_hold_commands_are_no_arithmetic():
    assert [[a.text for a in c.arguments] for c in read_script("((run a); run b)\n( (run c) )").commands] == [
        ["run", "a"], ["run", "b"], ["run", "c"]]


@pytest.mark.parametrize(("script", "why"), [
    ("read -r X <<< 8", "X, which `read` of line 1 sets"),
    ("IFS=, read A X <<< '3,4'", "X, which `read` of line 1 sets"),
    ("read -p 'how many ' -n 1 X", "X, which `read`"), ("mapfile -t X < list.txt", "X, which `mapfile` of line 1 sets"),
    ("readarray X", "X, which `readarray`"), ("printf -v X '%d' 64", "X, which `printf` of line 1 sets"),
    ("while getopts n: X; do echo; done", "X, which the `while` of line 1 sets"),
    ("let X=$(nproc)", "with the output of a command"), ("(( X = Y * 2 ))", "Y, which is no whole number here"),
    ("X=1\n[ -z \"$Y\" ] && (( X = 2 ))", "X, which line 2 sets on a condition"),
    ("X=1\n(( Y > 2 )) && X=2", "X, which line 2 sets on a condition"),
    ("X=1\n[ -z \"$Y\" ] && unset X", "X, which line 2 unsets on a condition"),
    ("for ((X = 0; X < 3; X++)); do echo; done", "X, which the `for` of line 1 sets")])
def test_what_is_set_by_running_is_unknown_and_never_of_the_environment(script, why):
    assert why in problem(f"{script}\nrun k=$X")


def test_a_variable_that_is_read_is_listed_as_unknown_with_the_line_that_sets_it():
    made = from_verl("read -r B <<< 8\n" + launch("data.train_batch_size=$B", "actor_rollout_ref.rollout.n=4"))
    assert [(u.given.key, u.why, u.to) for u in made.unknown] == [
        ("data.train_batch_size", "B, which `read` of line 1 sets", ["synchronizer.sync_interval"])]
    assert (1, "`read`: sets B, not known") in made.skipped
    assert "oc.env" not in str(made.entries)


@pytest.mark.parametrize(("expansion", "value"), [
    ("${#X}", "5"), ("${X,,}", "hello"), ("${X^^}", "HELLO"), ("${X,}", "hello"), ("${X/l/L}", "HeLlo"),
    ("${X//l/L}", "HeLLo"), ("${X//l}", "Heo"), ("${X/#H/J}", "Jello"), ("${X/%o/y}", "Helly"),
    ("${X/[el]*l/_}", "H_o"),
    ("${X:1}", "ello"), ("${X:0:2}", "He"), ("${X: -3}", "llo"), ("${X:1:-1}", "ell"), ("${X:9}", ""),
    ("${#A[@]}", "3")])
def test_a_known_text_is_cut_and_changed(expansion, value):
    assert last(f"X=Hello; A=(1 2 3)\nrun k={expansion}") == ["run", f"k={value}"]


def test_a_text_of_the_environment_is_not_cut():
    assert problem("run k=${X:0:2}") == "a part of ${oc.env:X}"


def test_an_argument_of_a_call_is_no_number_of_its_own():
    """`$1` in arithmetic is what the call hands over, 5, not the number 1."""
    assert last("f() { run k=$(( $1 * ${1} + $# )); }\nf 5") == ["run", "k=26"]
