"""The site of mkdocs.yml: no link leads nowhere, every page is in its contents, and nothing is fetched."""

import json
import re

import pytest

from ouroboros.pipeline.store.files import HOME

FETCHED = re.compile(r'(?:src|<link[^>]*href)="(?:https?:)?//')


def test_the_site_is_built_and_fetches_nothing(tmp_path, monkeypatch):
    pytest.importorskip("mkdocs")  # in the lock for CPUs only
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    monkeypatch.chdir(HOME)
    build(load_config(str(HOME / "mkdocs.yml"), strict=True, site_dir=str(tmp_path)))  # a warning raises Abort
    pages = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
    assert {"index.html", "first-hour.html", "ARCHITECTURE.html"} <= {*pages}
    assert [name for name, text in pages.items() if FETCHED.search(text)] == []
    found = json.loads((tmp_path / "search" / "search_index.json").read_text())["docs"]
    assert {"first-hour.html", "concepts.html"} <= {entry["location"] for entry in found}
