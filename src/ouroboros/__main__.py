"""The command `ouro`; `python -m ouroboros lock cpu|gpu|gpu-next` prints the path of a lock file for pip, `python -m
ouroboros gpus` the GPUs of this machine."""

import sys

from ouroboros.pipeline.store.files import HOME

LOCKS = {"cpu": "requirements.lock", "gpu": "requirements-gpu.lock", "gpu-next": "requirements-gpu-next.lock"}


def ouro() -> int:
    """Runs the command line; returns its exit code."""
    from ouroboros.commands.cli import main

    return main()


def lock(words: list[str]) -> int:
    """Prints the path of a lock; returns the exit code."""
    if len(words) != 1 or words[0] not in LOCKS:
        print(f"usage: python -m ouroboros lock {'|'.join(LOCKS)}", file=sys.stderr)
        return 2
    print(HOME / LOCKS[words[0]])
    return 0


def gpus() -> None:
    """Prints this machine's GPUs, and what to run first."""
    from ouroboros.pipeline.job.devices import introduced

    print("\n".join(introduced()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["lock"]:
        sys.exit(lock(sys.argv[2:]))
    if sys.argv[1:] == ["gpus"]:
        sys.exit(gpus())
    sys.argv[0] = "ouro"
    sys.exit(ouro())
