"""Which groups give way to fresh ones, by hand: how often, what is counted, what is marked."""


from ouroboros.pipeline.store.errors import DataError
from ouroboros.stages.explorer.resample import Group, fill, is_informative
from ouroboros.workflows.protocol.outcomes import Outcome
from ouroboros.workflows.protocol.trajectory import Trajectory
from tests.golden.messages import refuses, wording


def outcome(accuracy, penalty=0.0):
    """A rewarded response; None: one that failed."""
    if accuracy is None:
        return Outcome("reward_failed", "no truth")
    return Outcome("ok", components={"accuracy": accuracy, "overlong_penalty": penalty})


def group(place, *outcomes, round_=0, task=0):
    made = [one if isinstance(one, Outcome) else outcome(one) for one in outcomes]
    return Group(place, round_, task, list(range(len(made))), 0, made)


class Fresh:
    """Gives groups of these accuracies, round after round; remembers who was asked to give way."""

    def __init__(self, *rounds):
        self.rounds, self.asked = rounds, []

    def __call__(self, round_, uninformative):
        self.asked.append((round_, [one.place for one in uninformative]))
        given = self.rounds[round_ - 1]
        return [group(one.place, *accuracies, round_=round_)
                for one, accuracies in zip(uninformative, given, strict=True)]


def statuses(groups):
    return [[one.status for one in each.sampled] for each in groups]


def test_only_what_teaches_nothing_gives_way_until_every_place_has_a_group():
    """Places 1 and 2 are all right and all wrong; round 1 mends 2, round 2 mends 1."""
    fresh = Fresh([(1, 1), (0, 1)], [(1, 0)])
    filled = fill([group(0, 1, 0), group(1, 1, 1), group(2, 0, 0)], 5, None, fresh)
    assert fresh.asked == [(1, [1, 2]), (2, [1])]
    assert [(one.place, one.round) for one in filled.final] == [(0, 0), (1, 2), (2, 1)]
    assert [(one.place, one.round) for one in filled.replaced] == [(1, 0), (2, 0), (1, 1)]
    assert (filled.rounds, filled.missing) == (2, 0)
    assert statuses(filled.final) == [["ok", "ok"]] * 3
    assert statuses(filled.replaced) == [["no_variance", "no_variance"]] * 3
    wording(filled.replaced[1].sampled[0].reason, "2 rewarded", "accuracy 0")
    assert [one.reward for one in filled.replaced[0].sampled] == [1.0, 1.0]  # it was rewarded all the same


def test_when_the_rounds_are_over_places_stay_without_a_group():
    fresh = Fresh([(0, 0), (1, 0)], [(0, 0)])
    filled = fill([group(0, 0, 0), group(1, 0, 0), group(2, 0, 1)], 2, None, fresh)
    assert (filled.rounds, filled.missing, len(filled.replaced)) == (2, 1, 3)
    assert statuses(filled.final) == [["no_variance"] * 2, ["ok"] * 2, ["ok"] * 2]
    assert filled.final[0].round == 2


def test_without_rounds_every_group_stays_as_it_is():
    filled = fill([group(0, 1, 1)], 0, None, Fresh())
    assert statuses(filled.final) == [["ok", "ok"]]
    assert (filled.replaced, filled.rounds, filled.missing) == ([], None, None)


def test_with_every_group_worth_it_nothing_is_asked():
    fresh = Fresh()
    filled = fill([group(0, 1, 0)], 3, None, fresh)
    assert (fresh.asked, filled.rounds, filled.missing, filled.replaced) == ([], 0, 0, [])


def test_failed_rows_do_not_count_and_keep_their_status():
    """One response that could be rewarded has nothing to be compared with; a group that failed whole is replaced."""
    alone, failed = group(0, 1, None), group(1, None, None)
    filled = fill([alone, failed, group(2, 1, 0, None)], 1, None, Fresh([(1, 0), (0, 1)]))
    assert statuses(filled.replaced) == [["no_variance", "reward_failed"], ["reward_failed", "reward_failed"]]
    wording(alone.sampled[0].reason, "response")
    assert failed.sampled[0].reason == "no truth"
    assert filled.final[2].round == 0


def test_wrong_answers_of_several_lengths_teach_nothing_unless_the_reward_is_asked():
    """Accuracy 0 and 0, rewards 0 and -0.5."""
    wrong = group(0, outcome(0.0), outcome(0.0, -0.5))
    assert [is_informative(wrong, metric) for metric in (None, "accuracy", "reward")] == [False, False, True]


def test_without_an_accuracy_the_reward_is_compared_or_an_error_says_so():
    scored = group(0, Outcome("ok", components={"score": 1.5}), Outcome("ok", components={"score": 0.5}))
    assert is_informative(scored, None)
    assert not is_informative(group(0, *[Outcome("ok", components={"score": 1.5})] * 2), None)
    with refuses(DataError, "resample_metric=accuracy", "`accuracy`"):
        is_informative(scored, "accuracy")


def test_players_are_compared_by_role():
    """What they earn sums to 0 in each attempt: white's rewards are 1 and -1."""
    def played(white):
        turns = [Trajectory([1], [2], [-1.0], [1], "stop", role=role) for role in ("white", "black")]
        components = {"white": white, "black": -white}
        return Outcome("ok", trajectory=turns[1], earlier=[(turns[0], "")], components=components)

    assert is_informative(group(0, played(1.0), played(-1.0)), None)
    assert not is_informative(group(0, played(1.0), played(1.0)), None)
