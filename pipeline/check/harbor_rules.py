"""What `ouro config check` says of Harbor tasks: how many run, in how many images, and why others do not."""

from collections import Counter
from collections.abc import Iterator

from ouroboros.pipeline.plan.plan import Plan
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.images import paths_of_sets
from ouroboros.pipeline.store import dockerfiles, files, images
from ouroboros.pipeline.store.errors import Problem

SHOWN = 5  # reasons


def facts(config: Config) -> Iterator[tuple[str, str]]:
    """Yields (path, sentence) of every directory of Harbor tasks."""
    given, root = config.environment.images, config.checkpoint_root_dir
    for path in dict.fromkeys(paths_of_sets(config.buffer)):
        if tasks := images.tasks_below(path):
            built = images.environments([path], given, root)
            made = sum(images.place_of(root, one.key).exists() for one in built)
            reasons = Counter(task.unsupported for task in tasks if task.unsupported)
            others = f"; {reasons.total()} do not: {_listed(reasons)}" if reasons else ""
            largest = (f"; the disk needed is without the others, each of up to {config.images.max_gib:g} GiB, and the "
                       "programs of their Dockerfiles run as root on this machine")
            yield path, (f"{len(tasks) - reasons.total()} of {len(tasks)} Harbor tasks run, in {len(built)} images, of "
                         f"which {made} are built{largest * (made < len(built))}{others}")


def remarks(config: Config) -> list[Problem]:
    """Returns a warning for each task of which something is read otherwise than it is written, the first ones alone."""
    tasks = (task for path in dict.fromkeys(paths_of_sets(config.buffer)) for task in images.tasks_below(path))
    found = [Problem(str(task.directory), remark) for task in tasks for remark in task.remarks]
    return found[:SHOWN] + [Problem("Harbor tasks", f"{len(found) - SHOWN} more such remarks.")] * (len(found) > SHOWN)


def unnamed_images(config: Config) -> list[Problem]:
    """Returns a warning for each base image of environment.images that no Dockerfile of the tasks names."""
    if not config.environment.images:
        return []
    tasks = (task for path in dict.fromkeys(paths_of_sets(config.buffer)) for task in images.tasks_below(path))
    named = {dockerfiles.qualified(name) for task in tasks if task.dockerfile
             for name in dockerfiles.bases(task.dockerfile)}
    return [Problem("environment.images", f"no Dockerfile of the tasks names this image; they name "
                    f"{', '.join(sorted(named)[:SHOWN]) or 'none'}.", found=name)
            for name in config.environment.images if dockerfiles.qualified(name) not in named]


def _listed(reasons: Counter) -> str:
    shown = [f"{reason} ({count})" for reason, count in reasons.most_common(SHOWN)]
    return "; ".join([*shown, *(["…"] if len(reasons) > SHOWN else [])])


def unbuildable_images(plan: Plan) -> list[Problem]:
    """Returns the problem of a stage that would build images on a machine that cannot."""
    waiting = any(stage.kind.builds and not files.is_complete(stage.directory) for stage in plan.stages)
    return [Problem("environment.images", reason)] if waiting and (reason := images.no_builder()) else []
