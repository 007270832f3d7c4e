"""Launch scripts run by bash in a sandbox in which no program is real: words, what is unknown, what is assumed."""

import time

import pytest

from ouroboros.commands.bridges import bash
from ouroboros.commands.bridges.bash import Argument, read_script
from ouroboros.pipeline.store.errors import ConfigError
from tests.bridges import from_verl, launch, written
from tests.golden.messages import refuses, wording

START = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=rloo data.train_batch_size=64"


def runs(script: str) -> list[list[Argument]]:
    """The words of every `run` of a script."""
    return [list(c.arguments[1:]) for c in read_script(script).commands if c.arguments[0].text == "run"]


@pytest.mark.parametrize(("script", "words"), [
    ('A=(a "b c"); A+=(d=1); run "${A[@]}" ${#A[@]} ${A[1]}', ["a", "b c", "d=1", "3", "b", "c"]),
    ("declare -A M=([a]=1); declare -i I=2*4; let J=3; ((J++)); run ${M[a]} $I $J $((1 << 4))", ["1", "8", "4", "16"]),
    ("X=abcdef; run ${X:1:2} ${X/b/z} ${X^^} ${#X} {p,q}", ["bc", "azcdef", "ABCDEF", "6", "p", "q"]),
    ("[[ ab12 =~ ([a-z]+)([0-9]+) ]]; Y=1; run ${BASH_REMATCH[2]}", ["12"]),
    ("IFS=, read -r A B <<< 3,4; mapfile -t C < <(seq 2); run $A $B ${C[1]}", ["3", "4", "2"]),
    ("printf -v X %03d 7; run $X $(basename /x/y.sh .sh) $(echo a b | tr a-z A-Z)", ["007", "y", "A", "B"]),
    ("f() { local n=$1; shift; run $n \"$@\"; }; f 1 2 3", ["1", "2", "3"]),
    ("set -euo pipefail; cat > e.sh <<E\nN=5\nE\nsource e.sh; run $N", ["5"]),
    ("set -e; source ~/venv/bin/activate; conda activate x; cd /work; ulimit -n 65535; run $PWD", ["/work"]),
    ("while [ $# -gt 0 ]; do shift; done; for i in 1 2 3; do [ $i = 2 ] && break; done; run $i \"$@\"", ["2"]),
    ("set -x; eval 'X=3'; (X=4); { X=5 & wait; }; run $X", ["3"]),
    ("run $HOME/x ~/y $PWD $USER", ["${oc.env:HOME}/x", "${oc.env:HOME}/y", "${oc.env:PWD}", "${oc.env:USER}"]),
    ("WANDB_API_KEY=abc; run $WANDB_API_KEY", ["${oc.env:WANDB_API_KEY}"]),
    ("run ${WANDB_API_KEY:-abc}", ["${oc.env:WANDB_API_KEY}"]), ("MAX_TOKENS=5; run $MAX_TOKENS", ["5"]),
    ("#SBATCH --nodes=4\n#SBATCH --gres=gpu:h100:7\nset -x\n#SBATCH --gpus-per-node=2\nrun $SLURM_NNODES "
     "$SLURM_GPUS_ON_NODE ${SLURM_GPUS_PER_NODE:-}", ["4", "7", None]),
    ("#SBATCH -N 2\nA=($(scontrol show hostnames)); for ((i = 1; i < SLURM_NNODES; i++)); do run a ${A[i]}; done",
     ["a", None]),
    ("run a; touch log; tail -100f log; tail -F log; while ! nc -z host 80; do sleep 1; done", ["a"]),
    ("run a\r\n", ["a"])])
def test_words_are_those_of_bash(script, words):
    assert [None if one.problem else one.text for one in runs(script)[-1]] == words


@pytest.mark.parametrize(("script", "text"), [
    ("run k=$(date)", "k=$(date)"), ("run k=`curl -u me:hush x`", "k=$(curl ...)"), ("run k=$1", "k=$1"),
    ("run k=$RANDOM", "k=$RANDOM"), ("run k=$HOSTNAME", "k=$HOSTNAME"), ("run k=$SLURM_JOB_ID", "k=$SLURM_JOB_ID"),
    ("N=$(nproc)\nrun k=$((8 * N / 16))", "k=$((8 * N / 16))"), ("read -r X; run k=$X", "k=$X"),
    ('cd "$(dirname "$0")/.."; run k=$PWD/x', "k=$PWD/x"),
    ("python3 p.py > f; . ./f || :; run k=$(cat f)", "k=$(cat ...)"),
    ("if [ $(nproc) -gt 4 ]; then X=2; else X=3; fi; run k=$X", "k=$X"), ("run k=$(nvidia-smi -L | wc -l)",
                                                                         "k=$(nvidia-smi ...)"),
    ("for x in 1 2; do run k=$x; done", "k=$x"), ("f() { run k=$1; }; f a; f b", "k=$1"),
    ("run k=$(head -1 missing)", "k=$(head ...)"), ("A=(k=$(date))\nrun \"${A[@]}\"", "k=$(date)")])
def test_what_only_a_real_run_would_tell_is_unknown_and_shown_as_the_script_has_it(script, text):
    words = runs(script)[-1]
    assert [(one.text, bool(one.problem)) for one in words] == [(text, True)]


@pytest.mark.parametrize(("script", "line", "name"), [
    ("run a\nrun $NNODES_OF_NONE", 2, "NNODES_OF_NONE"), ("echo $NONE | cat\nrun", 1, "NONE"),
    ('if [ -z "$NONE" ]; then :; fi; run', 1, "NONE"), ("f() {\n  run ${NONE}\n}\nf", 2, "NONE")])
