"""What each advantage promises of any rewards: sums of zero, shifts and scales that change nothing, rows left alone.

A batch holds the same groups several times, as they are and changed, so that one call answers for all.
"""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ouroboros.operators.advantages import group, steps, token
from ouroboros.pipeline.settings.declared import ADVANTAGES
from tests.factories import advantage_batch, called
from tests.operators.advantages.test_group import ask

asymre, grpo, opmd, rec = map(called, (group.Asymre, group.Grpo, group.Opmd, group.Rec))
gigpo, step_wise_grpo = map(called, (steps.Gigpo, steps.StepWiseGrpo))
ppo, reinforceplusplus = map(called, (token.Ppo, token.Reinforceplusplus))

quick = settings(max_examples=25, deadline=None)
REAL = st.floats(-5, 5).map(lambda x: round(x, 3))  # real numbers, and ties that are ties
SCALE = st.floats(0.1, 50)
GROUP = st.lists(REAL, min_size=2, max_size=7)


def near(expected, tolerance=1e-7):
    """What numbers are compared with that may differ so much, absolutely or relatively."""
    return pytest.approx(list(expected), rel=tolerance, abs=tolerance)


def changed(group: list[float], shift: float, scale: float) -> tuple[list[float], ...]:
    return group, [r + shift for r in group], [r * scale for r in group]


@quick
@given(GROUP, REAL, st.floats(0.05, 10))
def test_opmd_with_the_log_partition(group, shift, tau):
    """mean exp(A / tau) = 1 is what defines it; so no A is all negative, and their sum is not positive."""
    plain, shifted, _ = ask(opmd, *changed(group, shift, 1.0), opmd_baseline="logavgexp", tau=tau)
    assert [np.mean(np.exp(np.array(plain) / tau))] == near([1.0])
    assert list(shifted) == near(plain)
    assert math.fsum(plain) <= 1e-9
    assert max(plain) >= -1e-9
    (doubled,) = ask(opmd, [2 * r for r in group], opmd_baseline="logavgexp", tau=2 * tau)
    assert list(doubled) == near([2 * a for a in plain])


@quick
@given(GROUP, REAL, SCALE, REAL)
def test_asymre_sums_to_its_shift(group, shift, scale, baseline_shift):
    plain, shifted, scaled = ask(asymre, *changed(group, shift, scale), baseline_shift=baseline_shift)
    assert [math.fsum(plain)] == near([-len(group) * baseline_shift])
    assert list(shifted) == near(plain)
    assert [a + baseline_shift for a in scaled] == near([scale * (a + baseline_shift) for a in plain])


@quick
@given(st.lists(GROUP, min_size=2, max_size=4), REAL, SCALE)
def test_grpo_with_the_std_of_the_batch(groups, shift, scale):
    """Against numpy; what is done to all rewards alike changes nothing."""
    every = [r for group in groups for r in group]
    assume(np.std(every) > 0.01)

    def found(some):
        return [a for group in ask(grpo, *some, std_cal_level="batch", epsilon=1e-12) for a in group]

    plain = found(groups)
    assert list(plain) == near([(r - np.mean(group)) / np.std(every, ddof=1) for group in groups for r in group])
    assert list(found([[r * scale + shift for r in group] for group in groups])) == near(plain)


@quick
@given(GROUP, REAL, SCALE, st.booleans())
def test_rec_keeps_the_balance(group, shift, scale, std_normalize):
    """All at least at the mean are kept, and as many below it at most; what is kept sums to zero."""
    rewards, middle = np.array(group), np.mean(group)
    assume(len(set(group)) == 1 or min(abs(rewards - middle)) > 1e-9)  # at the mean itself rounding would decide
    # by experience_id it is chosen which to keep: asked one after the other all three have the same ones
    plain, shifted, scaled = (np.array(ask(rec, some, drop="balance", std_normalize=std_normalize, epsilon=1e-12)[0])
                              for some in changed(group, shift, scale))
    assert list(shifted) == near(plain)
    assert list(scaled) == near(plain * (1 if std_normalize else scale))
    if len(set(group)) > 1:
        good = rewards > middle
        kept = good | (plain < 0)
        assert (kept & ~good).sum() == min(good.sum(), (~good).sum())
        gaps = rewards[kept] - rewards[kept].mean()
        assert list(plain[kept]) == near(gaps / (gaps.std() if std_normalize else 1))
        assert not plain[~kept].any()


