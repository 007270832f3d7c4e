"""Advantages by name. An advantage is a table operation: the batch in, one row a response out.

function(batch: pyarrow.Table, **arguments) -> pyarrow.Table with the columns `experience_id` and `advantage`, float64
for the whole response or list<float64> [R] for each of its tokens, and for a critic `returns`, list<float64> [R].
`batch` holds the usable rows of the explorer steps that a train batch is cut from. A row that is missing in the answer
is not trained on; one that comes twice is trained on twice. What an operation must know of the batch it finds there;
a column that is absent or null is a DataError.
"""

from operators.advantages import group

ADVANTAGES = {
    "grpo": group.grpo,
    "reinforce": group.reinforce,
}
