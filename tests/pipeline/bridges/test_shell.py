"""Shell scripts are read, never run: what bash would make of them, and what is named instead of guessed.

Expected values are what bash 5 prints for the same lines, unless a test says that we depart from it.
"""

import pytest

from pipeline.bridges.arithmetic import NotArithmetic, evaluate
from pipeline.bridges.shell import read_script


def last(script: str) -> list[str]:
    """The arguments of the last command."""
    return [a.text for a in read_script(script).commands[-1].arguments]


def remarks(script: str) -> list[str]:
    return [f"{line}: {text}" for line, text in read_script(script).assumed]


def problem(script: str) -> str | None:
    """Why the last argument of the last command is not known."""
    return read_script(script).commands[-1].arguments[-1].problem


@pytest.mark.parametrize(("script", "arguments"), [
    ("run a b", ["run", "a", "b"]),
    ("run a\\\n  b \\\n c", ["run", "a", "b", "c"]),  # a continued line joins without a blank
    ("run a\\\nb", ["run", "ab"]),
    ("run 'a b' \"c d\" e\\ f", ["run", "a b", "c d", "e f"]),
    ("run 'a'\"b\"c", ["run", "abc"]),
    ("run '' \"\"", ["run", "", ""]),
    ("run a#b # c d", ["run", "a#b"]),
    ("X=1; run $X ${X} \"$X\" '$X'", ["run", "1", "1", "1", "$X"]),
    ("X=1\nY=a$X\nrun b${Y}c", ["run", "ba1c"]),
    ("X='a b'\nrun $X \"$X\"", ["run", "a", "b", "a b"]),  # unquoted: split
    ("X='a b'\nrun k=$X", ["run", "k=a", "b"]),
    ("X=' a '\nrun x$X", ["run", "x", "a"]),
    ("export X=1 Y=2\nrun $X$Y", ["run", "12"]),
    ("X=1\nX+=2\nrun $X", ["run", "12"]),
    ("X=\nrun ${X:-d} ${X-e}", ["run", "d"]),  # X is set and empty: `-` keeps it, and an empty word vanishes
    ("run ${X:-d}", ["run", "d"]),
    ("Y=q\nrun ${X:-\"$Y z\"} ${X:-$Y z}", ["run", "q z", "q", "z"]),
    ("run \"${X:-a}${Z:-${W:-b}}\"", ["run", "ab"]),
    (": \"${X:=5}\"\nrun $X", ["run", "5"]),
    ("X=1\nrun ${X:+yes} ${Z:+no}", ["run", "yes"]),
    ("X=dir/file.tar.gz\nrun ${X##*/} ${X#*/} ${X%.*} ${X%%.*}",
     ["run", "file.tar.gz", "file.tar.gz", "dir/file.tar", "dir/file"]),
    ("A=(a 'b c' # comment\n d=1)\nrun \"${A[@]}\" ${A[1]} $A", ["run", "a", "b c", "d=1", "b", "c", "a"]),
    ("A=(a)\nA+=(b)\nrun ${A[@]}", ["run", "a", "b"]),
    ("run $((1 + 2 * 3)) $(( (1024 + 512) * 2 ))", ["run", "7", "3072"]),
    ("N=8\nM=$((N / 3))\nrun $M $((M * N)) $((-7 / 2)) $((-7 % 2))", ["run", "2", "16", "-3", "-1"]),
    ("run $((${X:-4} * 2))", ["run", "8"]),
    ("run a > out.txt 2>&1 b < in", ["run", "a", "b"]),
    ("run a 2>&1 | tee log", ["tee", "log"]),
    ("run $@ \"$@\" $* a", ["run", "a"]),
    ("run a\r\n", ["run", "a"]),
    ("{ X=1; run $X; }", ["run", "1"]),
    ("(run a)", ["run", "a"]),
    ("run \"a\\\"b\" 'c\\d' \"e\\$f\"", ["run", "a\"b", "c\\d", "e$f"])])
def test_words_are_what_bash_makes_of_them(script, arguments):
    assert last(script) == arguments


def test_a_variable_that_the_script_does_not_assign_is_left_to_the_environment():
    assert last("run $HOME/x \"${DATA}\"") == ["run", "${oc.env:HOME}/x", "${oc.env:DATA}"]


def test_a_default_is_taken_and_said():
    assert remarks("run a\nrun ${GPUS:-8}") == ["2: GPUS is not assigned in the script; its default was taken: 8"]


def test_a_default_that_is_a_secret_is_not_shown():
    assert remarks("run ${WANDB_API_KEY:-abc}") == [
        "1: WANDB_API_KEY is a secret by its name: set it where the run starts, too"]


