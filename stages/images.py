"""Builds the images of Harbor tasks, each once, and writes images.parquet.

A row is an environment: a Dockerfile, the files next to it and its base images. Built images lie below images/ of the
store's root (pipeline/store/images.py), where other runs find them. What cannot be built has a reason and a log; its
tasks are rejected rows of the stage `curate`. A kill loses the builds in progress.
"""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from ouroboros.pipeline.job.context import Context, run_stage
from ouroboros.pipeline.settings.images import paths_of_sets
from ouroboros.pipeline.store import files, tables
from ouroboros.pipeline.store.errors import ConfigError, DataError
from ouroboros.pipeline.store.images import Environment, directory, environments, no_builder, place_of, read_image
from ouroboros.pipeline.store.records import Image as Row
from ouroboros.stages.image_builder import Builder, NotBuilt


def work(context: Context) -> None:
    settings, root = context.config, context.config.checkpoint_root_dir
    found = environments(paths_of_sets(settings.buffer), settings.environment.images, root)
    place = directory(root)
    place.mkdir(parents=True, exist_ok=True)
    with files.locked(place / ".lock", lambda holder: context.log.info("waiting: %s builds images", holder)):
        rows = build_all(context, found)
        context.made["images"] = {row.key: row.digest for row in rows}
        context.made["built"] = sum(row.digest is not None for row in rows)
        if rows and not context.made["built"]:
            raise DataError(f"none of {len(rows)} images was built. The first: {rows[0].reason} (log: {rows[0].log}). "
                            "The same command tries again.")
        tables.write(context.directory / tables.LOCATIONS["images"], Row, rows)
        shutil.rmtree(place / "build", ignore_errors=True)  # complete images are never built again


def build_all(context: Context, distinct: list[Environment]) -> list[Row]:
    """Builds what is not complete, several at once; returns a row for each."""
    root, settings = context.config.checkpoint_root_dir, context.config.images
    waiting = [one for one in distinct if not place_of(root, one.key).exists()]
    context.log.info("%d images, %d to be built", len(distinct), len(waiting))
    failed: dict[str, Row] = {}
    if waiting:
        if reason := no_builder():
            raise ConfigError(reason)
        context.log.warning("warning: the programs of %d Dockerfiles run as root on this machine, in a chroot: that is "
                            "no boundary, build what you trust", len(waiting))
        place, idle = directory(root), SimpleQueue()
        for number in range(min(settings.parallel, len(waiting))):
            idle.put(Builder(place / "build" / str(number), place / "layers", settings.max_gib))

        def build(one: Environment) -> None:
            builder, log = idle.get(), place_of(root, one.key).with_suffix(".log")
            begin = time.monotonic()
            try:
                builder.build(one, log).write(place_of(root, one.key))
            except NotBuilt as reason:
                failed[one.key] = _row(one, root, str(reason), time.monotonic() - begin)
                context.log.warning("no image of %s: %s", one.task, reason)
            finally:
                idle.put(builder)
                context.activity.alive()

        with ThreadPoolExecutor(settings.parallel) as pool:
            list(pool.map(build, waiting))
    return [failed.get(one.key) or _row(one, root) for one in distinct]


def _row(one: Environment, root: str, reason: str | None = None, seconds: float = 0.0) -> Row:
    """reason: why it was not built, after `seconds`."""
    place = place_of(root, one.key)
    image = None if reason else read_image(place)
    return Row(one.key, one.source, str(one.task), image and image.digest, reason,
               str(place.with_suffix(".log")), image.seconds if image else seconds, image and image.bytes,
               image and len(image.layers))


if __name__ == "__main__":
    run_stage(work, __doc__)
