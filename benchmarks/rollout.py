"""Rollout speed: plain `LLM.generate` against the explorer's path, alternating on one engine.

bare   the vLLM engine object's `generate`, with prompts and SamplingParams prepared in advance
ours   what stages/explore.py calls: roll_out on VllmEngine, from token ids to outcomes

Both answer the same prompts with the same seeds and are checked to return the same tokens. Model and settings are those
at the start of the run's rft stage. Limit: ours at least 0.90 of bare.
"""

import time
from pathlib import Path

from benchmarks.measurement import Measurement, open_run, parser, spread, stage_of, table
from ouroboros.pipeline.job.selection import tasks_of_step
from ouroboros.pipeline.job.tasksets import read_train
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.store import checkpoints, files
from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.engines.vllm_engine import VllmEngine
from ouroboros.workflows.protocol.outcomes import Sampling
from ouroboros.workflows.protocol.prompts import end_tokens, load_tokenizer, prompt_tokens, task_texts
from ouroboros.workflows.protocol.seeds import request_seed
from ouroboros.workflows.single_turn import simple_workflow

NEEDED = 0.90


def prompts_of(spec: dict, config, tokenizer) -> list[list[int]]:
    """Token ids of the training prompts."""
    sets = read_train(Path(spec["inputs"]["tasks"]), config.buffer.explorer_input)
    return prompt_tokens(tokenizer, task_texts(tokenizer, [task for _, tasks in sets for task in tasks], config))


def bare(engine: VllmEngine, prompts: list[list[int]], seeds: list[int], config) -> tuple[float, list[list[int]]]:
    """Seconds and tokens of one `LLM.generate`."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    model = config.model
    sampling = [
        SamplingParams(
            temperature=model.temperature, top_p=model.top_p, top_k=model.top_k, max_tokens=model.max_response_tokens,
            seed=seed, logprobs=1, flat_logprobs=True, detokenize=False, stop_token_ids=engine._stop,
            output_kind=RequestOutputKind.FINAL_ONLY,
        ) for seed in seeds
    ]
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    begin = time.perf_counter()
    outputs = engine._llm.generate(asked, sampling, use_tqdm=False)
    return time.perf_counter() - begin, [list(output.outputs[0].token_ids) for output in outputs]


def ours(engine: VllmEngine, prompts: list[list[int]], seeds: list[int], config) -> tuple[float, list[list[int]]]:
    """Seconds and tokens of one `roll_out`."""
    sampling = [Sampling.of(config.model)] * len(prompts)
    begin = time.perf_counter()
    outcomes = roll_out(engine, [simple_workflow] * len(prompts), prompts, seeds, sampling)
    return time.perf_counter() - begin, [outcome.trajectory.response_tokens for outcome in outcomes]


SIDES = (("bare", bare), ("ours", ours))


def measure(engine: VllmEngine, prompts: list[list[int]], config, repetitions: int) -> dict[str, list[float]]:
    """Tokens/s of every repetition, by side, after one warm-up repetition."""
    rates: dict[str, list[float]] = {"bare": [], "ours": []}
    for step in range(repetitions + 1):
        chosen = tasks_of_step(len(prompts), config.buffer.batch_size, step + 1, config.seed)
        asked = [prompts[task] for task in chosen for _ in range(config.algorithm.repeat_times)]
        seeds = [request_seed(config.seed, step, slot) for slot in range(len(asked))]
        answers = {}
        for name, side in SIDES if step % 2 else reversed(SIDES):  # alternate: the second one benefits from warm caches
            seconds, answers[name] = side(engine, asked, seeds, config)
            if step:
                rates[name].append(sum(map(len, answers[name])) / seconds)
        assert answers["bare"] == answers["ours"], "the two sides answered the same requests differently"
    return rates


def opened(given) -> tuple:
    """Returns stage.json of a run's rft stage, its settings, and the model, tokenizer and engine it begins with."""
    spec = files.read_json(stage_of(open_run(given), "rft").directory / "stage.json")
    config = Config.partial(spec["config"])
    model = checkpoints.model_directory(given.root / spec["inputs"]["model"])
    spec["inputs"]["tasks"] = str(given.root / spec["inputs"]["tasks"])
    tokenizer = load_tokenizer(model, config.model)
    return spec, config, model, tokenizer, VllmEngine(model, config, end_tokens(tokenizer, model), False)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--repetitions", type=int, default=20, help="of bare and ours in turn (default: 20)")
    given = arguments.parse_args()
    spec, config, model, tokenizer, engine = opened(given)
    said = Measurement("rollout", "Rollout: bare LLM.generate against the explorer's path")
    rates = measure(engine, prompts_of(spec, config, tokenizer), config, given.repetitions)
    engine.close()
    ratios = [b / a for a, b in zip(rates["bare"], rates["ours"], strict=True)]
    result = {name: spread(values) for name, values in rates.items()} | {"ratio": spread(ratios)}
    held = result["ratio"]["median"] >= NEEDED
    rows = [["bare LLM.generate, tokens/s", *result["bare"].values()],
            ["roll_out, tokens/s", *result["ours"].values()],
            ["ours / bare, pair by pair", *result["ratio"].values()]]
    count = config.buffer.batch_size * config.algorithm.repeat_times
    said.add(f"{given.repetitions} repetitions in turns, {count} requests each, model of {model.parent.name}")
    said.add(table(["", "min", "median", "max"], rows))
    said.add(f"needed: median ratio at least {NEEDED:.2f}: {'holds' if held else 'MISSED'}")
    said.save(result | {"repetitions": given.repetitions, "requests": count, "needed": NEEDED, "holds": held})


if __name__ == "__main__":
    main()
