"""`ouro doctor`: asks the tables of a run the questions of pipeline/results/rules.py, and shows what they find."""

import math
import operator
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from ouroboros.pipeline.results.query import Answer, ask, require_read_only, session, short
from ouroboros.pipeline.results.rules import ONSET, RULES, Rule
from ouroboros.pipeline.results.view import View
from ouroboros.pipeline.store import files

FOUND, HEALTHY, SKIPPED = "found", "healthy", "skipped"
COLUMNS = ["rule", "verdict", "stage", "value", "limit", "evidence", "finds", "change", "sql"]


@dataclass(frozen=True)
class Verdict:
    """A rule's judgement of a stage, FOUND or HEALTHY; SKIPPED where it can judge none.

    evidence: the columns of the rule's query after the stage, the judged value first.
    """

    rule: Rule
    word: str
    stage: str | None = None
    evidence: dict[str, Any] | None = None

    @property
    def value(self) -> float | None:
        return next(iter(self.evidence.values())) if self.evidence else None

    @property
    def words(self) -> str:
        """The stage and the evidence as text: `rft: share_of_steps 1 (limit 0.5), steps 4`."""
        first, *others = (f"{name} {_text(value)}" for name, value in (self.evidence or {}).items())
        return f"{self.stage}: {', '.join([f'{first} (limit {self.rule.limit:g})', *others])}"


def of_run(run: View) -> list[Verdict]:
    """Returns the verdicts on a run, which may be running. Raises DataError for a damaged file."""
    complete = {stage.name for stage in run.stages if files.is_complete(stage.directory)}
    return examine(session([run]), complete)


def examine(connection, complete: Collection[str]) -> list[Verdict]:
    """Returns at least one verdict of each rule on the stages of a session. complete: names of complete stages."""
    ask(connection, "CREATE OR REPLACE TEMP TABLE steps AS FROM main.steps")  # a file for each step: read once
    return [verdict for rule in RULES.values() for verdict in _verdicts(rule, ask(connection, rule.sql), complete)]


def _verdicts(rule: Rule, answer: Answer, complete: Collection[str]) -> list[Verdict]:
    judged = [(stage, dict(zip(answer.columns[1:], values, strict=True))) for stage, *values in answer.rows
              if values[0] is not None and not math.isnan(values[0]) and (not rule.complete or stage in complete)]
    beyond = operator.lt if rule.under else operator.gt
    return [Verdict(rule, FOUND if beyond(next(iter(evidence.values())), rule.limit) else HEALTHY, stage, evidence)
            for stage, evidence in judged] or [Verdict(rule, SKIPPED)]


def found(verdicts: Iterable[Verdict]) -> dict[Rule, list[Verdict]]:
    """Returns the findings of each rule that has some."""
    kept = [verdict for verdict in verdicts if verdict.word == FOUND]
    return {rule: [one for one in kept if one.rule is rule] for rule in dict.fromkeys(one.rule for one in kept)}


def question(rule: Rule, run: str) -> str:
    """Returns the command that shows what a rule reads of a run. run: as a command names it."""
    return f'ouro sql "{_line(rule)}" {run}'


def onset(connection, predicate: str) -> Answer:
    """Returns the rows that may have taught a behaviour: trained on with a positive advantage up to its onset, the
    largest first.

    predicate: SQL over the columns of `experience`, true of a row that shows the behaviour. Its onset is the first step
    of a stage with half the share of such rows that any step of it has. Raises QueryError for wrong SQL.
    """
    asked = onset_question(predicate)
    require_read_only(connection, asked)
    return ask(connection, asked)


def onset_question(predicate: str) -> str:
    """Returns the SQL of `onset`."""
    return " ".join(ONSET.replace("PREDICATE", predicate).split())


def text(verdicts: list[Verdict], run: View) -> str:
    """Returns the findings as text, with a first line that counts them and the rules that judged nothing."""
    findings = found(verdicts)
    skipped = sum(verdict.word == SKIPPED for verdict in verdicts)
    lines = [f"{run.run}: {len(findings)} of {len(RULES)} rules found something, {skipped} had nothing to judge."]
    for rule, of_rule in findings.items():
        lines += ["", f"{rule.name}: {rule.finds}", *(f"  {one.words}" for one in of_rule),
                  f"  to change: {rule.change}", f"  {question(rule, run.words)}"]
    return "\n".join(lines)


def answer(verdicts: list[Verdict]) -> Answer:
    """Returns all verdicts as rows, for CSV and JSON."""
    return Answer(COLUMNS, [(rule.name, one.word, one.stage, one.value, rule.limit, one.evidence, rule.finds,
                             rule.change, _line(rule)) for one in verdicts for rule in [one.rule]])


def rows(verdicts: list[Verdict]) -> list[dict[str, Any]]:
    """Returns the same for the page of a run: a dict each."""
    return [dict(zip(COLUMNS, row, strict=True)) for row in answer(verdicts).rows]


def _line(rule: Rule) -> str:
    return " ".join(rule.sql.split())


def _text(value: Any) -> str:
    return short(value, 3) if isinstance(value, float) else repr(value) if isinstance(value, str) else str(value)
