"""Which prefixes rows share: the cheapest of all trees over the same rows, by dynamic programming.

Rows in lexicographic order share a prefix with a neighbour if with any row; the prefixes that neighbours share are the
inner nodes of a radix tree. A node may be shared, so that its tokens are computed once and the rows below continue
them, or be left to the nodes and rows below it, which then compute its tokens each.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np


class Cost(NamedTuple):
    """What sharing costs, in tokens that are computed. continued: a token of a segment that continues others, whose
    attention is merged from two parts; gathered: a key of a prefix that is continued."""

    continued: float
    gathered: float


NOTHING = Cost(0.0, 0.0)
# On an H100 (benchmarks/gpu_update.md): 0.20 to 0.31 for a token where the second part of attention is small, and 0.06
# for a key, by the last fork of conversations, which saves 16,384 tokens of a batch and gathers 81,920 keys. A key
# counts as more, because it takes memory that no estimate counts: at most ten keys for each token saved.
MEASURED = Cost(0.25, 0.1)


def common_prefix(one: np.ndarray, other: np.ndarray) -> int:
    """The number of first tokens that two rows have in common."""
    least = min(len(one), len(other))
    differ = np.flatnonzero(one[:least] != other[:least])
    return int(differ[0]) if len(differ) else least


def worthwhile(lengths: np.ndarray, common: np.ndarray, cost: Cost) -> np.ndarray:
    """The tokens that neighbouring rows share in the cheapest tree, [R - 1], at most `common`.

    lengths: [R] of rows in lexicographic order, none of which is the beginning of another. common: [R - 1] first
    tokens that neighbours have in common. A segment of n tokens costs n, and cost.continued * n more if it continues
    others; a prefix of p tokens that is continued costs cost.gathered * p more.
    """
    ends, parents, nodes = _radix_tree(common.tolist())
    order = np.argsort(ends, kind="stable")  # a parent ends before its children
    counts, totals = np.zeros(len(ends)), np.zeros(len(ends))  # of the rows right below a node
    for row, length in enumerate(lengths.tolist()):
        above = max(nodes[max(row - 1, 0) : row + 1], key=ends.__getitem__, default=0)
        counts[above] += 1
        totals[above] += length
    chains = {0: np.zeros(1, np.int64)}  # ends of the nodes from the root to each
    for node in order[1:]:
        chains[node] = np.append(chains[parents[node]], ends[node])
    # of all below a node, for each node of its chain as the last one that is shared
    below = {node: (totals[node] - counts[node] * chain) * (1 + cost.continued * (chain > 0))
             for node, chain in chains.items()}
    shares = {}
    for node in order[:0:-1]:
        above, end = chains[node][:-1], ends[node]
        shared = (end - above) * (1 + cost.continued * (above > 0)) + cost.gathered * end + below[node][-1]
        shares[node] = shared < below[node][:-1]
        below[parents[node]] += np.where(shares[node], shared, below[node][:-1])
    last = {0: 0}  # place in the chain of a node of the last one that is shared
    for node in order[1:]:
        before = last[parents[node]]
        last[node] = len(chains[node]) - 1 if shares[node][before] else before
    return np.array([chains[node][last[node]] for node in nodes], np.int64)


def _radix_tree(common: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Where each inner node ends, in tokens, and its parent; the root, 0, is empty. And the node of each two
    neighbours: the longest prefix that both have."""
    ends, parents, nodes, path = [0], [-1], [], [0]
    for end in common:
        passed = None
        while ends[path[-1]] > end:
            passed = path.pop()
        if ends[path[-1]] < end:
            ends.append(end)
            parents.append(path[-1])
            if passed is not None:
                parents[passed] = len(ends) - 1
            path.append(len(ends) - 1)
        nodes.append(path[-1])
    return ends, parents, nodes


def runs(shared: np.ndarray) -> list[list[tuple[int, int]]]:
    """Ways to cut R neighbours into runs (first, end), the finest first: one each, then at most 2, 4, ... together, up
    to all that share something. Cuts are where neighbours share least, of these nearest the middle. shared: [R - 1]."""
    edges = [0, *(np.flatnonzero(shared == 0) + 1).tolist(), len(shared) + 1]
    ways = [list(pairwise(edges))]
    most = 1 << (max(end - first for first, end in ways[0]) - 1).bit_length()
    while most > 1:
        most //= 2
        ways.append([part for first, end in ways[-1] for part in _cut(first, end, shared, most)])
    return ways[::-1]


def _cut(first: int, end: int, shared: np.ndarray, most: int) -> list[tuple[int, int]]:
    """Cuts a run into some of at most `most`."""
    done, left = [], [(first, end)]
    while left:
        first, end = left.pop()
        if end - first <= most:
            done.append((first, end))
            continue
        inside = shared[first : end - 1]
        least = np.flatnonzero(inside == inside.min()) + 1
        middle = first + int(least[np.abs(2 * least - (end - first)).argmin()])
        left += [(middle, end), (first, middle)]
    return done
