"""Digests of definitions with all that they use: what is found, what is left out, and what does not count."""

import ast
from pathlib import Path

import pytest

from ouroboros.pipeline.plan.code import NAMED, OPTIONAL, ROWS
from ouroboros.pipeline.settings.declared import TABLES
from ouroboros.pipeline.settings.kinds import KINDS
from ouroboros.pipeline.store import definitions, files
from ouroboros.pipeline.store.definitions import closure, uses_of_file
from ouroboros.pipeline.store.files import HOME
from ouroboros.pipeline.store.locked import PROGRAM

OURS = [path for package in ("operators", "workflows", "stages") for path in sorted((HOME / package).rglob("*.py"))
        if path != PROGRAM]  # whose file enters identities as a whole
TABLE = """
from ouroboros.operators import two
from ouroboros.operators.two import g as renamed

LIMIT = 3


def f(a):
    from ouroboros.workflows.one import inner
    return renamed(a) + inner(LIMIT)


class C:
    def method(self):
        return "workflows.one.Named"

    def other(self):
        return LIMIT


TABLE = {"f": f, "h": two.h}
"""


def test_digests_are_kept_for_the_next_process_until_a_source_changes(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.pycache_prefix", str(tmp_path))
    monkeypatch.setattr("sys.dont_write_bytecode", False)

    def digest() -> str:
        for cached in (definitions._digest, definitions._known):
            cached.cache_clear()  # as in another process
        return definitions.digest_definitions(["ouroboros.operators.kl:k2"], (), HOME)

    found = digest()
    (kept,) = tmp_path.rglob("*.json")
    another = files.read_json(kept)
    another["answers"] = dict.fromkeys(another["answers"], "kept")
    files.write_json(kept, another)
    assert digest() == "kept"
    kept.write_text(kept.read_text().replace("kept", "sept"))  # damaged: computed again
    assert digest() == found
    files.write_json(kept, another)
    sources = definitions.sources(HOME)
    monkeypatch.setattr(definitions, "sources", lambda home: [*sources, Path(__file__)])  # one more
    assert digest() == found
    kept.write_text("{")
    assert digest() == found


@pytest.fixture
def home(tmp_path) -> Path:
    """Packages of three modules: operators.one uses operators.two and workflows.one."""
    for name, text in {"operators/one.py": TABLE,
                       "operators/two.py": "def g(a):\n    return a\n\n\ndef h(a):\n    pass\n",
                       "workflows/one.py": "def inner(a):\n    return a\n\n\nclass Named:\n    pass\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(("start", "stops", "found"), [
    ("operators.one:f", (), {"operators.one:LIMIT", "operators.two:g", "workflows.one:inner"}),
    ("operators.one:f", ("workflows.one",), {"operators.one:LIMIT", "operators.two:g"}),
    ("operators.one:f", ("operators.two:g",), {"operators.one:LIMIT", "workflows.one:inner"}),
    ("operators.one:C.method", (), {"workflows.one:Named"}),
    ("operators.one:C", (), {"workflows.one:Named", "operators.one:LIMIT"}),
    ("operators.one:TABLE[h]", (), {"operators.two:h"}),
    ("operators.one:TABLE[none]", (), set()),
    ("operators.two:", (), {"operators.two:g", "operators.two:h"})])
def test_a_definition_counts_with_all_that_it_uses(home, start, stops, found):
    imported = {"operators.one:renamed", "operators.one:inner"}  # names of imports add nothing of their own
    assert closure([start], stops, home).keys() - imported == found | {start}


@pytest.mark.parametrize(("text", "counts"), [
    ("def f(a):\n    return a + 2\n", True),
    ("def f(a):\n    return '# ' + a + 1\n", True),
    ("def f(a, b=1):\n    return a + 1\n", True),
    ("# why\n\ndef f(a):  # what\n        return (a\n                + 1)\n", False),
    ('"""Of a file."""\ndef f(a):\n    """Of a\n    function."""\n    return a + 1\n', False),
    ("def f(a):\n    self.log.info('%s', a)\n    log(f'{a}')\n    return a + 1\n", False),
    ("X = 1\n\n\ndef g():\n    pass\n\n\ndef f(a):\n    return a + 1\n", False)])
def test_comments_layout_docstrings_log_lines_and_other_definitions_do_not_count(home, text, counts):
    def digest(content: str) -> dict[str, str]:
        (home / "operators" / "two.py").write_text(content)
        return closure(["operators.two:f"], (), home)

    assert (digest("def f(a):\n    return a + 1\n") != digest(text)) == counts


def test_the_message_of_an_exception_does_not_count_and_its_type_does(home):
    def digest(line: str) -> dict[str, str]:
        (home / "operators" / "two.py").write_text(f"def f(a):\n    {line}\n")
        return closure(["operators.two:f"], (), home)

    assert digest("raise ValueError('a') from a") == digest("raise ValueError(f'other {a}')")
    assert digest("raise ValueError('a')") != digest("raise KeyError('a')")


def test_a_module_of_the_user_counts_with_the_definitions_of_ours_that_it_uses(tmp_path):
    (tmp_path / "mine.py").write_text("from ouroboros.operators.losses import clipped\n"
                                      "from ouroboros.operators.kl import k1, k2\n"
                                      "\n\ndef loss(logprobs):\n    return clipped.Ppo()(logprobs) + k2(logprobs)\n")
    assert set(uses_of_file(tmp_path / "mine.py", "mine")) == {"operators.losses.clipped:Ppo", "operators.kl:k2"}


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(HOME)))
def test_our_modules_consist_of_definitions(path):
    """Other statements at the top level would enter no digest; of `if` there is only that of a command."""
    *body, last = ast.parse(path.read_text()).body
    body += [] if isinstance(last, ast.If) else [last]
    definitions = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign,
                   ast.AnnAssign)
    assert all(isinstance(one, definitions) or isinstance(one.value, ast.Constant) for one in body)


@pytest.mark.parametrize("key", sorted(key for key in set(NAMED) & set(TABLES) if NAMED[key]))
def test_every_name_of_a_setting_is_found_in_a_table(key):
    for name in TABLES[key]:
        found = [closure([f"{table}[{name}]"], (), HOME) for table in NAMED[key]]
        assert any(len(one) > 1 for one in found), name


def test_every_entry_exists_and_every_optional_part_is_used_by_some_stage():
    starts = {*(entry for entries in (*(kind.entries for kind in KINDS.values()), *ROWS.values()) for entry in entries),
              *(table for tables in NAMED.values() for table in tables)}
    found = closure(starts, (), HOME)
    assert {part for part in OPTIONAL if not any(f"{one}:".startswith(f"{part}:") for one in found)} == set()
