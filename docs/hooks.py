"""Hooks of mkdocs: pages and files outside docs/ that the pages link to are part of the site, at their own paths.

README.md is the first page. A link to a folder of the repository becomes plain text: the site has none.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File, Files

LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:)([^)\s#]+)(#[^)\s]*)?\)")
FIRST = ("README.md", "AGENTS.md")  # from here on, links are followed


def place(path: str) -> str:
    """Returns where the site has a file of the repository."""
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def source(page: str) -> str:
    """Returns the path in the repository of a page of the site."""
    here = {place(path): path for path in FIRST}.get(page, page)
    return here if Path(here).exists() else f"docs/{page}"


def target(here: str, link: str) -> str:
    """Returns the path in the repository that a link of the file `here` leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(here), link))


def on_files(files: Files, config) -> Files:
    """Adds the files that pages link to, and the pages among them in turn."""
    waiting, seen = [*FIRST, *(f"docs/{file.src_uri}" for file in files.documentation_pages())], set()
    while waiting:
        path = waiting.pop()
        if path in seen or not Path(path).is_file():
            continue  # what is not there is mkdocs' to report
        seen.add(path)
        if not path.startswith("docs/"):
            files.append(File.generated(config, place(path), abs_src_path=str(Path(path).absolute())))
        if path.endswith(".md"):
            waiting += [target(path, link) for _, link, _ in LINK.findall(Path(path).read_text(encoding="utf-8"))]
    return files


def on_page_markdown(markdown: str, page, **_) -> str:
    """Returns the text of a page with its links as the site needs them."""
    here = source(page.file.src_uri)

    def moved(link: re.Match) -> str:
        text, path, anchor = link.groups()
        there = target(here, path)
        if Path(there).is_dir():
            return text
        return f"[{text}]({posixpath.relpath(place(there), posixpath.dirname(page.file.src_uri) or '.')}{anchor or ''})"

    return LINK.sub(moved, markdown)
