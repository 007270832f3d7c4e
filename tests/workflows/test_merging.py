"""Which calls become one row, with numbers by hand."""

from ouroboros.pipeline.store.pictures import Picture
from ouroboros.workflows.endpoint.merging import merged
from ouroboros.workflows.protocol.trajectory import Trajectory


def turn(prompt, reply, finish="stop"):
    return Trajectory(prompt, reply, [-1.0] * len(reply), [1] * len(reply), finish)


def shown(rows):
    return [(row.prompt_tokens, row.response_tokens, row.action_mask, row.finish_reason) for row in rows]


def test_a_context_that_goes_on_joins_its_row():
    rows = merged([turn([1, 2], [3]), turn([1, 2, 3, 4], [5, 6]), turn([1, 2, 3, 4, 5, 6], [7], "length")])
    assert shown(rows) == [([1, 2], [3, 4, 5, 6, 7], [1, 0, 1, 1, 1], "length")]
    assert rows[0].logprobs == [-1.0, 0.0, -1.0, -1.0, -1.0]


def test_another_context_is_a_row_of_its_own():
    assert len(merged([turn([1, 2], [3]), turn([1, 2], [3])])) == 2  # the same prompt again
    assert len(merged([turn([1, 2], [3]), turn([1, 2, 9], [3])])) == 2  # another reply in its history
    assert len(merged([turn([1, 2], [3]), turn([9, 2, 3, 4], [3])])) == 2


def test_of_two_branches_the_first_joins_and_the_second_is_apart():
    rows = merged([turn([1], [2]), turn([1, 2, 3], [4]), turn([1, 2, 5], [6]), turn([1, 2, 3, 4, 7], [8])])
    assert shown(rows) == [([1], [2, 3, 4, 7, 8], [1, 0, 1, 0, 1], "stop"), ([1, 2, 5], [6], [1], "stop")]


def test_equal_tokens_with_other_images_are_another_row():
    a, b = Picture("shown", "a"), Picture("shown", "b")
    first, goes_on, other = turn([1], [2]), turn([1, 2, 3], [4]), turn([1, 2, 3], [4])
    first.pictures, goes_on.pictures, other.pictures = (a,), (a, b), (b, a)
    rows = merged([first, goes_on, other])
    assert [row.pictures for row in rows] == [(a, b), (b, a)]
    assert shown(rows)[0] == ([1], [2, 3, 4], [1, 0, 1], "stop")
