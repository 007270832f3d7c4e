"""Queries the Hugging Face hub or its cache for commits, listings, files; the only user of huggingface_hub.

Small files of a model (configuration, tokenizer) are fetched during planning, rows never; `lacking` lists the rest,
fetched before the run's first job. huggingface_hub prevents the use of incomplete files, `require_whole`
that of damaged ones.
"""

import glob
import hashlib
import os
import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from ouroboros.pipeline.store.data_files import READERS, SAVED, of_split
from ouroboros.pipeline.store.digests import HubPath, hashes_of
from ouroboros.pipeline.store.errors import ConfigError, DataError, ModelError, StageError, nearest

SCHEME, DATASETS = "hf://", "hf://datasets/"
NO_ID = "not an id of the Hugging Face hub"
SMALL = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py")  # of a model: configuration, tokenizer, code
WEIGHTS = (("*.safetensors",), ("pytorch_model*.bin", "adapter_model.bin"))  # the first kind present is used
OTHER_COPY = "consolidated*"  # a second copy of the weights for other programs


def snapshot(value: str, is_model: bool, commit: str | None, ask: bool, update: bool) -> HubPath | list[HubPath]:
    """Returns the path of an id with the small files fetched; for a pattern the path of every file.

    commit: None: the newest. ask, update: as for hub.located. Raises ModelError or DataError.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # it sends requests even when nothing has to be fetched
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    uri = _parsed(value)
    if uri.type != ("model" if is_model else "dataset") or (is_model and uri.path_in_repo):
        needed = "org/name[@revision]" if is_model else f"{DATASETS}org/name[@revision][/file]"
        raise DataError(f"needed {needed}, or a local path.")
    commit = commit or newest(uri, ask, update)
    with disable_progress_bars():
        root = _called(snapshot_download, uri, commit, ask, ignore_patterns=["*/*"],
                      allow_patterns=list(SMALL) if is_model else [".gitattributes", "README.md"])
    pinned_id = f"{uri.id if is_model else DATASETS + uri.id}@{commit}"
    inside = [f"/{name}" for name in _inside(uri, commit, root)] if uri.path_in_repo else [""]
    paths = [HubPath(root + name, value, commit, pinned_id + name) for name in inside]
    return paths if glob.has_magic(uri.path_in_repo) else paths[0]


@cache  # otherwise two points of a sweep could see different commits
def newest(uri, ask: bool, update: bool) -> str:
    """Returns the current commit of an id. If the hub is unreachable, that of the cache, which huggingface_hub
    reports; with update it is an error."""
    from huggingface_hub import HfApi

    if update:
        return _called(lambda name, local_files_only, **at: HfApi().repo_info(name, **at), uri, uri.revision, True).sha
    return _called(HfApi().resolve_revision, uri, uri.revision, ask).resolved


def _inside(uri, commit: str, root: str) -> list[str]:
    """Returns the file or directory that an id names in its repository, or the files. Raises DataError if missing."""
    names, wanted = _listing(uri.id, uri.type, commit, root), uri.path_in_repo
    found = [name for name in names if fnmatch(name, wanted)] if glob.has_magic(wanted) else [
        wanted for name in names if name == wanted or name.startswith(f"{wanted}/")][:1]
    if not found:
        raise DataError(f"{uri.id} has no file '{wanted}' at commit {commit[:12]}.{nearest(wanted, names)} "
                        f"{_listed(names)}")
    return found


def _listed(names: Iterable[str]) -> str:
    shown = [name for name in names if not name.startswith(".")]
    return f"Found {', '.join(shown[:6]) or 'nothing'}{', ...' if len(shown) > 6 else ''}."


def lacking(path: HubPath, subset: str | None = None, split: str = "") -> dict[str, int]:
    """Returns the files of a path, with sizes, that are read and that the cache lacks."""
    root, chosen = _read(path, subset, split)
    return {name: size for name, size in chosen.items() if not Path(root, name).exists()}


def require_whole(path: HubPath, subset: str | None, split: str, cached_at: str) -> None:
    """Raises ModelError or DataError for a file that is read of a path and has another hash than the hub's.

    The cache names a file by its hash: its sha256 (of large files), or that of git. cached_at: the root of the store
    that keeps hashes of unchanged files.
    """
    root, chosen = _read(path, subset, split)
    blobs = [Path(root, name).resolve() for name in chosen if Path(root, name).exists()]
    large = [blob for blob in blobs if SHA256.fullmatch(blob.name)]
    found = {blob: blob.name[:16] for blob in blobs} | dict(zip(large, hashes_of(large, cached_at), strict=True))
    found |= {blob: _git_hash(blob)[:16] for blob in blobs if SHA1.fullmatch(blob.name)}
    for blob, digest in found.items():
        if digest != blob.name[:16]:
            kind = ModelError if _parsed(path.pinned).type == "model" else DataError
            raise kind(f"{blob}, a file of {path.pinned}, is damaged: its hash is {digest}…; the hub's is "
                       f"{blob.name[:16]}…. Delete it and run the same command again, which fetches it again.")


SHA256, SHA1 = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{40}")


def _git_hash(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _read(path: HubPath, subset: str | None, split: str) -> tuple[str, dict[str, int]]:
    """Returns the directory of a snapshot, and the files, with sizes, that are read of it."""
    uri = _parsed(path.pinned)
    root = path.removesuffix(f"/{uri.path_in_repo}") if uri.path_in_repo else str(path)
    names = _listing(uri.id, uri.type, path.commit, root)
    chosen = _of_model(names, uri) if uri.type == "model" else _of_rows(names, uri, subset, split)
    return root, {name: names[name] for name in chosen}


def _of_model(names: Iterable[str], uri) -> list[str]:
    """Returns the files read of a model: safetensors, or else .bin, and SMALL. Raises ModelError without weights."""
    top = [name for name in names if "/" not in name and not fnmatch(name, OTHER_COPY)]
    weights = next(filter(None, ([n for n in top if any(fnmatch(n, p) for p in kind)] for kind in WEIGHTS)), None)
    if not weights:
        raise ModelError(f"{uri.id} has no weights (*.safetensors, pytorch_model*.bin). {_listed(names)}")
    return [*weights, *(name for name in top if any(fnmatch(name, pattern) for pattern in SMALL))]


def _of_rows(names: Iterable[str], uri, subset: str | None, split: str) -> list[str]:
    """Returns the data files of a split below the named directory. Raises DataError without any."""
    below = "/".join(filter(None, (uri.path_in_repo, subset)))
    within = [name for name in names if name == below or not below or name.startswith(f"{below}/")]
    if any(PurePosixPath(name).name in SAVED and str(PurePosixPath(name).parent) == (below or ".") for name in within):
        return within
    rows = {name: name.removeprefix(below) for name in within if PurePosixPath(name).suffix in READERS}
    chosen, splits = of_split(rows, split) if below not in rows else ([below], [])
    if not chosen and splits:
        raise DataError(f"{uri.id} has no files of split '{split}'{f' in {below}' * bool(below)}; found "
                        f"{', '.join(splits)}. Set split of the set.")
    if not chosen:
        raise DataError(f"{uri.id} has no {' or '.join(READERS)} file{f' in {below}' * bool(below)}, and no "
                        f"script of a dataset is run. {_listed(names)} The hub keeps a Parquet copy of most datasets: "
                        f"{DATASETS}{uri.id}@refs/convert/parquet, with subset_name.")
    return chosen


def _listing(name: str, kind: str, commit: str, root: str) -> dict[str, int]:
    """Maps file -> bytes of a repository at a commit, from the cached listing, or else from the cached files."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        return {one.path: one.size for one in get_cached_repo_tree(name, repo_type=kind, revision=commit)}
    except CachedRepoTreeNotFoundError:  # fetched by an older huggingface_hub
        return {str(p.relative_to(root)): p.stat().st_size for p in sorted(Path(root).rglob("*")) if p.is_file()}


