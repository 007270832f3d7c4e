"""The base image of tests."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ouroboros.pipeline.store.files import HOME as REPOSITORY


@pytest.fixture(scope="session")
def base() -> Path:
    """An OCI archive with Python, pytest and apt, made once."""
    place = REPOSITORY / ".harbor"
    place.mkdir(exist_ok=True)
    archive, tree = place / "base.tar", place / "tree.tar"
    store = ["--root", place / "root", "--runroot", place / "run"]
    if not archive.exists():
        if not tree.exists():
            subprocess.run(["mmdebstrap", "--variant=apt", "--include=python3-pytest", "bookworm", place / "tree.part"],
                           check=True, stderr=subprocess.DEVNULL)
            (place / "tree.part").rename(tree)

        def buildah(*words) -> str:
            done = subprocess.run(["buildah", *store, *words], check=True, capture_output=True, text=True)
            return done.stdout.strip()

        made = buildah("from", "scratch")
        buildah("add", "--quiet", made, tree, "/")
        buildah("config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", made)
        buildah("commit", "--quiet", "--disable-compression", made, f"oci-archive:{place / 'part.tar'}")
        (place / "part.tar").rename(archive)
        shutil.rmtree(place / "root")
    return archive
