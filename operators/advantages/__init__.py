"""Advantages, one class each: of whole attempts in a group, of components, of turns, of tokens.

A class derived from `Advantage` in a module of this folder is an advantage under its name in snake_case (or its
`name`): its first docstring line is the summary, its fields are the arguments. `__call__` takes a batch, a
pyarrow.Table, and returns a table with the columns `experience_id` and `advantage`, float64 for the whole response or
list<float64> [R] for each of its tokens, and for a critic `returns`, list<float64> [R].

`batch` contains the usable rows of the explorer steps that a train batch is cut from. A row missing from the result is
not trained on; one that occurs twice is trained on twice. Advantages read all their inputs from the batch; an absent or
null column is a DataError, and so is a reward that is not finite.
"""
