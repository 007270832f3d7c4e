"""The command `ouro`; `python -m ouroboros lock cpu|gpu|gpu-old` prints the path of a lock file for pip."""

import sys

from ouroboros.pipeline.store.files import HOME

LOCKS = {"cpu": "requirements.lock", "gpu": "requirements-gpu.lock", "gpu-old": "requirements-gpu-old.lock"}


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


if __name__ == "__main__":
    if sys.argv[1:2] == ["lock"]:
        sys.exit(lock(sys.argv[2:]))
    sys.argv[0] = "ouro"
    sys.exit(ouro())
