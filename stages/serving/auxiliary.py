"""Serves a chat model of explorer.auxiliary_models to the process that started this one.

What to serve is JSON on the standard input (workflows/engines/auxiliary.py); the address is a line of JSON on the
standard output.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from ouroboros.pipeline.job.activity import show_stack_on_signal
from ouroboros.pipeline.settings import schema
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.store.model_shape import read_config
from ouroboros.pipeline.store.parent import die_with_parent
from ouroboros.pipeline.store.secret_names import conceal_secrets
from ouroboros.stages.serving.server import Options, serve
from ouroboros.workflows.endpoint.dialect import MODEL

POSITIONS = 4096  # of a model whose config.json does not say how many it has
ENGINE = ("engine_type", "engine_num", "tensor_parallel_size", "gpu_memory_utilization")


def settings_of(asked: dict[str, Any]) -> Config:
    """The settings by which the model is served."""
    given = asked["settings"]
    prompt, reply = given["max_prompt_tokens"], given["max_response_tokens"]
    longest = given["max_model_len"] or (prompt + reply if prompt and reply else
                                         read_config(asked["model"]).get("max_position_embeddings") or POSITIONS)
    reply = min(reply or longest, longest - 1)
    tree = {"explorer": {"rollout_model": {"engines_per_gpu": 1, **{name: given[name] for name in ENGINE}}},
            "model": {"dtype": given["dtype"], "enable_thinking": given["enable_thinking"], "max_model_len": longest,
                      "max_prompt_tokens": min(prompt or longest, longest - 1), "max_response_tokens": reply,
                      "trust_remote_code": asked["trust_remote_code"]}}
    config, problems = schema.read(tree, Config)
    assert not problems, problems
    return config


def main() -> None:
    asked = json.loads(sys.stdin.buffer.read())
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no address

    def listening(base_url: str) -> None:
        print(json.dumps({"base_url": base_url, "model": MODEL}), file=answer, flush=True)

    serve(Path(asked["model"]), settings_of(asked), Options(
        "127.0.0.1", 0, asked["token"], None, 1, 0.0, False, is_limited=True, listening=listening))


if __name__ == "__main__":
    die_with_parent()
    conceal_secrets()
    show_stack_on_signal()
    main()
