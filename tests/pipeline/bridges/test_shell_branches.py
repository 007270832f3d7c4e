"""Tests of a shell script whose values are known decide which branch is read; expected is what bash 5 runs."""

import pytest

from pipeline.bridges.shell import read_script


def last(script: str) -> list[str]:
    return [a.text for a in read_script(script).commands[-1].arguments]


def ran(test: str) -> str:
    """What the branch of a test leaves in a variable behind it: yes, no, or nothing that is known."""
    argument = read_script(f"E=\nN=8\nT=true\nB=fsdp2\nif {test}; then\n  X=yes\nelse\n  X=no\nfi\nrun $X"
                           ).commands[-1].arguments[-1]
    return "unknown" if argument.problem else argument.text


@pytest.mark.parametrize(("test", "branch"), [
    ('[ "$B" = "fsdp2" ]', "yes"), ('[ "$B" == fsdp ]', "no"), ('[ "$B" != fsdp ]', "yes"), ("test $B = fsdp2", "yes"),
    ('[[ $B == fsdp* ]]', "yes"), ('[[ $B == "fsdp*" ]]', "no"), ('[ "$B" = fsdp* ]', "no"),  # a pattern in [[ ]] alone
    ('[ -z "$E" ]', "yes"), ('[ -n "$E" ]', "no"), ('[ "$B" ]', "yes"), ('[[ $E ]]', "no"),
    ("[ $N -eq 8 ]", "yes"), ("[ $N -gt 8 ]", "no"), ("[[ $N -le 7 ]]", "no"), ('[ "$N" -ne 7 ]', "yes"),
    ("! [ $N -eq 8 ]", "no"), ("[ ! $N -eq 8 ]", "no"), ("$T", "yes"), ("false", "no"), ("((N > 7))", "yes"),
    ('[ "$B" = fsdp ] || [ $N -eq 8 ]', "yes"), ('[ "$B" = fsdp ] && [ $N -eq 8 ]', "no"),
    ('[[ $B == "fsdp2" && $N -eq 8 ]]', "yes"), ("[[ $B == a || $N == b ]]", "no"),
    # what nobody knows before the script runs, and what is not understood
    ('[ "$OUTSIDE" = a ]', "unknown"), ("[ -f $B ]", "unknown"), ("run", "unknown"), ('[ "$#" -lt 2 ]', "unknown"),
    ("[[ $B =~ f.* ]]", "unknown"), ("[ $B -eq 8 ]", "unknown"), ("((N++))", "unknown"),
    ("[ $N -eq 8 ] | run", "unknown"), ("[ $B = a -o $N = 8 ]", "unknown"), ("[ -f $B ] || [ $N -eq 9 ]", "unknown"),
    ("[ -f $B ] || [ $N -eq 8 ]", "yes"), ("[ -f $B ] && [ $N -eq 9 ]", "no"),  # one test decides for both
    ("[[ $N == 9 || $N == 8 && $B == a ]]", "unknown")])  # the order of mixed joints is not followed
def test_a_test_of_known_values_decides(test, branch):
    assert ran(test) == branch


@pytest.mark.parametrize(("script", "arguments"), [
    # the first branch whose test holds, and what it adds to a text that stands before it
    ("B=b\nO='k=1'\nif [ $B = a ]; then\n O=\"$O a=1\"\nelif [ $B = b ]; then\n O=\"$O b=1\"\nelse\n O=\nfi\nrun $O",
     ["run", "k=1", "b=1"]),
    # a branch within a branch
    ("B=a\nif [ $B = a ]; then\n if [ $B = b ]; then X=1; else X=2; fi\nelse\n X=3\nfi\nrun $X", ["run", "2"]),
    # neither branch
    ("X=1\nif [ $X = 2 ]; then\n X=3\nfi\nrun $X", ["run", "1"]),
    # the words if and fi are no keywords where a command does not begin
    ("X=1\nif [ $X = 2 ]; then\n echo if fi\n X=3\nfi\nrun $X", ["run", "1"]),
    ("case b in\n a) X=1 ;;\n b|c) X=2 ;;\n *) X=3 ;;\nesac\nrun $X", ["run", "2"]),
    ("S=${S:-7b}\ncase \"$S\" in 7*) X=1;; *) X=2;; esac\nrun $X", ["run", "1"]),
    ("X=0\ncase z in a) X=1;; esac\nrun $X", ["run", "0"]),
    ("X=1\n[ $X = 1 ] && Y=2\nrun $Y", ["run", "2"]),
    ("Y=1\n[ $Y = 2 ] && Y=3\nrun $Y", ["run", "1"]),
    ("Y=1\n[[ $Y == 2 ]] || Y=3\nrun $Y", ["run", "3"]),
    ("Y=1\n[ $Y = 2 ] && Y=3 || Y=4\nrun $Y", ["run", "4"])])
def test_what_runs_is_read(script, arguments):
    assert last(script) == arguments
    assert read_script(script).constructs == []


def test_the_command_of_a_branch_that_does_not_run_is_no_command_of_the_script():
    script = read_script("B=a\nif [ $B = a ]; then\n  one\nelse\n  two\nfi\n[ $B = b ] && three\n")
    assert [c.arguments[0].text for c in script.commands if c.arguments[0].text != "["] == ["one"]
    assert script.assumed == [(2, "the `if`: the branch of line 2 runs, and was read alone")]


