"""What the machine uses, as NVIDIA's tool prints it, and its means over a step."""

import pytest

from ouroboros.pipeline.job import devices, load
from ouroboros.pipeline.job.load import Load


@pytest.mark.parametrize(("printed", "found"), [
    ("NVIDIA H200, 50, 1024, 2048\nNVIDIA H200, 100, 3072, 4096", (4.0, 0.75)), ("", (None, None)),
    ("NVIDIA H200, [N/A], 1024, 2048", (None, None))])
def test_a_look_at_the_machine(monkeypatch, tmp_path, printed, found):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'E'\n{printed}\nE\n" if printed else "#!/bin/sh\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setattr(devices.shutil, "which", lambda _: str(tool))
    seen = load.look(0.01)
    assert (seen.gpu_memory_gib, seen.gpu_load) == found
    assert seen.host_memory_gib > 0
    assert 0 <= seen.host_load <= 1


def test_means_over_a_step_and_over_one_that_is_shorter_than_a_look(monkeypatch):
    monkeypatch.setattr(load.Thread, "start", lambda _: None)
    watch = load.Watch()
    assert watch.since() == Load()
    watch.seen += [Load(1.0, 0.5), Load(3.0, 1.0, 8.0, 0.5)]
    assert watch.since() == watch.since() == Load(2.0, 0.75, 8.0, 0.5)


def test_a_look_during_which_a_step_ends_counts_for_the_next_step(monkeypatch):
    monkeypatch.setattr(load.Thread, "start", lambda _: None)
    watch, looks = load.Watch(), [Load(7.0)]

    def look() -> Load:
        watch.since()
        return looks.pop()

    monkeypatch.setattr(load, "look", look)
    with pytest.raises(IndexError):
        watch._go()
    assert watch.since() == Load(7.0)