@cache
def _parsed(value: str):
    """Splits an id into its parts. Raises DataError."""
    from huggingface_hub.utils import parse_hf_uri

    try:
        return parse_hf_uri(value if value.startswith(SCHEME) else SCHEME + value)
    except ValueError as error:
        raise DataError(f"{NO_ID} ({error}).") from error


def _called(call: Callable, uri, revision: str | None, ask: bool, **more: Any) -> Any:
    """Returns call(repository, ...) of huggingface_hub. Raises ModelError or DataError with cause and remedy."""
    from huggingface_hub.errors import HTTPError, RevisionResolutionError

    try:
        return call(uri.id, repo_type=uri.type, revision=revision, local_files_only=not ask, **more)
    except (HTTPError, RevisionResolutionError, OSError) as error:
        kind = ModelError if uri.type == "model" else DataError
        raise kind(_failure(error, uri, revision, ask)) from error


def _failure(error: Exception, uri, revision: str | None, ask: bool) -> str:
    """Explains an error of huggingface_hub, with a remedy."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, RevisionNotFoundError

    cause = error if getattr(error, "response", None) is not None else error.__cause__ or error
    status = getattr(getattr(cause, "response", None), "status_code", None)
    login, data = "log in with `hf auth login`, or set HF_TOKEN", uri.type == "dataset"
    page = f"{constants.ENDPOINT}/{'datasets/' * data}{uri.id}"
    if isinstance(cause, RevisionNotFoundError):
        return f"the repository has no branch, tag or commit '{revision}'."
    if isinstance(cause, GatedRepoError):
        return f"access must be requested: open {page}, then {login}."
    if status in (401, 403):
        return f"the hub denies access ({status}): {page} is private or does not exist. If you may read it, {login}."
    if status == 404:
        return (f"the hub has no such {uri.type} ({page}); if it is private, {login}. If a local path is meant: "
                f"nothing is at {Path(uri.id).absolute()}.")
    if status:
        return f"the hub answered with status {status}. Try again later; files that are complete are kept."
    if isinstance(error, OSError) and error.errno:
        return f"{error.strerror}: {constants.HF_HUB_CACHE}. HF_HOME may name another disk."
    why = ("is not asked" if not ask or constants.is_offline_mode() else "cannot be reached, or broke off "
           f"({type(cause).__name__}: {' '.join(str(cause).split())[:150]})")
    return (f"not complete in the cache {constants.HF_HUB_CACHE}, and the hub {why}. Where there is a network: "
            f"`hf download {uri.id}{' --repo-type dataset' * data}{f' --revision {revision}' if revision else ''}`; "
            "HF_HOME sets the location of the cache.")


def fetch(repository: str, names: Iterable[str]) -> None:
    """Fetches files of a repository at its commit, with progress on the terminal."""
    from huggingface_hub import snapshot_download

    uri = _parsed(repository)
    _called(snapshot_download, uri, uri.revision, True, allow_patterns=[glob.escape(name) for name in names])


def require_name(name: str) -> str:
    """Returns the name of a repository to push to. Raises ConfigError unless it is `org/name`."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        name = ""
    if name.count("/") != 1:
        raise ConfigError("--push needs ORG/NAME, a name of the Hugging Face hub.")
    return name


def push(name: str, directory: Path) -> str:
    """Uploads a directory as a model repository, which is made private if it is new; returns its address.

    Raises StageError where the hub refuses or cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError

    try:
        made = HfApi().create_repo(name, private=True, exist_ok=True)
        HfApi().upload_folder(repo_id=name, folder_path=directory, commit_message="Upload the model and its card")
        return str(made)
    except (HTTPError, OSError, ValueError) as error:  # ValueError: the hub refuses the card's metadata
        said = " ".join(str(error).split())[:300]
        raise StageError(f"--push {name}: {said} `hf auth login` or the variable HF_TOKEN gives the right to write. "
                         f"The directory is complete: hf upload {name} {directory}") from error
