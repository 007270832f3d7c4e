"""A reward model in training: a decoder with a linear head, which scores the last token of a conversation.

Its checkpoints hold an ordinary sequence classifier of transformers, which takes its score at the last token that is no
padding. The head begins at zero, unless the stage begins with such a classifier: the first loss is log 2.
"""

import json
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ouroboros.pipeline.settings.config import longest_sequence
from ouroboros.pipeline.store.checkpoints import WEIGHTS
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.pipeline.store.model_shape import CONFIG, is_classifier
from ouroboros.stages.learner.actor import Actor
from ouroboros.stages.learner.critic import ValueModel
from ouroboros.stages.learner.engine import policy
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.budget import Budget
from ouroboros.stages.learner.engine.packing import MicroBatch
from ouroboros.stages.learner.engine.process import Process
from ouroboros.stages.learner.engine.snapshot import Part, Written, write_weights
from ouroboros.stages.learner.engine.way import decoder
from ouroboros.stages.learner.engine.zero import ZeroEngine
from ouroboros.stages.learner.objective import Objective
from ouroboros.workflows.protocol.hugging_face import empty_classifier, scalar_classifier


class Scorer(Actor):
    """One rank of a reward model. A row's action token is the one behind its conversation: its state is scored."""

    output = "scores"

    def __init__(self, model_path: Path, config, process: Process, padding: int, engine: type[ZeroEngine] = ZeroEngine):
        """config, engine: as of Actor. model_path: of a causal language model, or of a classifier with one label.
        padding: id of the padding token, which the checkpoints say. Raises ModelError without such a classifier."""
        self.process, self.budget, self.graphs = process, Budget(config.trainer.max_token_len_per_gpu), 0
        self.adapter, self.initial, self.routed = None, None, False
        dtype = policy.resolve_dtype(config.model.dtype, process.device.type)
        model, self.way = policy.read(model_path, process.device.type, dtype, config.trainer,
                                      longest_sequence(config.model), headless=True,
                                      trust=config.model.trust_remote_code, sequence=process.sequence)
        policy.compile_layers(model, self.way, config.trainer, process.device.type)
        module = ValueModel(decoder(model), self.way, bias=False)
        self.shape, self.names = _classifier_of(model_path, module, padding, config.model.trust_remote_code)
        if is_classifier(model_path, "model.model_path"):
            own = scalar_classifier(model_path, str(dtype).removeprefix("torch."),
                                    config.model.trust_remote_code).state_dict()
            module.head.weight.data.copy_(own[self.names["head.weight"]])
        self.zero = engine(module, process, config.algorithm.optimizer, config.trainer, dtype)

    def scores(self, rows: list[Row]) -> list[float]:
        """The score of each row. Collective."""
        with self.zero.scoring():
            found = self.process.score_rows(rows, self.budget.tokens, self.zero.forward, self.way.fill)
        return [float(one[0]) for one in found]

    def _outputs(self, micro: MicroBatch, objective: Objective) -> dict[str, Tensor]:
        return {"scores": self.zero.forward(micro)}

    def full_state(self) -> dict[str, Tensor] | None:
        """All weights by the classifier's names on rank 0, None elsewhere."""
        state = self.zero.full_state(list(self.zero.module.named_parameters()))
        if state is None:
            return None
        state |= policy.saved_buffers(self.zero.module)
        return {self.names[name]: tensor for name, tensor in state.items()}

    def save(self, directory: Path) -> list[Part]:
        """The exact state, and the classifier in `directory`/model, as files."""
        parts, state = self.zero.save(directory), self.full_state()
        write = partial(_export, shape=self.shape, path=directory / "model")
        return parts if state is None else [*parts, Part(state, write)]


def _classifier_of(path: Path, module: ValueModel, padding: int, trust: bool):
    """The classifier of a model's family, without weights, and its name of each tensor of `module`.

    Raises ModelError where transformers has none whose tensors are those of the decoder and a linear head.
    """
    shape, own = empty_classifier(path, padding, trust), module.transformer.state_dict()
    sizes = {name: tensor.shape for name, tensor in shape.state_dict().items()}
    some = f".{next(iter(own))}"
    for prefix in (name.removesuffix(some) for name in sizes if name.endswith(some)):
        names = {f"transformer.{name}": f"{prefix}.{name}" for name in own}
        head = [name for name in sizes if name not in names.values()]
        if len(head) == 1 and len(sizes) == len(names) + 1 and sizes[head[0]] == module.head.weight.shape:
            return shape, names | {"head.weight": head[0]}
    raise ModelError(f"{path}: the tensors of {type(shape).__name__} of transformers are not those of the model's "
                     "decoder and one linear head, so no reward model is made of it. Take another model.")


def _export(state: dict[str, Tensor], shape: torch.nn.Module, path: Path) -> Written:
    """Writes the classifier's weights, and a config.json that says what it is."""
    from transformers.core_model_loading import revert_weight_conversion

    tensors = revert_weight_conversion(shape, {name: one.detach().to("cpu") for name, one in state.items()})
    said = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    said |= {"architectures": [type(shape).__name__], "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0},
             "pad_token_id": shape.config.get_text_config().pad_token_id}
    (path / CONFIG).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    return write_weights(tensors, path / WEIGHTS)
