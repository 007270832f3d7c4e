"""Processor seconds of the commands that a person waits for; `make house` prints them with the goals.

    python -m benchmarks.quick [--against DIR]

User and system time of each command and of the processes that it starts, the second of two runs: the first compiles
modules and keeps what the next finds again (pipeline/store/kept.py). Of `debug workflow` seven seconds import vLLM,
whose parsers read tool calls. --against: a checkout of another version, measured in turn with this one, with the
ratio; what it cannot run is left out. Commands run in an empty directory; `sql` and `view` read a made run of 240
rollouts, `init` a random model of 0.2M parameters and 300 rows.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from tabulate import tabulate

from ouroboros.pipeline.store.files import HOME
from tests.fake_run import FakeRun

MODEL = ("from types import SimpleNamespace as N; from pathlib import Path; from ouroboros.stages import model; "
         "from ouroboros.pipeline.check.judge import compose; "
         "model.work(N(config=compose([]), directory=Path('model'), made={}, inputs={}))")
# command -> (words, goal in seconds)
COMMANDS = {
    "config check --no-data": (("config", "check", "--no-data"), 2.0),
    "config check": (("config", "check"), 6.0),
    "run -- -n": (("run", "--", "-n"), 3.5),
    "init --from": (("init", "made{}", "--from", "rows.jsonl", "--model", "model"), 6.0),
    "debug workflow --script": (("debug", "workflow", "sudoku", "--script", "answer"), 6.0),
    "sql": (("sql", "select count(*) from experience"), 1.0),
    "view --export": (("view", "toy/first", "--export", "out{}"), 10.0),
}


def seconds(home: Path, directory: Path, *words: str) -> float | None:
    """Returns the processor seconds of `python WORDS` of a checkout and of its children; None where it fails."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = kept | {"PYTHONPATH": str(src if (src := home / "src").exists() else home)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *words], cwd=directory, env=environment, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return taken if done.returncode == 0 else None


def rows(homes: list[Path], directory: Path) -> list[tuple]:
    """Returns (command, seconds of each checkout, goal, ratio of the first to the last)."""
    FakeRun(directory, steps=30).whole().view()
    (directory / "rows.jsonl").write_text("".join(
        json.dumps({"question": f"What is {n} + {n}?", "answer": str(2 * n)}) + "\n" for n in range(300)))
    (directory / "model").mkdir()
    seconds(HOME, directory, "-c", MODEL)
    found = []
    for name, (words, goal) in COMMANDS.items():
        times = [[seconds(home, directory, "-m", "ouroboros", *(word.format(f"-{turn}-{at}") for word in words))
                  for at, home in enumerate(homes)] for turn in range(2)][-1]
        found.append((name, *times, goal, times[0] / times[-1] if len(homes) > 1 and all(times) else None))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = rows([HOME, *filter(None, [given.against])], Path(directory))
    shown = ["command", "CPU s", *(["other"] if given.against else []), "goal", "ratio"]
    print(tabulate(found, shown, floatfmt=".2f"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