TURNS = st.lists(st.tuples(REAL, st.sampled_from("stu")), min_size=1, max_size=4)  # (reward, state) of each turn
RUNS = st.lists(TURNS, min_size=1, max_size=4)


def turns(groups, column="reward"):
    """Groups of runs of (reward, state) as a batch; the rewards stand in `column`, in `reward` anyway."""
    rows = [(str(g), n, turn, state, reward) for g, runs in enumerate(groups) for n, run in enumerate(runs)
            for turn, (reward, state) in enumerate(run)]
    columns = dict(zip(("group_id", "run_index", "turn", "state_hash", "reward"), zip(*rows, strict=True), strict=True))
    return advantage_batch(**{name: list(values) for name, values in (columns | {column: columns["reward"]}).items()})


def by_run(function, groups, column="reward", **given) -> list:
    """The advantages of every turn, as groups of runs."""
    batch = turns(groups, column)
    made = function(batch, **given)
    found = dict(zip(made["experience_id"].to_pylist(), made["advantage"].to_pylist(), strict=True))
    values = iter([found[f"e{i}"] for i in range(len(batch))])
    return [[[next(values) for _ in run] for run in runs] for runs in groups]


def mapped(runs, change) -> list:
    return [[(change(reward), state) for reward, state in run] for run in runs]


def flat(runs) -> list[float]:
    return [a for run in runs for a in run]


@quick
@given(RUNS, REAL, SCALE, st.booleans())
def test_step_wise_grpo_compares_last_rewards(runs, shift, scale, norm):
    """Against numpy; the last group differs in the rewards that are not its runs' last, which nobody reads."""
    noisy = [[*((9.0, s) for _, s in run[:-1]), run[-1]] for run in runs]
    groups = [runs, mapped(runs, lambda r: r + shift), mapped(runs, lambda r: r * scale), noisy]
    plain, *others = by_run(step_wise_grpo, groups, epsilon=1e-12, enable_step_norm=norm)
    last = np.array([run[-1][0] for run in runs])
    wanted = (last - last.mean()) / last.std(ddof=1) if len(set(last)) > 1 else np.zeros(len(last))
    shared = [a / (len(run) if norm else 1) for a, run in zip(wanted, runs, strict=True) for _ in run]
    assert flat(plain) == near(shared)
    for other in others:
        assert flat(other) == near(flat(plain))
    assert [sum(sum(a) / (1 if norm else len(a)) for a in plain)] == near([0.0])


@quick
@given(RUNS, SCALE, st.sampled_from(["none", "std"]), st.floats(0, 1))
def test_gigpo_sums_to_zero_over_runs_and_over_equal_states(runs, scale, fnorm, gamma):
    groups = [runs, mapped(runs, lambda r: r * scale)]
    given_ = {"column": "step_reward", "fnorm": fnorm, "gamma": gamma, "epsilon": 1e-9}
    (whole, scaled), (episode, _) = (by_run(gigpo, groups, omega=omega, **given_) for omega in (1.0, 0.0))
    assert all(len(set(run)) == 1 for run in episode)
    assert [sum(run[0] for run in episode)] == near([0.0])
    for state in "stu":
        step = [a - e for run, two, one in zip(runs, whole, episode, strict=True)
                for (_, here), a, e in zip(run, two, one, strict=True) if here == state]
        assert [sum(step)] == near([0.0])
    if fnorm == "none":
        assert flat(scaled) == near([a * scale for a in flat(whole)])


@quick
@given(RUNS, REAL)
def test_gigpo_of_an_outcome_does_not_know_a_shift_of_it(runs, shift):
    """gamma 1: every turn gains what its run came to, so all gains move alike."""
    plain, moved = by_run(gigpo, [runs, mapped(runs, lambda r: r + shift)])
    assert flat(moved) == near(flat(plain))


@settings(max_examples=30, deadline=None)
@given(st.lists(RUNS, min_size=2, max_size=3), st.sampled_from(
    ["asymre", "dr_grpo", "gigpo", "grpo", "opmd", "rec", "rloo", "step_wise_grpo"]), st.data())
