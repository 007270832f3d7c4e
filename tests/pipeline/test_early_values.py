"""Interpolations beside stages that set what they name."""

from pipeline import cli
from pipeline.early_values import early_values

RUN = {"seed": 1, "name": "${oc.env:HOME}", "buffer": {"batch_size": 16, "train_batch_size": "${buffer.batch_size}"}}


def stages(*entries: dict) -> dict:
    return {**RUN, "stages": [{"stage_name": f"s{index}", **entry} for index, entry in enumerate(entries)]}


def test_a_stage_that_sets_what_an_interpolation_names_is_told():
    """s0 sets the batch size alone; s1 the result too; s2 neither; s3 writes the interpolation itself."""
    first, second = early_values(stages(
        {"buffer": {"batch_size": 64}}, {"buffer": {"batch_size": 64, "train_batch_size": 64}}, {"seed": 2},
        {"buffer": {"batch_size": 32, "total_steps": "${buffer.batch_size}", "train_batch_size": 1}}))
    assert first.startswith("stage 's0': buffer.train_batch_size=${buffer.batch_size} has the buffer.batch_size of the")
    assert second.startswith("stage 's3': buffer.total_steps=${buffer.batch_size} has")
    assert early_values(stages()) == []


def test_the_check_tells_it(capsys):
    words = ["buffer.train_batch_size=${buffer.batch_size}", "stages.rft.buffer.batch_size=32"]
    assert cli.main(["config", "check", "--no-data", "--elsewhere", *words]) in (0, 2)
    assert "stage 'rft': buffer.train_batch_size=${buffer.batch_size} has" in capsys.readouterr().out
