"""Optimizer steps by transformers and torch alone, row by row: what the trainer's are compared with."""

from collections.abc import Iterable

import torch
from transformers import AutoModelForCausalLM


class PlainTorch:
    """A model with AdamW; gradients are clipped at a norm of 0.5."""

    def __init__(self, path, *heads: torch.nn.Linear):
        """heads: networks over its hidden states, which begin at zero."""
        self.model = AutoModelForCausalLM.from_pretrained(path, local_files_only=True)
        self.parameters = [*(self.model.model if heads else self.model).parameters()]
        for head in heads:
            self.parameters += map(torch.nn.init.zeros_, head.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)

    def loss(self, some: Iterable) -> torch.Tensor:
        raise NotImplementedError

    def hidden(self, tokens: list[int]) -> torch.Tensor:
        return self.model.model(torch.tensor([tokens])).last_hidden_state[0]

    def step(self, some: Iterable) -> tuple[float, float]:
        """Returns the loss and the norm of its gradient before clipping."""
        loss = self.loss(some)
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 0.5)
        self.optimizer.step()
        return loss.item(), norm.item()
