"""Settings of the environments that agents work in and of building their images; which stages train on pictures."""

from ouroboros.pipeline.settings.kinds import SETS
from ouroboros.pipeline.settings.setting import Section, setting, values_of
from ouroboros.pipeline.store.digests import HubPath, below


class Environments(Section):
    images: dict[str, str] = setting(
        {}, "base images of Harbor tasks that are on this machine: name after FROM, such as `ubuntu:24.04`, to an OCI "
            "archive or directory; others come from their registry")


class Images(Section):
    max_gib: float = setting(10.0, "most that the files of an image, or what its build writes or has in memory, may "
                                   "take; a larger one is not built and its tasks are rejected rows, GiB", gt=0)
    parallel: int = setting(2, "images that are built at once", ge=1, how=True)


def paths_of_sets(buffer, with_images: bool = False) -> list[str]:
    """Returns the files and directories of all sets with their own, without those of the hub. with_images: of sets
    whose records may have images alone."""
    found = zip(*([value for one in SETS for _, value in values_of(buffer, f"{one}.{name}".removeprefix("buffer."))]
                  for name in ("path", "subset_name", "format")), strict=True)
    return [below(one, subset) for path, subset, form in found if not with_images or may_have_images(form)
            for one in (path if isinstance(path, list) else [path]) if one and not isinstance(one, HubPath)]


def may_have_images(form) -> bool:
    """Whether records with this format may have images."""
    return form.prompt_type == "messages" or form.image_key is not None
