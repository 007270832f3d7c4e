"""An engine for tests: answers from a script instead of a model.

`explorer.rollout_model.extra_engine_args.script` maps a prompt's token ids, joined by spaces, to the ids it answers;
`default` is used for all other prompts. Log-probs are -1, and weights are accepted unread. Not usable for real runs:
the probe of the first weights fails, because its log-probs differ from the trainer's.
"""

from collections.abc import Sequence
from pathlib import Path

from ouroboros.workflows.protocol.engine import BatchEngine, Reply, Request


class ScriptedEngine(BatchEngine):
    """Answers from a table."""

    version = "scripted"

    def __init__(self, model: Path, config, end_tokens: list[int], sleeps: bool, adapter=None):
        super().__init__()
        arguments = config.explorer.rollout_model.extra_engine_args
        self.script = arguments.get("script", {})
        self.default = arguments.get("default", end_tokens[:1])
        self.ends = end_tokens

    def answer(self, requests: Sequence[Request]) -> list[Reply]:
        replies = []
        for request in requests:
            tokens = self.script.get(" ".join(map(str, request.prompt_tokens)), self.default)[: request.max_tokens]
            reason = "stop" if tokens and tokens[-1] in self.ends else "length"
            replies.append(Reply(list(tokens), [-1.0] * len(tokens), reason))
        return replies

    def score(self, sequences: Sequence[list[int]]) -> list[list[float]]:
        return [[-1.0] * (len(tokens) - 1) for tokens in sequences]

    def probe(self, sequence: list[int]) -> list[list[float]]:
        return self.score([sequence])

    def likeliest(self, sequence: list[int], temperature: float) -> list[dict[int, float]]:
        return [dict.fromkeys(self.default[:1], -1.0)]

    def load_weights(self, directory: Path) -> None:
        """Does nothing: there are no weights."""

    def sleep(self) -> None:
        """Does nothing: no memory to free."""

    def wake(self) -> None:
        """Does nothing: no memory to allocate."""

    def close(self) -> None:
        """Does nothing: no process to end."""
