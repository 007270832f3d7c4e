"""Renders the HTML pages of runs and sweeps, and model cards, from pipeline/templates/.

All values of an HTML page are escaped except charts. No script of a page runs but its own, whatever a text holds.
"""

import base64
import hashlib
from typing import Any

from ouroboros.pipeline.job.progress import duration, is_reward, leak_words, task_words, thousands
from ouroboros.pipeline.results.query import plain, short
from ouroboros.pipeline.settings.explorer import because_of_time
from ouroboros.pipeline.store import files

LONGEST_TEXT = 1000  # characters of a text to show: the first and the last ones


def render(template: str, content: dict[str, Any]) -> str:
    """Returns the page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    is_text = template.endswith(".md.j2")
    environment = Environment(loader=FileSystemLoader(files.TEMPLATES), autoescape=not is_text,
                              undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
                              keep_trailing_newline=is_text)
    environment.filters |= {"duration": duration, "thousands": thousands, "cell": _cell, "cut": _cut, "digest": _digest,
                            "short": short, "task_words": task_words, "leak_words": leak_words,
                            "because_of_time": because_of_time}
    environment.tests["reward"] = is_reward
    environment.globals["longest_text"] = LONGEST_TEXT
    return environment.get_template(template).render(content)


def _cell(value: Any) -> str:
    """Formats a value of an SQL result, a setting or a fact of a stage."""
    if value is None:
        return "–"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(one)}" for key, one in value.items()) or "–"
    if isinstance(value, (list, tuple)):
        return " ".join(map(_cell, value)) or "–"
    return short(value) if isinstance(value, float) else str(plain(value))


def _cut(text: str) -> str:
    more = len(text) - LONGEST_TEXT
    half = LONGEST_TEXT // 2  # a response ends with its answer
    return text if more <= 0 else f"{text[:half]}\n… {more} more characters …\n{text[-half:]}"


def _digest(script: str) -> str:
    """Returns the sha256 of a script as a Content-Security-Policy names it."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
