"""How well a policy plays Kuhn poker (recipe kuhn), by its probabilities in the twelve information sets.

    python -m benchmarks.kuhn runs/ouroboros/kuhn/stages/rft/model [DIRECTORY ...]

Prints, for each model directory, what a best response wins from the policy, on average over both seats, and what the
first seat wins when the policy plays both, next to those of uniform play and of an equilibrium.
"""

import sys
from pathlib import Path

import torch
from tabulate import tabulate
from transformers import AutoModelForCausalLM

from ouroboros.operators.worlds.kuhn import SETS, VALUE, exploitability, value
from ouroboros.workflows.protocol.prompts import conversation_text, load_tokenizer, prompt_tokens

KNOWN = [known for sets in SETS for known in sets]


def strategy(directory: Path) -> dict[str, float]:
    """Probability at temperature 1 that a reply begins with the card and b, in each information set."""
    tokenizer = load_tokenizer(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)

    def bets(known: str) -> float:
        asked = conversation_text(tokenizer, [{"role": "user", "content": known}], None)
        prompt, reply = prompt_tokens(tokenizer, [asked, known[-1] + "b"])
        with torch.no_grad():
            found = model(torch.tensor([prompt + reply])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        return float(found.gather(1, torch.tensor(reply)[:, None]).sum().exp())

    return {known: bets(known) for known in KNOWN}


def main() -> None:
    played = {"uniform play": dict.fromkeys(KNOWN, 0.5), **{one: strategy(Path(one)) for one in sys.argv[1:]}}
    rows = [[name, exploitability(one), value(one)] for name, one in played.items()]
    print(tabulate([*rows, ["equilibrium", 0, VALUE]], ("policy", "exploitability", "value of the first seat"),
                   floatfmt=".3f"))


if __name__ == "__main__":
    main()
