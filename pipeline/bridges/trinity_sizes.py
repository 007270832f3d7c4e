"""What follows from several numbers of a Trinity-RFT configuration: GPUs of the trainer, lengths, tokens of a batch."""

from typing import Any

from pipeline.bridges.translation import SETTINGS, Entry, Path, Translation

ITS_DEFAULT = "Trinity-RFT's default"


def gpus(made: Translation) -> None:
    """The trainer's ranks: the GPUs that engines and reward models leave. The original counts them so, and shards."""
    if made.entries.get(("trainer", "offload_param"), Entry(False)).value is True:
        made.choose(("trainer", "zero_stage"), 3, f"{ITS_DEFAULT}, fsdp")
    mode = made.entries.get(("mode",), Entry("both")).value
    each, explored = _number(made, None, "cluster", "gpu_per_node"), _explored(made)
    if mode not in ("both", "train") or not each or explored is None:
        return
    left = each - (explored if mode == "both" else 0)
    if left > 1:
        leave = "the engine leaves" if ("explorer", "auxiliary_models", 0) not in _models(made) else (
            "engines and auxiliary models leave")
        made.choose(("trainer", "ranks"), left, f"the GPUs that {leave}")
        made.choose(("trainer", "zero_stage"), 3, f"{ITS_DEFAULT}, fsdp")
        made.chosen.append(f"trainer.ranks={left}: of {each} GPUs, those that {leave}, as in Trinity-"
                           "RFT. A train batch need not divide by them: micro-batches are token budgets.")


def _explored(made: Translation) -> int | None:
    """GPUs of the engines and of the auxiliary models, which score; None where a number is not known."""
    taken = 0
    for model in [("explorer", "rollout_model"), *_models(made)]:
        copies, split = (_number(made, 1, *model, name) for name in ("engine_num", "tensor_parallel_size"))
        if copies is None or split is None:
            return None
        taken += copies * split
    return taken


def _models(made: Translation) -> list[Path]:
    """Where the auxiliary models stand."""
    return sorted({path[:3] for path in made.entries if path[:2] == ("explorer", "auxiliary_models")}, key=str)


def _number(made: Translation, default: int | None, *path: Any) -> int | None:
    value = made.entries.get(path, Entry(default)).value
    return value if isinstance(value, int) and value > 0 else None


def lengths(made: Translation) -> None:
    """The prompt's and the response's share of max_model_len, as the original fills in what is missing of them."""
    whole, prompt, response = (made.entries.get(("model", name), Entry(None)).value
                               for name in ("max_model_len", "max_prompt_tokens", "max_response_tokens"))
    if not isinstance(whole, int) or whole < 2:
        return
    if prompt is None and response is None:
        prompt = whole // 2
        made.choose(("model", "max_prompt_tokens"), prompt, "half of max_model_len, as in Trinity-RFT")
    if response is None and isinstance(prompt, int):
        made.choose(("model", "max_response_tokens"), max(whole - prompt, 1), "the rest of max_model_len")
    if prompt is None and isinstance(response, int):
        made.choose(("model", "max_prompt_tokens"), max(whole - response, 1), "the rest of max_model_len")


def budget(made: Translation) -> None:
    """At least the longest sequence: twice that, the original's micro-batch, where the source is silent."""
    limits = {name: made.entries[("model", name)].value for name in ("max_model_len", "max_prompt_tokens",
                                                                    "max_response_tokens")
              if ("model", name) in made.entries}
    limits = {name: value for name, value in limits.items() if isinstance(value, int)}
    parts = [limits.get("max_prompt_tokens"), limits.get("max_response_tokens")]
    longest = limits.get("max_model_len") or (sum(parts) if None not in parts else 0)
    path = ("trainer", "max_token_len_per_gpu")
    given = made.entries.get(path)
    if given and isinstance(given.value, int) and given.value < longest:
        made.entries[path] = Entry(longest, f"{given.value} there, raised to the longest sequence")
        made.chosen.append(f"trainer.max_token_len_per_gpu={longest}: a sequence is not cut, so the budget holds the "
                           f"longest one; {given.value} there.")
    elif not given and longest > SETTINGS["trainer.max_token_len_per_gpu"].default:
        made.choose(path, 2 * longest,
                    f"{ITS_DEFAULT}: two sequences of the greatest length")
