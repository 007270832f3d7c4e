"""What stands outside a script and is known all the same: commands that take a text apart, and SLURM's variables."""

import pytest

from pipeline.bridges.shell import read_script
from pipeline.bridges.shell_slurm import job_variables
from tests.bridges import from_verl, launch, written


@pytest.mark.parametrize(("command", "text"), [
    ("basename a/b.tar", "b.tar"), ("basename a/b.tar .tar", "b"), ("basename a/b/", "b"), ("basename b", "b"),
    ("basename .tar .tar", ".tar"), ("dirname a/b/c", "a/b"), ("dirname c", "."), ("dirname /c", "/"),
    ("dirname a//b", "a"), ("echo 'a*'", "a*"),
    ('basename "$X"', "x-7b"), ("basename ${X^^}", "X-7B"), ("echo a  b", "a b"), ("pwd", "${oc.env:PWD}"),
    ('dirname "$HOME/m/x"', "${oc.env:HOME}/m"), ('basename "$HOME/m/x"', "x")])
def test_a_command_that_only_takes_a_text_apart_is_known(command, text):
    """As bash and coreutils print it, with X=org/x-7b."""
    argument, = read_script(f'X=org/x-7b\nrun "$({command})"').commands[-1].arguments[1:]
    assert (argument.text, argument.problem) == (text, None)


@pytest.mark.parametrize("command", [
    "basename", "basename $HOME", 'basename "$(cat f)"', "basename -a x y", "basename a b c", "dirname a b", "pwd -P",
    "echo -n x", "echo x | tr a b", "date +%F", "basename a > f", "cd x && pwd", "basename /",
    "echo {1..3}", "echo a*", "echo ~"])
def test_any_other_command_is_not_run(command):
    assert "which is not run" in read_script(f"run $({command})").commands[-1].arguments[-1].problem


def test_a_variable_that_is_asked_for_is_nothing_where_it_is_not_set():
    script = read_script('N=a${SUFFIX:+-}${SUFFIX}\nrun $N "$SUFFIX"')
    assert [a.text for a in script.commands[-1].arguments] == ["run", "a", "${oc.env:SUFFIX}"]
    assert script.assumed == [(1, "SUFFIX is not assigned in the script; taken as not set")]


@pytest.mark.parametrize("script", ["${HOME:+a=1} ", "${HOME+a=1}", "${HOME:+a=}b"])
def test_to_ask_for_a_variable_empties_it_for_no_other_word(script):
    assert read_script(f"run {script} $HOME/m").commands[-1].arguments[-1].text == "${oc.env:HOME}/m"


def test_a_test_that_asks_for_a_variable_of_the_environment_is_not_known():
    script = read_script('X=0\n[ -z "${HOME+x}" ] && X=9\nrun $X $HOME')
    assert [a.problem for a in script.commands[-1].arguments] == [None, "X, which line 2 sets on a condition", None]


@pytest.mark.parametrize("change", ["cd /work", "pushd /work", "[ -f a ] || cd /work", "f() { cd /work; }\nf",
                                    "eval 'cd /work'"])
@pytest.mark.parametrize("directory", ["$(pwd)", "`pwd`", "$PWD"])
def test_behind_a_change_of_the_directory_nobody_knows_it(change, directory):
    before, behind = [command.arguments[-1] for command in read_script(
        f"run {directory}\n{change}\nrun {directory}").commands if command.arguments[0].text == "run"]
    assert (before.text, before.problem) == ("${oc.env:PWD}", None)
    assert behind.problem


def test_of_a_command_that_is_not_known_no_argument_is_expanded():
    script = read_script("TAG=$(curl -u ${WHO:-bob:hunter2} http://x)\nB=$(curl ${TOK:=abc})\nrun $TOK")
    assert script.assumed == []  # where the default of WHO would be told
    assert script.commands[-1].arguments[-1].text == "${oc.env:TOK}"


def test_the_directives_of_a_job_decide_its_variables():
    found = job_variables("#!/bin/bash\n#SBATCH --nodes=4      # of the cluster\n#SBATCH --gres=gpu:h100:8\n"
                          "#SBATCH -c 64\n#SBATCH --job-name=sums\n#SBATCH --gpus-per-node a100:4\n")
    assert {name: value for name, value in found.items() if isinstance(value, str)} == {
        "SLURM_NNODES": "4", "SLURM_JOB_NUM_NODES": "4", "SLURM_GPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "64",
        "SLURM_JOB_NAME": "sums"}
    assert str(found["SLURM_JOB_ID"]) == "SLURM_JOB_ID, which SLURM sets when the job starts"
    assert job_variables("echo $SLURM_JOB_ID\n") == {}


def test_the_directives_of_a_job_end_at_its_first_command_and_may_be_quoted():
    found = job_variables("#!/bin/bash\n\n# a job\n#SBATCH --job-name=\"my run\"\nset -x\n#SBATCH --nodes=4\n")
    assert found["SLURM_JOB_NAME"] == "my run"
    assert "SLURM_NNODES" not in found
    assert job_variables("set -x\n#SBATCH --nodes=4\n") == {}


def test_a_job_is_read_with_them():
    made = from_verl("#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=4\n" + launch(
        "trainer.nnodes=$SLURM_NNODES", 'trainer.n_gpus_per_node="${SLURM_GPUS_PER_NODE}"',
        "trainer.experiment_name=sums-$SLURM_JOB_ID"))
    assert (written(made)["trainer.ranks"], written(made)["cluster.node_num"]) == (4, 1)
    unread, = made.unknown
    assert unread.why == "SLURM_JOB_ID, which SLURM sets when the job starts"