def test_a_variable_that_nothing_sets_is_named_with_its_line(script, line, name, monkeypatch):
    with refuses(ConfigError, f"line {line}", f"{name}=... ouro import verl x.sh"):
        read_script(script, "x.sh")
    monkeypatch.setenv(name, "3")
    script = read_script(script, "x.sh")
    assert script.commands
    wording([what for _, what in script.assumed], f"{name} is taken from the environment: 3")


@pytest.mark.parametrize(("script", "said"), [
    ("run a\nrun ${GPUS:-8}", [(2, "GPUS is not assigned in the script; its default was taken: 8")]),
    ("run \\\n ${A:=${B:-\"x y\"}}", [(2, 'A is not assigned in the script; its default was taken: ${B:-"x y"}'),
                                      (2, "B is not assigned in the script; its default was taken: x y")]),
    ("A=1; run ${A:-2}", []), ("f() { run ${1:-7}; }; f 3", []),
    ("run ${1:-7}", [(1, "$1 is not known; its default was taken: 7")]),
    ("run ${WANDB_API_KEY:-abc}", [(1, "WANDB_API_KEY is a secret by its name: set it where the run starts, too")]),
    ("S=${S:+-}\nrun", [(1, "S is not assigned in the script; taken as not set")]),
    ("if nvidia-smi; then run; fi", [(1, "`nvidia-smi` was not run: taken as successful")]),
    ("X=$(python3 p.py)\nrun", [(1, "`python3` was not run: what it prints is missing")]),
    ("exec > >(tee log)\npython3 p.py\nrun | tee -a log", []),
    ("[ -d /data ] || run", [(1, "`[ -d /data ]`: no file of this machine is seen")])])
def test_what_was_taken_for_granted_is_told(script, said):
    assert read_script(script.replace("run", "python3 main_ppo.py")).assumed == said


def test_a_word_knows_the_line_it_was_written_in():
    script = read_script("A=(\n  x=1\n)\nrun a=1 \\\n  b=2 \\\n  \"${A[@]}\"")
    assert [(a.text, a.line) for a in script.commands[0].arguments] == [("run", 4), ("a=1", 4), ("b=2", 5), ("x=1", 2)]


@pytest.mark.parametrize("script", ["run 'a", "run $(a", "run ${a", "A=(1 2", "if", "done", ")", "a && ", "case",
                                    "f() {"])
def test_what_is_not_bash_is_refused(script):
    with refuses(ConfigError, "x.sh"):
        read_script(f"run a\n{script}", "x.sh")


def test_overrides_alone_need_no_sandbox(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    made = from_verl("# sizes\ntrainer.nnodes=4 \\\n+trainer.n_gpus_per_node=8\n\n"
                     "data.train_files='[\"/a b/x.parquet\"]'\n")
    assert (written(made)["cluster.node_num"], made.keys) == (4, 3)
    with refuses(ConfigError, "bubblewrap", "--cfg job --resolve", "overrides"):
        from_verl(launch("trainer.nnodes=4"))


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(bash, "SECONDS", 2)


@pytest.mark.parametrize("body", ["while :; do :; done", "until false; do sleep 5; done"])
def test_a_script_that_does_not_end_is_ended_and_what_it_started_before_is_read(body, short):
    begin = time.monotonic()
    script = read_script(f"{START}\n{body}\nrun")
    assert [command.line for command in script.commands if "-m" in {a.text for a in command.arguments}] == [1]
    assert [line for line, what in script.skipped if "did not end" in what] == [2]
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize("body", ["f() { f | f; }; f", "builtin kill -9 -1", "cat /dev/zero > /big", "exit 3",
                                  "A=0123456789; while :; do A=$A$A; done"])
def test_a_script_that_takes_the_machine_ends_alone(body, short):
    with pytest.raises(ConfigError, match=r"run\.sh"):
        from_verl(f"{body}\nwait\n{START}" if body != "cat /dev/zero > /big" else f"{body} &\nsleep 1; {body}; exit 1")


@pytest.mark.parametrize("body", ["while :; do echo y; done | cat > /dev/stderr &",
                                  "while :; do python3 p.py; done &", "trap '' TERM; (while :; do :; done) & disown"])
def test_what_a_script_leaves_running_ends_with_it(body, short):
    begin = time.monotonic()
    assert [command.line for command in read_script(f"{body}\n{START}").commands if len(command.arguments) == 5] == [2]
    assert time.monotonic() - begin < 30


def test_a_script_sees_and_changes_nothing_of_this_machine(tmp_path, monkeypatch):
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_rsa").write_text("hush")
    tmp_path.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OF_CALLER", "hush")
    (script,) = runs(f"set +u; cd {tmp_path} || :\necho > made; echo > /usr/lib/made; cat .ssh/* ~/.ssh/* > /all\n"
                     "E=$(cat /proc/*/environ | tr '\\0' ' ')\nN=none\n"
                     "echo 2> /dev/null > /dev/tcp/127.0.0.1/22 && N=net\n"
                     "run $(grep -c hush /all) \"${E#*hush}\" $N")
    assert ["hush" in one.text for one in script] == [False] * len(script)
    assert script[-1].text == "none"
    assert sorted(one.name for one in tmp_path.iterdir()) == [".ssh"]


def test_programs_in_the_background_are_recorded():
    commands = read_script(f"nohup {START} &\nP=$!\n(sleep 9; kill $P) &\n").commands
    (command,) = (one for one in commands if one.line == 1)
    assert [one.text for one in command.arguments] == ["nohup", *START.split()]


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


def test_a_launch_that_depends_on_what_a_program_prints_is_told():
    made = from_verl(f"if [ $(nproc) -gt 4 ]; then\n  {START}\nfi\n")
    assert [line for line, what in made.assumed if "whether the command" in what] == [2]


@pytest.mark.parametrize("word", ["$(cat x)", "$1"])
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
