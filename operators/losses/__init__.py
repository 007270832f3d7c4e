"""Policy losses, one class each, by family: clipped ratios, weighted log-probs, demonstrations, preferences, mixtures.

A class derived from `Loss` in a module of this folder is a loss under its name in snake_case (or its `name`): its first
docstring line is the summary, its fields are the arguments, and the parameters of `__call__` without a default the
columns that it takes: [N] tensors, one entry per action token of a micro-batch. It returns the loss of each token [N]
and a dict of [N] statistics. Tokens are weighted elsewhere: the learner multiplies by weights that are fixed over the
whole train batch, so the result depends neither on micro-batches nor on ranks.

Columns: logprobs (with gradient), old_logprobs (the policy that sampled, or with bypass_old_logprobs=false the one
before this update), rollout_logprobs (always the engine's), prox_logprobs (the policy before this update), ref_logprobs
(the reference), advantages, rows (index of the row in the micro-batch, int64; rows are never split), is_expert (bool; a
loss that uses it has demonstrations and rollouts averaged separately, by token_weights_by_kind), step (0-d, the
optimizer step from 1); of a reward model instead scores (with gradient) and margin, one entry a row; of a distillation
top_logprobs (with gradient) and teacher_top_logprobs, [N, K + 1]. A loss that chooses tokens over the whole batch takes
`chosen`, which the learner gives it (operators/selection.py): without it the given tokens are the batch.
"""
