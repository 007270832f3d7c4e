"""Attempts that advance on their own, compared with rounds: one engine call for a turn of all, then all their tools.

rounds  `LLM.generate` for every attempt that waits, then their tools, all at once: a round takes as long as its slowest
        tool. This is how the explorer ran attempts before, with tools that cost it no more than the slowest
ours    what stages/explore.py calls: roll_out; an attempt of several turns has its own process

Single turns: 512 attempts, alternating; ours at least 0.97 of rounds. Several turns: 64 attempts of 8 turns with a tool
of 0.1 to 3 s after each but the last; exponential (mean 0.5 s, cut to this range) and uniform seconds. The slowest
attempt's own tools bound what any schedule can reach: with uniform seconds less than 2 times. Limit: with exponential
ones at least 2. Both sides must return the same tokens. Model and settings are those at the start of the run's rft
stage. On a busy machine set OMP_NUM_THREADS=1, or threads that wait for one another dominate.
"""

import asyncio
import random
import time

from benchmarks.measurement import Measurement, parser, spread, table
from benchmarks.rollout import opened, prompts_of
from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.engines.vllm_engine import VllmEngine, _reply
from ouroboros.workflows.protocol.engine import Request
from ouroboros.workflows.protocol.outcomes import Sampling
from ouroboros.workflows.protocol.seeds import request_seed
from ouroboros.workflows.protocol.trajectory import Trajectory
from ouroboros.workflows.single_turn import load_workflow, simple_workflow

SINGLE, SEVERAL, TURNS = 512, 64, 8
NEEDED_SINGLE, NEEDED_SEVERAL = 0.97, 2.0
SHORTEST, LONGEST = 0.1, 3.0
TOOLS = {
    "exponential": lambda draw: min(max(draw.expovariate(2.0), SHORTEST), LONGEST),
    "uniform": lambda draw: draw.uniform(SHORTEST, LONGEST),
}


def seconds_of(kind: str, attempt: int, turn: int) -> float:
    """How long the tool of an attempt takes after a turn."""
    return TOOLS[kind](random.Random(f"{kind}/{attempt}/{turn}"))


async def agent(prompt: list[int], model, attempt: int, kind: str) -> list[Trajectory]:
    """Asks the same TURNS times, with a tool in between."""
    rows = []
    for turn in range(TURNS):
        reply = await model(prompt)
        rows.append(Trajectory(prompt, reply.tokens, reply.logprobs, [1] * len(reply.tokens), reply.finish_reason))
        if turn + 1 < TURNS:
            await asyncio.sleep(seconds_of(kind, attempt, turn))
    return rows


def rounds(engine: VllmEngine, prompts: list, seeds: list[int], sampling: Sampling, kind: str | None) -> list:
    """The tokens of every attempt, turn by turn. kind: of tools; None: single turns."""
    found, turns = [], TURNS if kind else 1
    for turn in range(turns):
        asked = [Request(prompt, sampling.max_response_tokens, sampling.temperature, sampling.top_p, sampling.top_k,
                         request_seed(seed, turn, 0) if turn else seed)
                 for prompt, seed in zip(prompts, seeds, strict=True)]
        outputs = engine._llm.generate([{"prompt_token_ids": r.prompt_tokens} for r in asked],
                                       [engine._parameters(r) for r in asked], use_tqdm=False)
        replies = [_reply(output.outputs[0], []) for output in outputs]
        found.append([reply.tokens for reply in replies])
        if turn + 1 < turns:
            time.sleep(max(seconds_of(kind, attempt, turn) for attempt in range(len(prompts))))
    return list(map(list, zip(*found, strict=True)))


def ours(engine: VllmEngine, prompts: list, seeds: list[int], sampling: Sampling, kind: str | None) -> list:
    """The same by the explorer's path."""
    workflows = [load_workflow("benchmarks.scheduling:agent", {"attempt": attempt, "kind": kind})
                 for attempt in range(len(prompts))] if kind else [simple_workflow] * len(prompts)
    outcomes = roll_out(engine, workflows, prompts, seeds, [sampling] * len(prompts))
    return [[done.response_tokens for _, done, _ in outcome.turns] for outcome in outcomes]


SIDES = (("rounds", rounds), ("ours", ours))


def measure(engine: VllmEngine, prompts: list, config, kind: str | None, repetitions: int) -> dict[str, list[float]]:
    """Seconds of every repetition, by side; the order changes from one to the next. Single turns have a warm-up."""
    sampling, seconds = Sampling.of(config.model), {"rounds": [], "ours": []}
    for repetition in range(0 if kind else -1, repetitions):
        seeds, answers = [request_seed(config.seed, repetition + 1, slot) for slot in range(len(prompts))], {}
        for name, side in SIDES if repetition % 2 else reversed(SIDES):
            begin = time.perf_counter()
            answers[name] = side(engine, prompts, seeds, sampling, kind)
            if repetition >= 0:
                seconds[name].append(time.perf_counter() - begin)
        assert answers["rounds"] == answers["ours"], "the two sides answered the same requests differently"
    return seconds


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--repetitions", type=int, default=20, help="of single turns, on each side (default: 20)")
    given = arguments.parse_args()
    spec, config, _, tokenizer, engine = opened(given)
    said = Measurement("scheduling", "Attempts that advance on their own, compared with rounds")
    known = prompts_of(spec, config, tokenizer)
    measured = {"single": measure(engine, (known * SINGLE)[:SINGLE], config, None, given.repetitions)}
    measured |= {kind: measure(engine, (known * SEVERAL)[:SEVERAL], config, kind, 2) for kind in TOOLS}
    engine.close()
    result, rows = {}, []
    for kind, seconds in measured.items():
        ratio = spread([a / b for a, b in zip(seconds["rounds"], seconds["ours"], strict=True)])
        bound = None if kind == "single" else max(
            sum(seconds_of(kind, attempt, turn) for turn in range(TURNS - 1)) for attempt in range(SEVERAL))
        result[kind] = {side: spread(values) for side, values in seconds.items()} | {"ratio": ratio, "bound": bound}
        rows.append([kind, *(result[kind][side]["median"] for side in ("rounds", "ours")), *ratio.values(), bound])
    held = (result["single"]["ratio"]["median"] >= NEEDED_SINGLE
            and result["exponential"]["ratio"]["median"] >= NEEDED_SEVERAL)
    said.add(f"single: {SINGLE} attempts, {given.repetitions} repetitions in turns\nothers: {SEVERAL} attempts of "
             f"{TURNS} turns, 2 repetitions in turns, by the distribution of their tools' seconds")
    said.add(table(["", "rounds, s", "ours, s", "rounds/ours min", "median", "max", "tools of the slowest, s"], rows))
    said.add(f"needed: median ratio of single at least {NEEDED_SINGLE}, of exponential at least {NEEDED_SEVERAL}: "
             f"{'holds' if held else 'MISSED'}")
    said.save(result | {"repetitions": given.repetitions, "holds": held})


if __name__ == "__main__":
    main()
