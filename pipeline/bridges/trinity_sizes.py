"""What follows from several settings of a Trinity-RFT configuration: ends of rates, lengths, tokens of a batch."""

from typing import Any

from pipeline.bridges.translation import SETTINGS, Entry, Path, Translation, places
from pipeline.settings.algorithms import MIXED_LOSSES

ITS_DEFAULT = "Trinity-RFT's default"


def least_rates(made: Translation, values: dict[Path, Any]) -> None:
    """The original's end of a cosine, beside each that no end is given for. values: of the source."""
    cosines = [path for path, entry in made.entries.items()
               if path[-1] == "lr_scheduler_type" and entry.value == "cosine"]
    for path in sorted(cosines, key=str):  # that of all before those of stages, which have it too
        end = (*path[:-1], "min_lr_ratio")
        if not any(place in made.entries or place in values for place in places(end)):
            made.choose(end, 0.01, ITS_DEFAULT)


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
        if response >= whole:
            cut = f"{response} there, less one token for the prompt"
            made.entries[("model", "max_response_tokens")] = Entry(whole - 1, cut)
        made.choose(("model", "max_prompt_tokens"), max(whole - response, 1), "the rest of max_model_len")
    if isinstance(prompt, int) and isinstance(response, int) and prompt + response > whole:
        made.withdraw(("model", "max_model_len"), "less than max_prompt_tokens and max_response_tokens together, "
                      f"which are {prompt + response}; left out, it is that. (Trinity-RFT refuses it.)")


def train_batch(made: Translation) -> None:
    """Takes out a train batch that does not go into the rollouts of explorer steps, nor they into it."""
    path = ("buffer", "train_batch_size")
    batch, rows, times, kind = (made.entries.get(one, Entry(None)).value for one in (
        path, ("buffer", "batch_size"), ("algorithm", "repeat_times"), ("algorithm", "algorithm_type")))
    if not all(isinstance(number, int) and number > 0 for number in (batch, rows, times)) or kind in MIXED_LOSSES:
        return
    if (rows * times) % batch and batch % (rows * times):
        made.withdraw(path, f"the {rows * times} rollouts of an explorer step (batch_size x repeat_times) do not come "
                            f"out in batches of {batch}; left out, a train batch is those {rows * times}.")


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
