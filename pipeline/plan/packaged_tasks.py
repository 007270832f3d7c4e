"""Tasks of packages that a configuration names, `reasoning-gym://gsm_symbolic`: made while planning, once.

Planning replaces each such path by that of a jsonl file below store/.tasks, named by the package's versions and by what
was asked for; everything behind it reads a file, and an identity has its content. The package is imported by a separate
process (operators/task_packages.py).
"""

import json
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ouroboros.pipeline.compose.recipe import merged
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import Rows
from ouroboros.pipeline.settings.kinds import SETS
from ouroboros.pipeline.settings.setting import put, values_of
from ouroboros.pipeline.store import files, launch, locked, packages
from ouroboros.pipeline.store.digests import MadePath
from ouroboros.pipeline.store.errors import DataError, OuroError


def with_tasks(config: Config) -> tuple[Config, list[str]]:
    """Returns the configuration with files for the tasks of packages, and one line for each set that has none."""
    problems: dict[str, None] = {}

    def placed(value: Config | dict[str, Any], settings: Config) -> Any:
        for key, one in _named(settings):
            try:
                path = _made(one, settings.checkpoint_root_dir)
            except (OuroError, OSError) as error:
                problems[f"{key}.path={_asked(one)}: {error}"] = None
                continue
            if path != one.path:
                value = put(value, f"{key}.path", path)
        return value

    config = placed(config, config)
    # an entry may have other arguments for the set of the run, or another set for its arguments
    entries = [placed(entry, merged(config, entry)) for entry in config.stages]
    return config.but("stages", entries), list(problems)


def facts(config: Config) -> Iterator[tuple[str, str]]:
    """Yields (path, sentence) of each set of the run whose tasks are of a package, and are made."""
    for _, one in _named(config):
        if isinstance(one.path, MadePath):
            count, asked = Path(one.path).read_bytes().count(b"\n"), one.source_args.get("size") or 0
            more = f" of {asked:,}: different ones run out" if count < asked else ""
            yield one.path.pinned, f"{count:,} distinct tasks of split {one.split}{more}"


def _named(config: Config) -> Iterator[tuple[str, Rows]]:
    for several in SETS:
        yield from ((key, one) for key, one in values_of(config, several) if packages.package_of(_asked(one)))


def _asked(one: Rows) -> Any:
    """Returns the path of a set as it was written."""
    return getattr(one.path, "pinned", one.path)


def _made(one: Rows, root: str) -> MadePath:
    """Returns the file of a set's tasks, which is made if it is not there."""
    package, _, name = _asked(one).partition("://")
    request = {"package": package, "name": name, "split": one.split, **one.source_args}
    if package in packages.LOCKED:
        place, lock = Path.cwd(), locked.digest(name.partition("/")[0])
        request["lock"] = [lock, str(locked.interpreter(lock, root))]
        versions = files.hash_file(locked.PROGRAM)
    else:
        place, versions = packages.folder(package), packages.versions(package)
    digest = files.hash_json([request, versions])[:12]
    path = Path(root, "store", ".tasks", f"{package}-{name.replace('/', '-')}-{digest}.jsonl")
    if not path.exists():
        files.write_atomic(path, partial(_write, request, place))
    return MadePath(str(path), _asked(one))


def _write(request: dict[str, Any], place: Path, path: Path) -> None:
    done = subprocess.run(launch.command("ouroboros.operators.task_packages", json.dumps(request), str(path)),
                          capture_output=True, text=True, env=packages.environment(place), check=False)
    if done.returncode:
        raise DataError(f"{done.stderr.strip()[-1000:]}.")
    if not path.stat().st_size:
        raise DataError(f"it has no task of split {request['split']}.")