@pytest.mark.parametrize("script", [
    "run a=1 \\\n  # b=2 \\\n  c.d=3", "run a=1 \\\n  # b=2\n  c.d=3", "run a=1 \\\n  # x\n  # y \\\n  \"$@\" c.d=3",
    "run a=1 \\   \n c.d=3", "run a=1 \\  # why\n c.d=3"])
def test_a_comment_or_blanks_within_a_continued_command_do_not_end_it(script):
    """Bash would end the command there, which nobody means: it is said."""
    assert last(script) == ["run", "a=1", "c.d=3"]
    assert remarks(script)


def test_a_comment_behind_the_last_line_ends_the_command():
    script = read_script("run a=1 \\\n  # the end\nwait\n")
    assert [[a.text for a in c.arguments] for c in script.commands] == [["run", "a=1"], ["wait"]]


def test_an_argument_knows_its_line():
    script = read_script("A=(\n  x=1\n)\nrun a=1 \\\n  b=2 \\\n  \"${A[@]}\"")
    found = [(a.text, a.line) for a in script.commands[0].arguments]
    assert found == [("run", 4), ("a=1", 4), ("b=2", 5), ("x=1", 2)]


@pytest.mark.parametrize(("value", "why"), [
    ("$(date)", "the output of a command, $(date)"), ("`date`", "the output of a command"),
    ("$1", "$1, which only a call"),
    ("${X/a/b}", "a part of ${oc.env:X}"),
    ("${X@Q}", "the expansion ${X@Q}"), ("${A[7]}", "A[7], which the script does not assign"),
    ("$((x y))", "the arithmetic"), ("$((HOME * 2))", "HOME, which is no whole number"), ("$RANDOM$(id)", "$(id)"),
    ("$((8 * $(nproc)))", "with the output of a command"), ("$((8 * D))", "$(date)"),
    ("$((10 ** 100))", "an exponent outside"), ("$((1 / 0))", "the arithmetic"),
    ("<(cat x)", "the output of a command")])
def test_what_only_running_would_tell_is_named(value, why):
    argument = read_script(f"A=(a)\nD=$(date)\nrun k={value}").commands[-1].arguments[-1]
    assert why in argument.problem


def test_what_is_made_of_an_unknown_value_is_unknown():
    argument = read_script("X=$(date)\nY=run_$X\nZ=(\"$Y\")\nrun ${Z[@]}").commands[-1].arguments[-1]
    assert "$(date)" in argument.problem


@pytest.mark.parametrize(("script", "line", "word"), [
    ("X=1\nif [ -z \"$Y\" ]; then\n  X=2\nfi\nrun $X", 2, "if"),
    ("X=1\nfor X in 1 2; do\n  echo $X\ndone\nrun $X", 2, "for"),
    ("X=1\nwhile true; do X=3; done\nrun $X", 2, "while"),
    ("X=1\nf() {\n  X=4\n}\nrun $X", 2, "function"),
    ("X=1\nfunction f {\n X=4\n}\nrun $X", 2, "function"),
    ("X=1\ncase $Y in\n a) X=5 ;;\n *) X=6 ;;\nesac\nrun $X", 2, "case")])
def test_a_construct_is_named_and_what_it_assigns_is_unknown(script, line, word):
    read = read_script(script)
    assert [(c.word, c.line, c.sets) for c in read.constructs] == [(word, line, ["X"])]
    assert read.commands[-1].inside == ()
    assert read.commands[-1].arguments[-1].problem.startswith("X, ")
    assert f"of line {line}" in read.commands[-1].arguments[-1].problem


@pytest.mark.parametrize(("script", "arguments"), [
    ("if a; then X=2; run $X; fi", ["2"]), ("X=1\nif a; then X=2; else run $X; fi", ["1"]),
    ("X=1\ncase $Y in\n a) X=5 ;;\n b|c) run $X ;;\nesac", ["1"]),
    ("f() {\n  local X=4\n  Z=$((X * 2))\n  run $X $Z\n}", ["4", "8"]),
    ("for X in 3; do run $X; done", ["3"])])
def test_within_a_part_of_a_construct_what_it_assigns_itself_is_known(script, arguments):
    """Of a branch, a body or a round that runs, bash prints the same."""
    run = next(c for c in read_script(script).commands if c.arguments[0].text == "run")
    assert [a.text for a in run.arguments[1:]] == arguments


def test_a_local_variable_ends_with_its_function():
    assert last("X=1\nf() { local X=4; }\nrun $X") == ["run", "1"]
    assert "the function f of line 2" in problem("X=1\nf() { X=4; }\nrun $X")


def test_a_default_that_a_construct_sets_is_unknown_behind_it():
    assert problem("if a; then : ${X:=4}; fi\nrun $X") == "X, which the `if` of line 1 sets"