def test_other_groups_and_their_order_do_not_matter(groups, name, data):
    order = data.draw(st.permutations(range(len(groups))))
    together = by_run(ADVANTAGES[name](), [groups[i] for i in order])
    (alone,) = by_run(ADVANTAGES[name](), [groups[0]])
    assert flat(together[order.index(0)]) == near(flat(alone))


# (reward, values of the action tokens) of each row
ROWS = st.lists(st.tuples(REAL, st.lists(REAL, min_size=1, max_size=4)), min_size=1, max_size=5)


def shrunk(gains: np.ndarray, scale: float) -> float:
    """What the whitened gains are multiplied by when the gains are: whitening divides by sqrt(var + 1e-8)."""
    spread = gains.var(ddof=1)
    return math.sqrt((spread + 1e-8) / (spread + 1e-8 / scale**2))


def by_token(function, rows, hidden=0, **given) -> dict[str, list]:
    """Advantages and returns of the action tokens, row after row; `hidden` tokens before each are not the policy's."""
    masks = [([0] * hidden + [1]) * len(values) + [0] * hidden for _, values in rows]
    padded = [[x for v in values for x in [math.nan] * hidden + [v]] + [7.0] * hidden for _, values in rows]
    made = function(advantage_batch(action_mask=masks, reward=[r for r, _ in rows], values=padded), **given)
    kept = np.concatenate(masks).astype(bool)
    return {name: np.concatenate(made[name].to_pylist())[kept] for name in ("advantage", "returns")}


@quick
@given(ROWS, REAL, SCALE, st.floats(0, 1), st.floats(0, 1))
def test_gae(rows, shift, scale, gamma, lam):
    """Whitened over all action tokens. With gamma 1 a shift of values and rewards moves the returns alone."""
    found = by_token(ppo, rows, gamma=gamma, lam=lam)
    gains = found["returns"] - [v for _, values in rows for v in values]
    assume(gains.std() > 0.01)
    spread = gains.var(ddof=1)
    assert [found["advantage"].sum(), found["advantage"].var(ddof=1)] == near([0.0, spread / (spread + 1e-8)])
    scaled = by_token(ppo, [(r * scale, [v * scale for v in values]) for r, values in rows], gamma=gamma, lam=lam)
    assert list(scaled["advantage"]) == near(found["advantage"] * shrunk(gains, scale))
    assert list(scaled["returns"]) == near(found["returns"] * scale)
    for name, values in by_token(ppo, rows, hidden=2, gamma=gamma, lam=lam).items():
        assert list(values) == near(found[name])
    plain = by_token(ppo, rows, lam=lam)
    moved = by_token(ppo, [(r + shift, [v + shift for v in values]) for r, values in rows], lam=lam)
    assert list(moved["returns"]) == near(plain["returns"] + shift)
    assume((plain["returns"] - [v for _, values in rows for v in values]).std() > 0.01)
    assert list(moved["advantage"]) == near(plain["advantage"])


@quick
@given(ROWS, REAL, SCALE, st.floats(0, 1))
def test_reinforceplusplus(rows, shift, scale, gamma):
    """Without a discount all returns of a row are its reward; whitened, neither their level nor their scale remains."""
    wanted = [r * gamma**k for r, values in rows for k in range(len(values) - 1, -1, -1)]
    assume(np.std(wanted) > 0.01)
    found = by_token(reinforceplusplus, rows, gamma=gamma)
    assert list(found["returns"]) == near(wanted)
    assert list(found["advantage"]) == near((wanted - np.mean(wanted)) / np.sqrt(np.var(wanted, ddof=1) + 1e-8))
    assert list(by_token(reinforceplusplus, rows, hidden=1, gamma=gamma)["advantage"]) == near(found["advantage"])
    scaled = by_token(reinforceplusplus, [(r * scale, v) for r, v in rows], gamma=gamma)
    assert list(scaled["advantage"]) == near(found["advantage"] * shrunk(np.array(wanted), scale))
    plain, moved = (by_token(reinforceplusplus, [(r + by, v) for r, v in rows]) for by in (0, shift))
    assume(np.std(plain["returns"]) > 0.01)
    assert list(moved["advantage"]) == near(plain["advantage"])
