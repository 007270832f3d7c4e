"""Shell scripts are read, never run: the words of their commands are those that bash makes, or unknown."""

import json
import subprocess
from pathlib import Path

import pytest

from pipeline.bridges.shell import read_script
from pipeline.bridges.shell_state import job_variables
from pipeline.bridges.shell_syntax import Argument
from pipeline.store.errors import ConfigError
from tests.bridges import from_verl, launch, written
from tests.golden.messages import refuses, wording

TABLE = json.loads((Path(__file__).parent / "shell_words.json").read_text())  # script -> words of its last `run`
RUN = 'run() { printf "%s\\0" RUN "$@" >> "$WORDS"; }\n'


def runs(script: str) -> list[list[Argument]]:
    """The words of every `run` of a script."""
    return [list(c.arguments[1:]) for c in read_script(script).commands if c.arguments[0].text == "run"]


def last(script: str) -> Argument:
    return runs(script)[-1][-1]


@pytest.mark.parametrize(("script", "words"), TABLE)
def test_words_are_those_of_bash(script, words, tmp_path):
    """`${oc.env:NAME}` stands for the variable of the environment, which bash has here: HOME, and no other."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/home/x", "WORDS": str(tmp_path / "words")}
    (tmp_path / "run.sh").write_text(RUN + script.replace("\r\n", "\n"))
    subprocess.run(["bash", "run.sh"], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True)
    assert (tmp_path / "words").read_text().split("RUN\0")[-1].split("\0")[:-1] == words
    found = runs(script)[-1]
    assert [argument.problem for argument in found if argument.problem] == []
    texts = [a.text.replace("${oc.env:HOME}", "/home/x").replace("${oc.env:EMPTY}", "") for a in found]
    assert texts == words


@pytest.mark.parametrize(("script", "why"), [
    ("run k=$(date)", "the output of a command, $(date)"), ("run k=`date`", "the output of a command"),
    ("run k=$1", "$1, which only a call"), ("run k=$RANDOM", "$RANDOM"), ("run <(cat x)", "the output of a command"),
    ("run k=${X/a/b}", "a part of ${oc.env:X}"), ("X=1; run k=${X@Q}", "the expansion ${X@Q}"),
    ("run k=${A[7]}", "A[7]"), ("run k=$((HOME * 2))", "${oc.env:HOME}"), ("run k=$((8 * $(nproc)))", "$(nproc)"),
    ("D=$(date); run k=$((8 * D))", "$(date)"), ("run $((10 ** 100))", "the arithmetic"),
    ("run $((1 / 0))", "the arithmetic"), ("run $((08 + 1))", "arithmetic with 08"),
    ("X=$(date); Y=run_$X; Z=(\"$Y\"); run ${Z[@]}", "$(date)"), ("run *.json", "the names of files"),
    ("run {a,b}", "the braces of"), ("run x{1..3}", "the braces of"), ("IFS=,; X=a,b; run $X", "another IFS"),
    ("cd /x; run $PWD", "behind a change of the directory"), ("cd /x; run $(pwd)", "behind a change of the directory"),
    ("X=1; eval 'X=3'; run $X", "X, which the `eval` of line 1 may set"), ("run $(basename -a x y)", "not run"),
    ("run $(echo x | tr a b)", "not run"), ("read -r X <<< 8; run $X", "X, which `read` of line 1 sets"),
    ("IFS=, read A X <<< 3,4; run $X", "X, which `read`"), ("read -p 'n ' -n 1 X; run $X", "X, which `read`"),
    ("mapfile -t X < f; run $X", "X, which `mapfile`"), ("printf -v X 3; run $X", "X, which `printf`"),
    ("while read X; do :; done < f; run $X", "X, which the `while` of line 1 sets"),
    ("declare -i X=2*4; run $X", "declared with an option"), ("declare -A X=([a]=1); run ${X[a]}", ""),
    ("declare -i X; X=2*4; run $X", "declared with"), ("declare -u X; X=a; run $X", "declared with an option"),
    ("let X=64; run $X", "the arithmetic X=64"), ("run $((0x1F))", "no decimal number"),
    ("run $((1 << 4))", "the arithmetic"), ("X=4; ((X++)); run $X", "the arithmetic X++"),
    ("run $((2 ** 10))", "the arithmetic"), ("run $((0 && 1 / 0))", "the arithmetic"),
    ("A=(1); ((A[0]++)); run $A", "A[0]++"),
    ("X=$((Y + N++)); run $N", "a part of"), ("A=(1 2); run ${A[1]}", "A[1]"),
    ("A=($(x)); run ${#A[@]}", "the expansion"), ("X=abc; run ${#X}", "the expansion"),
    ("X=abc; run ${X:1}", "the expansion"), ("X=abc; run ${X/a/b}", "the expansion"), ("run $(echo x)", "not run"),
    ("set -- a b; run $1", "only a call"), ("f() { shift; run $1; }; f a b", "only a call"),
    ("X=abc; run ${X: -1}", "the expansion ${X: -1}"),
    ("while getopts n: X; do :; done; run $X", "X, which the `while` of line 1 sets"),
    ("f() { echo $1; }; run $(f 3)", "not run"), ("run $(basename a > f)", "not run"), ("run $(pwd; date)", "not run"),
    ("for i in 1 2 3; do [ $i = 2 ] && continue; A=$A$i; done; run $A", "A, which the `for` of line 1 sets"),
    ("set -- \"$@\" a; run $1", "only a call"), ("shift; run $1", "only a call"), ("run a${@:1:2}", "the expansion"),
    ("if test -f x; then shift; fi; set -- a \"$@\"; run $2", "only a call"),
    ("if test -f x; then X=2; fi; run $X", "X, which the `if` of line 1 sets"),
    ("case $Y in a) X=5 ;; *) X=6 ;; esac; run $X", "X, which the `case` of line 1 sets"),
    ("for X in $Y; do :; done; run $X", "X, which the `for` of line 1 sets"),
    ("i=0; while [ $i -lt 3 ]; do A+=(k); i=$((i + 1)); done; run $i", "i, which the `while` of line 1 sets"),
    ("for ((i = 0; i < 3; i++)); do :; done; run $i", "i, which the `for` of line 1 sets"),
    ("while true; do case $1 in -x) X=$2; shift 2;; *) break;; esac; done; run $X", "X, which the `while` of line 1"),
    ("X=1; while test -f f; do run $X; X=2; done", "X, which the `while` of line 1 sets"),
    ("X=1; [ -z $Y ] && X=2; run $X", "X, which the `&&` of line 1 sets"),
    ("X=1; prepare || X=2; run $X", "X, which the `||` of line 1 sets"),
    ("if test -f f; then : ${X:=4}; fi; run $X", "X, which the `if` of line 1 sets"),
    ("f() { test -f x && return; X=2; }; X=1; f; run $X", "X, which the function f of line 1 sets"),
    ("f() { run $1; }; f \"$@\"", "only a call"), ("f() { shift; run $1; }; f a \"$@\"", "only a call"),
    ("f() { run $1; }; f a; f b", "several"),
    ("set -- a \"$@\"; run $2", "only a call"), ("f() { run $#; }; f $@", "only a call"),
    ("for x in 1 2; do run k=$x; done", "line 1 runs several times"),
    (". ./settings.sh; run ${N:-4}", "N, which the file that line 1 reads may set"),
    ("A=aaaaaaaaaa; " + "A=$A$A; " * 30 + "run $A", "more than")])
def test_what_only_running_would_tell_is_unknown(script, why):
    assert why in (last(script).problem or "known")


@pytest.mark.parametrize(("script", "words", "unknown"), [
    ('C="a=1 b=$(date)"\nC+=" c=2"', ["a=1", "b=$(date)", "c=2"], ["b=$(date)"]),
    ('C="a=1"\nC="$C b=${0##*/} c=2"', ["a=1", "b=${0##*/}", "c=2"], ["b=${0##*/}"]),
    ('C=$(cat x)\nC+=" a=1"', ["$(cat ...)", "a=1"], ["$(cat ...)"]),
    ('C="a=1"\nif x; then C="$C b=2"; else C="$C c=3"; fi', ["a=1", "b=2", "c=3"], ["b=2", "c=3"]),
    ('C="a=1"\ncase $X in\n 1) C+=" b=2" ;;\n 2) C+=" c=3" ;;\nesac\nC+=" d=4"', ["a=1", "b=2", "c=3", "d=4"],
     ["b=2", "c=3"]),
    ("C=(a=1)\nif x; then C+=(b=2 d=4); else C+=(c=3 d=4); fi\nC=${C[*]}", ["a=1", "d=4", "b=2", "c=3"],
     ["b=2", "c=3"])])
def test_of_a_text_only_the_word_that_is_not_known_is_lost(script, words, unknown):
    found = runs(f"{script}\nrun $C")[-1]
    assert [a.text for a in found] == words
    assert [a.text for a in found if a.problem] == unknown


@pytest.mark.parametrize(("script", "words"), [
    ("run $HOME/x \"${DATA}\" $(pwd)", ["${oc.env:HOME}/x", "${oc.env:DATA}", "${oc.env:PWD}"]),
    ('N=a${S:+-}${S}; run $N "$S"', ["a", "${oc.env:S}"]),
    ("WANDB_API_KEY=abc; run $WANDB_API_KEY", ["${oc.env:WANDB_API_KEY}"]),
    ("MAX_TOKENS=5; run $MAX_TOKENS", ["5"])])
def test_what_the_environment_holds_is_left_to_it(script, words):
    assert [a.text for a in runs(script)[-1]] == words


@pytest.mark.parametrize(("script", "said"), [
    ("run a\nrun ${GPUS:-8}", [(2, "GPUS is not assigned in the script; its default was taken: 8")]),
    ("run ${WANDB_API_KEY:-abc}", [(1, "WANDB_API_KEY is a secret by its name: set it where the run starts, too")]),
    ("X=$(curl -u ${WHO:-bob:hunter2} http://x)\nrun $X", []),
    ("S=${S:+-}\nrun", [(1, "S is not assigned in the script; taken as not set")]),
    ("while [ $# -gt 0 ]; do shift; done", [
        (1, "a loop over the script's own arguments was read as started without any")])])
def test_what_was_taken_for_granted_is_told(script, said):
    assert read_script(script).assumed == said


def test_a_word_knows_the_line_it_was_written_in():
    script = read_script("A=(\n  x=1\n)\nrun a=1 \\\n  b=2 \\\n  \"${A[@]}\"")
    assert [(a.text, a.line) for a in script.commands[0].arguments] == [("run", 4), ("a=1", 4), ("b=2", 5), ("x=1", 2)]


def test_of_an_unknown_test_only_the_branches_that_may_run_are_read():
    script = ("B=a\nif x; then\n X=1\nelif [ $B = b ]; then\n run two\nelif [ $B = a ]; then\n X=1\nelse\n run four\n"
              "fi\nrun $X")
    assert [[a.text for a in words] for words in runs(script)] == [["1"]]
    construct, names = read_script(script).constructs[-1]
    assert (construct.line, construct.last, names) == (2, 10, ())


@pytest.mark.parametrize("script", ["run 'a", "run $(a", "run ${a", "A=(1 2", "if", "done", ")", "a && ", "<<", "case",
                                    "f() {", "run $((1.5))", "run " + "${X:-" * 3000 + "}" * 3000])
def test_what_is_not_bash_is_refused(script):
    with refuses(ConfigError, "x.sh"):
        read_script(f"run a\n{script}", "x.sh")


def test_without_shfmt_one_sentence_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with refuses(ConfigError, "shfmt-py"):
        read_script("run this-text-was-not-read-before")


def test_loops_that_do_not_end_are_read_once():
    assert [a.text for a in runs("while true; do run a; done; run b")[0]] == ["a"]
    assert runs("f() { f; }; f; run b")


# ----------------------------------------------------------------------------------------------------------- launches


START = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=rloo data.train_batch_size=64"


def test_keys_of_a_call_are_those_of_the_launch_with_the_lines_of_the_call():
    made = from_verl(f'main() {{\n  {START} actor_rollout_ref.rollout.n=$1 "${{@:2}}"\n}}\n'
                     "main 6 trainer.total_epochs=3\n")
    assert (written(made)["algorithm.repeat_times"], written(made)["buffer.total_epochs"]) == (6, 3)
    assert {given.key: given.line for given, _ in made.renamed}["trainer.total_epochs"] == 4
    assert (made.skipped, made.assumed, made.unknown, made.unread) == ([], [], [], [])


def test_what_differs_between_several_runs_is_unknown():
    made = from_verl(f'go() {{ {START} "$@"; }}\ngo trainer.total_epochs=3\ngo trainer.total_epochs=4\n')
    assert [u.given.key for u in made.unknown] == ["trainer.total_epochs"]
    assert "buffer.total_epochs" not in written(made)
    assert any("runs 2 times" in what for _, what in made.assumed)


@pytest.mark.parametrize("word", ["$(cat x)", "$EXTRA", "$1"])
def test_a_word_that_may_set_any_key_is_told_and_every_default_says_so(word):
    made = from_verl(f"{START} \\\n  {word} \\\n  actor_rollout_ref.rollout.n=4")
    assert made.unread == [2]
    wording(made.skipped[0][1], "may")
    doubted = {".".join(path) for path, entry in made.entries.items() if "could not be read" in entry.comment}
    assert {"buffer.total_epochs", "trainer.ranks", "explorer.rollout_model.engine_num"} <= doubted
    assert not {"algorithm.repeat_times", "mode"} & doubted


@pytest.mark.parametrize("word", ["$@", '"$@"', "${EXTRA:-}", "trainer.total_epochs=$(x)"])
def test_a_word_of_one_key_or_of_none_leaves_defaults_alone(word):
    made = from_verl(f"{START} {word}")
    assert made.unread == []
    assert not any("not be read" in entry.comment for entry in made.entries.values())


def test_the_directives_of_a_job_decide_its_variables():
    found = job_variables("#!/bin/bash\n#SBATCH --nodes=4      # of the cluster\n#SBATCH --gres=gpu:h100:8\n"
                          "#SBATCH -c 64\n#SBATCH --job-name=\"my sums\"\nset -x\n#SBATCH --gpus-per-node=4\n")
    assert found == {
        "SLURM_NNODES": "4", "SLURM_JOB_NUM_NODES": "4", "SLURM_GPUS_ON_NODE": "8"}
    assert "SLURM_JOB_ID" in last("#SBATCH --nodes=1\nrun $SLURM_JOB_ID").problem


def test_a_job_is_read_with_them():
    made = from_verl("#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=4\n" + launch(
        "trainer.nnodes=$SLURM_NNODES", 'trainer.n_gpus_per_node="${SLURM_GPUS_PER_NODE}"'))
    assert (written(made)["trainer.ranks"], written(made)["cluster.node_num"]) == (4, 1)