def test_of_an_unknown_test_only_the_branches_that_cannot_run_are_left_out():
    script = read_script("B=a\nif run; then\n  X=1\nelif [ $B = b ]; then\n  two\nelif [ $B = a ]; then\n  X=3\n"
                         "else\n  four\nfi\nrun $X")
    assert [c.arguments[0].text for c in script.commands] == ["run", "run"]
    assert script.commands[-1].arguments[-1].problem == "X, which the `if` of line 2 sets"


@pytest.mark.parametrize("loop", ["for i in 1 2; do\n{}\ndone", "while run; do\n{}\ndone",
                                  "go() {{\n{}\n}}\ngo\ngo"])
def test_within_what_runs_more_than_once_a_test_decides_nothing(loop):
    script = "N=0\n" + loop.format("if [ $N -eq 0 ]; then one; else two; fi\nN=1")
    assert {"one", "two"} <= {c.arguments[0].text for c in read_script(script).commands}


@pytest.mark.parametrize("script", ["if [ a = b ]; then\nrun a", "case a in\nrun a", "if", "case a in x) y",
                                    "case $Y in a) run;; esac", "case a in a) X=1;& b) X=2;; esac"])
def test_what_is_not_closed_or_not_known_is_read_as_before(script):
    assert read_script(script).constructs


def left(script: str) -> str:
    """What a script leaves in X, which holds 0 before it: "unknown" where that depends on what nobody knows."""
    argument = read_script(f"X=0\n{script}\nrun $X").commands[-1].arguments[-1]
    return "unknown" if argument.problem else argument.text


@pytest.mark.parametrize(("script", "value"), [
    # what is not known stays so behind a test that is, unless that one decides
    ("[ -f a ] && [ 1 = 1 ] && X=9", "unknown"), ("[ -f a ] && [ 1 = 2 ] && X=9", "0"),
    ("[ -f a ] || [ 1 = 1 ] && X=9", "9"), ("[ -f a ] || [ 1 = 2 ] || X=9", "unknown"),
    ("pip list | grep -q flash && [ 1 = 1 ] && X=9", "unknown"), ("grep -q flash a && X=9", "unknown"),
    ("Y=$(grep flash a) && X=9", "unknown"), ("[ -f a ] &&\n X=9", "unknown"),
    # whichever form the test has, and whatever stands before it
    ("[[ 1 == 2 ]] && [[ 1 == 1 ]] && X=9", "0"), ("[ 1 = 2 ] && [[ 1 == 1 ]] || X=9", "9"),
    ("! [ 1 = 1 ] && X=9", "0"), ("! [[ 1 == 2 ]] && X=9", "9"), ("false || ! true || X=9", "9"),
    ("echo !\n[ 1 = 1 ] && X=9", "9"),  # no negation: an argument of the line before
    ("[ 1 = 2 ] && echo | cat && X=9", "0"),  # the whole pipeline does not run
    # groups, constructs, calls and eval behind a joint
    ("[ 1 = 2 ] && { X=1; }", "0"), ("[ 1 = 1 ] && { X=1; }", "1"), ("[ -f a ] && { X=1; }", "unknown"),
    ("[ 1 = 1 ] && { X=1; } || X=2", "1"), ("{ [ 1 = 2 ]; } && X=9", "0"), ("[ 1 = 2 ] && (one) || X=9", "9"),
    ("! { one; } && X=9", "unknown"), ("[ -f a ] && if [ 1 = 1 ]; then X=1; fi", "unknown"),
    ("f() { X=1; }\n[ -f a ] && f", "unknown"), ("[ -f a ] && eval 'X=1'", "unknown"),
    ("set -- 1 2\n[ -f a ] && shift\nX=$1", "unknown"), ("[ 1 = 2 ]; if false; then a; fi && X=9", "9"),
    ("cd . && X=9", "9"), ("mkdir b || exit 1\nX=9", "9")])
def test_a_list_decides_by_all_that_stands_before(script, value):
    assert left(script) == value


def test_the_commands_of_a_group_that_does_not_run_are_passed_over():
    script = read_script("[ 1 = 2 ] && { one; two; }\nthree")
    assert [c.arguments[0].text for c in script.commands] == ["[", "three"]


@pytest.mark.parametrize(("script", "value"), [
    # without quotes nothing is no word, so that `-n` is a text of its own; with them, and in [[ ]], it is one
    ('E=; if [ -n $E ]; then X=9; fi', "unknown"), ('E=; if [ -n "$E" ]; then X=9; fi', "0"),
    ("E=; if [[ -n $E ]]; then X=9; fi", "0"), ("E='a b'; if [ $E = a ]; then X=9; fi", "unknown"),
    ("E=; if [ x$E = x ]; then X=9; fi", "9"),
    # the quoted parts of a pattern stand for themselves
    ('case b in "*") X=1;; *) X=2;; esac', "2"), ("case b in \\*) X=1;; b) X=2;; esac", "2"),
    ("P='*'; case b in \"$P\") X=1;; $P) X=2;; esac", "2"), ('case "a*" in a"*") X=1;; *) X=2;; esac', "1"),
    ('if [[ ab == a"*" ]]; then X=9; fi', "0"), ("case b in [^a]) X=1;; *) X=2;; esac", "unknown")])
def test_quotes_decide_what_a_word_of_a_test_is(script, value):
    assert left(script) == value
