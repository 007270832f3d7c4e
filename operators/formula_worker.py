"""A process that compares formulas with math_verify, one pair at a time, within limits of CPU time and memory.

    python -m ouroboros.operators.formula_worker

Started by operators/formulas.py. Each line of its input is JSON [found, truth, CPU seconds, evaluates]; each line of
its output is EQUAL, DIFFERENT, UNREADABLE or LIMIT, after one line "ready". Beyond the CPU time the kernel ends the
process (SIGPROF), also in the middle of a loop in C, which no handler could end.
"""

import json
import logging
import os
import resource
import signal
import sys
from typing import Any

from ouroboros.pipeline.store.parent import die_with_parent

EQUAL, DIFFERENT, UNREADABLE, LIMIT = "equal", "different", "unreadable", "limit"
MEMORY = 2**30  # bytes of addresses for one pair
NEARLY = 0.9  # share of them: math_verify takes a lack of memory for an answer that it cannot read
PAGE = resource.getpagesize()


def compare(found: str, truth: str, evaluates: bool = True) -> str:
    """The verdict of math_verify on two formulas, without `$`. evaluates: whether the first may leave an operation to
    carry out where the second, without variables, leaves none."""
    from latex2sympy2_extended.math_normalization import NormalizationConfig
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    # units=False: it would read x+2ab as x+2; operators/numerals.py takes units off
    formulas = LatexExtractionConfig(normalization_config=NormalizationConfig(
        units=False, malformed_operators=True, nits=True))
    gold, answer = (parse(f"${text}$", [formulas, ExprExtractionConfig()], parsing_timeout=None)
                    for text in (truth, found))
    if not gold:
        return UNREADABLE
    is_equal = verify(gold, answer, timeout_seconds=None,
                      allow_set_relation_comp=True)  # x < 3 is the interval of these numbers
    judged = is_equal and not evaluates and not gold[0].free_symbols and not _is_left(gold[0])
    return EQUAL if is_equal and not (judged and _is_left(getattr(answer[0], "rhs", answer[0]))) else DIFFERENT


def _is_left(formula: Any) -> bool:
    """Whether a formula of sympy, as it is written, leaves an operation on numbers to carry out: 1 + 1, 2 * 3, 2^3
    (10^3 is final), the root of 12, terms that add up, a function whose value has none."""
    import sympy

    parts = formula if isinstance(formula, sympy.MatrixBase) else formula.args
    if any(map(_is_left, parts)) or not getattr(formula, "is_number", False) or not parts:
        return any(map(_is_left, parts))
    if formula.is_Mul:
        factors = [one for part in parts for one in sympy.Mul.make_args(part) if abs(one) != 1]
        numbers, powers = [one for one in factors if one.is_Rational], [
            one for one in factors if one.is_Pow and one.base.is_Rational]
        below, roots = [one.base for one in powers if one.exp == -1], [one for one in powers if one.exp != -1]
        is_whole = bool(numbers and below) and numbers[0] % below[0] == 0
        return is_whole or max(map(len, (numbers, below, roots))) > 1
    done = formula.doit()
    if formula.is_Add:
        return len(sympy.Add.make_args(done)) < len(parts)
    if not formula.is_Pow:
        return not done.has(type(formula))
    base, exponent = formula.args
    is_final = exponent == -1 or base in (-1, 10) or not (base.is_Integer or exponent.is_Integer)
    return not is_final and not (done.is_Pow and done.base == base)


def within_limits(found: str, truth: str, seconds: float, evaluates: bool = True) -> str:
    """The verdict, or LIMIT where the memory did not suffice."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * PAGE
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = used + MEMORY if hard == resource.RLIM_INFINITY else min(used + MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        verdict = compare(found, truth, evaluates)
    except MemoryError:
        return LIMIT
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return LIMIT if verdict != EQUAL and _peak() > used + NEARLY * MEMORY else verdict


def _peak() -> int:
    """The most addresses that this process has had, bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmPeak"))


def main() -> None:
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # sent to the whole group; the parent's end is ours
        signal.signal(number, signal.SIG_IGN)
    answers, nowhere = os.fdopen(os.dup(1), "w", buffering=1), os.open(os.devnull, os.O_WRONLY)
    logging.disable(logging.CRITICAL)
    compare("x+1", "1+x")  # imports, and builds the tables of the grammar
    for descriptor in (1, 2):  # nobody reads what the grammar and sympy print
        os.dup2(nowhere, descriptor)
    print("ready", file=answers)
    for line in sys.stdin:
        verdict = within_limits(*json.loads(line))
        print(verdict, file=answers)
        if verdict == LIMIT:  # memory is spent, and caches may be broken
            break


if __name__ == "__main__":
    main()
