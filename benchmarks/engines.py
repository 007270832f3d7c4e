"""Tokens/s of a rollout with vLLM and with the transformers engine, in turns, on all cores; needs no run.

    make .real; PYTHONPATH=.real python -m benchmarks.engines recipe=sums

The requests are those of a step (buffer.batch_size tasks, repeat_times responses each), with sums of numbers as tasks;
each response has --length tokens, as none ends it.
"""

import argparse
import random
import time
from pathlib import Path

from benchmarks.measurement import Measurement, spread, table
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.plan.hub import located
from ouroboros.pipeline.store import checkpoints
from ouroboros.workflows.attempts.schedule import roll_out
from ouroboros.workflows.engines.open import open_engine
from ouroboros.workflows.protocol.outcomes import Sampling
from ouroboros.workflows.protocol.prompts import load_tokenizer, prompt_text, prompt_tokens
from ouroboros.workflows.single_turn import simple_workflow

ENGINES = ("vllm", "transformers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=64, help="tokens of a response (default: 64)")
    parser.add_argument("--turns", type=int, default=3, help="of each engine, after one to warm up (default: 3)")
    parser.add_argument("overrides", nargs="+", help="recipe=NAME and more settings")
    given = parser.parse_args()
    own, engines = [f"model.max_response_tokens={given.length}", *given.overrides], {}
    for kind in ENGINES:
        config, _ = located(compose([*own, f"explorer.rollout_model.engine_type={kind}"]))
        model = checkpoints.model_directory(Path(config.model.model_path))
        engines[kind] = open_engine(model, config, [])
    tokenizer, number = load_tokenizer(model, config.model), config.algorithm.repeat_times
    draw = random.Random(config.seed)
    rates: dict[str, list[float]] = {kind: [] for kind in ENGINES}
    for turn in range(given.turns + 1):
        texts = [prompt_text(tokenizer, f"{draw.randint(2, 60)} + {draw.randint(2, 60)}",
                             config.buffer.explorer_input.system_prompt) for _ in range(config.buffer.batch_size)]
        prompts = [prompt for prompt in prompt_tokens(tokenizer, texts) for _ in range(number)]
        for kind, engine in engines.items():
            begin = time.perf_counter()
            made = roll_out(engine, [simple_workflow] * len(prompts), prompts, range(len(prompts)),
                            [Sampling.of(config.model)] * len(prompts))
            seconds = time.perf_counter() - begin
            assert {len(one.trajectory.response_tokens) for one in made} == {given.length}, "a response ended"
            if turn:
                rates[kind].append(sum(len(one.trajectory.response_tokens) for one in made) / seconds)
    said = Measurement("engines", f"Rollout of {model.name}: vLLM and the transformers engine")
    said.add(f"{len(prompts)} requests of {len(prompts[0])} tokens, {given.length} tokens each, {config.model.dtype}")
    result = {kind: spread(values) for kind, values in rates.items()}
    said.add(table(["tokens/s", "min", "median", "max"], [[kind, *one.values()] for kind, one in result.items()]))
    said.save(result | {"requests": len(prompts), "length": given.length, "turns": given.turns})


if __name__ == "__main__":
    main()
