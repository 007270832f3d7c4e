"""Every command block of README.md and docs/ runs, page by page, unless its comment says why not: `make test-docs`.

A page is one script of bash, in a project of its own whose recipe is a small countdown and whose run is finished.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from omegaconf import OmegaConf

from ouroboros.pipeline.store.files import CONF, HOME
from tests import harbor_kit, pages
from tests.toy.conftest import small

pytestmark = pytest.mark.docs
HASH = re.compile(r"\b[0-9a-f]{8}\b")
VARIABLES = os.environ | {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    "BROWSER": "true", "MODEL_PATH": "/models/qwen"}


def small_recipe() -> str:
    """The recipe `countdown` with the settings of the toy pipeline."""
    recipe = OmegaConf.load(CONF / "recipe" / "countdown.yaml")
    stages = {stage.stage_name: stage for stage in recipe.stages}
    for word in small("name=countdown", "explorer.rollout_model.engine_type=transformers", "monitor.monitor_type=none"):
        key, _, value = word.replace(".0.", "[0].").partition("=")
        stage, inside = re.fullmatch(r"(?:stages\.(\w+)\.)?(.*)", key).groups()
        if inside != "monitor":  # a group
            OmegaConf.update(stages[stage] if stage else recipe, inside, OmegaConf.create(f"value: {value}").value)
    return "# @package _global_\n" + OmegaConf.to_yaml(recipe)


def bash(script: str, place: Path) -> str:
    done = subprocess.run(["bash", "-c", script], cwd=place, env=VARIABLES, check=False, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=2400)
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> Path:
    """A project whose bare `ouro run` is finished, as the run `countdown`."""
    place = tmp_path_factory.getbasetemp()
    place = (place.parent if "PYTEST_XDIST_WORKER" in os.environ else place) / "world"
    with FileLock(f"{place}.lock"):
        if not (place / "finished").exists():
            for name in ("conf/recipe/mine.yaml", "somewhere/mine.yaml"):
                write(place, name, small_recipe())
            write(place, "conf/config.yaml", "defaults: [{recipe: mine}]\n")
            bash("ouro run", place)
            (place / "finished").touch()
    return place


def write(place: Path, name: str, text: str) -> None:
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_text(text)


def files_of(page: str, place: Path) -> None:
    """The files that a page speaks of without showing how they are made."""
    docs = HOME / "docs"
    if page in ("README.md", "running.md", "sweeps.md"):
        os.symlink(docs, place / "docs")
        os.symlink(HOME / "Snakefile", place / "Snakefile")
    if page == "README.md":
        shutil.copytree(next((place / "store").glob("rft-*")) / "model", place / "models" / "qwen")
        rows = [{"question": f"{a}={a} {b} {b}:", "answer": str(a)} for a in range(8) for b in range(8)]
        write(place, "data.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    if page in ("running.md", "migrate.md"):
        for name in ("grpo.yaml", "config.yaml", "trinity.yaml"):
            source = pages.fenced(docs / "migrate.md", "yaml")[0]
            write(place, name, source if name == "trinity.yaml" else source.replace("name: countdown", "name: words"))
    for name in ("run.sh", "run_grpo.sh"):
        if page == "migrate.md":
            shutil.copy(HOME / "tests/commands/bridges/sources/grpo_seq_balance.sh", place / name)
    if page in ("add-an-algorithm.md", "replay.md"):
        write(place, "mine/parts.py", pages.fenced(docs / "add-an-algorithm.md", "python")[0])
        write(place, "conf/algorithm/mine.yaml", pages.fenced(docs / "add-an-algorithm.md", "yaml")[0])
    if page == "tools.md":
        write(place, "moves.json", '["[move(direction=\\"left\\")]", "done"]')
    if page == "harbor.md":
        harbor_kit.write_task(place / "data/tasks/sum")


def script(blocks: list[pages.Block]) -> str:
    """A console's commands may fail; what they print is kept apart."""
    parts = ["set -e"]
    for block in blocks:
        parts.append(f"echo '=== {block.page}:{block.line}'")
        for number, command in enumerate(block.commands()):
            shown = f'"$TOP/shown-{block.line}-{number}"'
            kept = f"{{ {command}\n}} > {shown} 2>&1 || true; cat {shown}"
            parts.append(kept if block.kind == "console" else command)
    return "TOP=$PWD\n" + "\n".join(parts)


HERE = [page for page in pages.PAGES if page.name not in pages.OWN and {*pages.blocks(page)} - {*pages.left_out(page)}]


@pytest.mark.parametrize("page", HERE, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(world, tmp_path, page):
    place = tmp_path / "project"
    shutil.copytree(world, place, symlinks=True)
    files_of(page.name, place)
    run = [block for block in pages.blocks(page) if not block.reason]
    bash(script(run), place)
    for block in run:
        if block.kind == "console" and not block.replaced:
            shown = "".join(path.read_text() for path in sorted(place.glob(f"shown-{block.line}-*")))
            expected = [line for line in block.text.splitlines() if not line.startswith("$ ")]
            assert [line for line in expected if masked(line) not in masked(shown)] == []


def masked(text: str) -> str:
    return HASH.sub("#", text)