def test_the_values_of_a_loop_variable_are_named():
    assert problem("for lr in 1e-6 2e-6; do run $lr; done").endswith("one value after another (1e-6, 2e-6)")


def test_the_patterns_of_case_are_no_commands():
    script = read_script("case $X in\n 7b) run a ;;\n (*) run b;;\nesac\nrun c")
    assert [[a.text for a in c.arguments] for c in script.commands] == [["run", "a"], ["run", "b"], ["run", "c"]]


@pytest.mark.parametrize(("script", "arguments"), [
    ("CMD='run a=1'\neval $CMD b=2", ["run", "a=1", "b=2"]), ("X=1\neval \"run $X \\$X\"", ["run", "1", "1"]),
    ("eval 'X=3'\nrun $X", ["run", "3"]), ("eval run $HOME/x", ["run", "${oc.env:HOME}/x"])])
def test_the_text_of_eval_is_read_as_a_script(script, arguments):
    assert last(script) == arguments
    assert read_script(script).skipped == []


def test_eval_of_a_text_that_is_not_known_is_named():
    read = read_script("run a\neval $(date)")
    assert len(read.commands) == 1
    assert read.skipped == [(2, "`eval` was not read: its text holds the output of a command, $(date), which is not "
                                "run")]


@pytest.mark.parametrize("script", ["[ -z $Y ] && X=1\nrun $X", "run a || X=1\nrun $X", "[[ $Y && b ]] && X=1\nrun $X"])
def test_an_assignment_on_a_condition_is_unknown(script):
    assert "on a condition" in read_script(script).commands[-1].arguments[-1].problem


def test_assignments_in_a_row_are_taken():
    assert last("export A=1 && B=2 && set -x && C=3\nrun $A$B$C") == ["run", "123"]


def test_commands_within_a_construct_are_marked():
    script = read_script("for i in 1 2; do\n  run $i\ndone\nrun b")
    assert [[str(c) for c in command.inside] for command in script.commands] == [["the `for` of line 1"], []]
    assert (script.constructs[0].line, script.constructs[0].last) == (1, 3)


def test_a_script_within_bash_c_is_read():
    script = read_script("X=1\nsrun --nodes 2 bash -c \"run a=$X \\\n b=2\"")
    assert [a.text for a in script.commands[-1].arguments] == ["run", "a=1", "b=2"]


def test_a_heredoc_is_no_command():
    script = "cat > x.yaml <<EOF\nrun a\nfor x\nEOF\nrun b"
    assert last(script) == ["run", "b"]
    assert [c.arguments[0].text for c in read_script(script).commands] == ["cat", "run"]
    assert read_script(script).heredocs == [(2, "run a\nfor x\nEOF\n")]


@pytest.mark.parametrize("script", [
    "run 'a", "run \"a", "run $(a", "run ${a", "A=(1 2", "run `a", "if", "done", ")", "((", "$((", "a && ", "|", "<<",
    "<<EOF", "\\", "${", "$", "'", "\"$((\"", "a=(", "}{", "case", "for", "function", "[[", "x() {", "${X:-",
    "${X:-${X:-${X:-}}", "$'", ";;", "& &"])
def test_a_broken_script_is_read_as_far_as_it_goes(script):
    read_script(script)
    assert read_script(f"run a\n{script}").commands[0].arguments[0].text == "run"


def test_variables_that_double_one_another_end():
    script = "\n".join(["A=aaaaaaaaaa", *(f"A=$A$A # {i}" for i in range(40)), "run $A"])
    assert "more than" in read_script(script).commands[-1].arguments[-1].problem


def test_deep_nesting_ends():
    assert read_script("run " + "${X:-" * 3000 + "}" * 3000).commands[-1].arguments[-1].problem


@pytest.mark.parametrize(("expression", "value"), [
    ("2 ** 10", 1024), ("-(3 - 5)", 2), ("7 % 4", 3), ("+1", 1), ("N * 2", 10),
    ("-2 ** 2", 4), ("2 ** 3 ** 2", 512), ("10 - 3 - 2", 5), ("7 / -2", -3), ("N > 4 ? 8 : 1 / 0", 8),
    ("0 && 1 / 0", 0), ("1 << 4 | 3 & 2 ^ 1", 19), ("!0 + ~5", -5), ("0x1F + 010", 39),
    ("1 <= 2 || 1 / 0", 1), ("1, 2", 2)])
def test_arithmetic(expression, value):
    assert evaluate(expression, {"N": 5}.__getitem__) == value


@pytest.mark.parametrize("expression", ["a.b + 1", "1.5", "f(1)", "08", "1 ? 2", "N = 3", "N++", "",
                                        "(" * 200, "9 ** 64 * 9", "x" * 500])
def test_what_is_no_arithmetic(expression):
    with pytest.raises(NotArithmetic):
        evaluate(expression, lambda name: 1)
