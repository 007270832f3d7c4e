"""Rules for stages whose tasks a server of OpenAI's interface answers."""

from collections.abc import Iterator

from ouroboros.pipeline.settings.data import eval_places
from ouroboros.pipeline.settings.remote import UNTOLD
from ouroboros.pipeline.store.errors import Problem


def server(c) -> Iterator[Problem]:
    """A server of OpenAI's interface answers tasks, and is not trained."""
    model = c.explorer.rollout_model
    if model.engine_type != "openai":
        return
    if not c.asks_server:
        yield Problem("explorer.rollout_model.engine_type", "a server gives neither the token ids nor the log-probs "
                      "that training needs.", "Set vllm or transformers; openai goes with mode=bench and "
                      "mode=explore.", found="openai")
    for name in ("base_url", "model_name"):
        if not ((given := getattr(model.external, name)) or "").strip():
            yield Problem(f"explorer.rollout_model.external.{name}", "needed with engine_type=openai.", found=given)
    if c.kind.explores:  # truncated sampling is refused there, whatever the server knows of it
        return
    for place, one in [("model", c.model), *((f"buffer.explorer_input.{at}.rollout_args", one.rollout_args)
                                             for at, one in eval_places(c.buffer.explorer_input))]:
        for name, off in UNTOLD.items():
            if (given := getattr(one, name)) not in (None, off):
                yield Problem(f"{place}.{name}", "is no sampling parameter of OpenAI's interface, so a server would "
                              "not be told of it.", f"Leave it out, or set {off:g}.", found=given)
