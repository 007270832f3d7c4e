"""The loss of an optimizer step, assembled from the named parts of an algorithm.

Every part gives one number an action token; they are summed with the weights of one aggregation
(operators/aggregation.py), which is fixed over the whole train batch before it is cut.
"""

from functools import partial

from torch import Tensor

from operators.arguments import arguments, needed_columns
from operators.loss import NATURAL_AGGREGATION, POLICY_LOSSES
from pipeline.errors import pick
from stages.learner.packing import Aggregation

MADE_BY_THE_FORWARD = ("logprobs", "entropy", "rows")


class Objective:
    """The loss of a micro-batch's action tokens from their columns.

    row_columns: what the rows must have; the rest comes from the model's forward.
    """

    needs_entropy_gradient = False

    def __init__(self, config):
        """config: the stage's settings (algorithm, model)."""
        algorithm = config.algorithm
        name = "sft" if algorithm.algorithm_type == "sft" else algorithm.policy_loss_fn
        given = {} if algorithm.algorithm_type == "sft" else algorithm.policy_loss_fn_args
        function = pick(POLICY_LOSSES, name, "algorithm.policy_loss_fn")
        self.policy_loss = partial(function, **arguments(function, given, "algorithm.policy_loss_fn_args"))
        self.columns = needed_columns(self.policy_loss)
        mode = algorithm.loss_agg_mode or NATURAL_AGGREGATION.get(name, "token-mean")
        # a constant, as the mode asks for: the longest response of a batch would change from batch to batch
        normalizer = float(config.model.max_response_tokens) if mode == "seq-mean-token-sum-norm" else None
        self.aggregation = Aggregation(mode, normalizer, unit=1)

    @property
    def row_columns(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name not in MADE_BY_THE_FORWARD)

    def __call__(self, columns: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """columns: name -> [N], those of the rows and of the forward. Returns the loss [N] and statistics of [N]."""
        return self.policy_loss(**{name: columns[name] for name in self.columns})
