"""Rounds of gradients, and the order in which backward produces them, without a framework and without a daemon."""

import pytest
from deft import names
from deft.gradient_round import AVERAGED, FREE, HANDED, GradientRound, Phase
from deft.production_order import Agreed, ProductionOrder
from fake_session import Ranks


def test_what_no_hook_handed_over_is_missing_and_stays_free_after_the_wait():
    gradients = GradientRound(4, passes=1)
    for place in (3, 1):
        gradients.marks[place] = HANDED
    assert gradients.missing() == [0, 2] and not gradients.all_handed()
    gradients.averaged()
    assert gradients.phase is Phase.AVERAGED
    assert list(gradients.marks) == [FREE, AVERAGED, FREE, AVERAGED]
    assert gradients.missing() == [0, 1, 2, 3]  # the next backward hands over all of them
    gradients.averaged(dropped=[3])
    assert list(gradients.marks) == [FREE, AVERAGED, FREE, FREE]


def test_gradients_amid_their_passes():
    gradients = GradientRound(3, passes=2)
    gradients.counts[2] = 1
    assert gradients.amid_passes() == [2]
    gradients.restart_passes()
    assert gradients.amid_passes() == []


def test_marks_keep_their_identity_until_the_number_of_gradients_changes():
    gradients = GradientRound(3, passes=2)
    marks, counts = gradients.marks, gradients.counts
    marks[:] = bytes([HANDED] * 3)
    counts[1] = 1
    assert gradients.missing() == []
    gradients.phase = Phase.HANDED
    gradients.used()
    assert gradients.marks is marks and gradients.counts is counts
    assert gradients.phase is Phase.IDLE and not any(marks) and counts == [0, 0, 0]
    gradients.phase = Phase.OPEN
    gradients.resize(2)
    assert gradients.phase is Phase.OPEN and len(gradients.marks) == len(gradients.counts) == 2


def test_gradients_are_declared_as_they_appeared_and_the_others_last():
    order = ProductionOrder(5)
    assert [order.saw(4), order.saw(1, sparse=True), order.saw(3), order.saw(1)] == [1, 1, 1, 2]
    assert order.appeared() == [4, 1, 3]
    assert order.own() == ([4, 1, 3, 2, 0], [1], False)
    order.restart_passes()
    assert order.saw(4) == 1
    assert order.appeared() == [4, 1, 3]


def agree(seen, count=4, several=()):
    """What each rank has after agree(); `seen`: of each rank, (index, sparse) in order of appearance."""
    counts = [count] * len(seen) if isinstance(count, int) else count

    def work(session):
        order = ProductionOrder(counts[session.rank])
        for index, sparse in seen[session.rank]:
            order.saw(index, sparse)
        return order.agree(session, "sgd.order", one_of_several=session.rank in several)

    return Ranks(len(seen)).run(work)


def test_all_ranks_take_the_order_and_the_sparse_ones_of_rank_0():
    first = [(2, False), (0, True), (3, False)]
    others = [[(0, False), (1, True)], [], [(i, True) for i in range(4)]]
    assert agree([first, *others]) == [([2, 0, 3, 1], [0], False)] * 4


@pytest.mark.parametrize(("several", "found"), [([0], True), ([1, 2], False)])
def test_all_ranks_take_what_rank_0_says_of_other_optimizers(several, found):
    assert [one.one_of_several for one in agree([[]] * 3, several=several)] == [found] * 3


def test_ranks_whose_gradients_differ_in_number_keep_their_own_order():
    found = agree([[(1, False)], [(2, True)]], count=[2, 3])
    assert found == [([1, 0], [], False), ([2, 1, 0], [2], False)]


class Hostile(ProductionOrder):
    def own(self):
        return Agreed([0, 0, 7], [5])


def test_an_order_that_is_none_is_not_followed():
    """A peer's numbers are checked."""

    def work(session):
        return (ProductionOrder if session.rank else Hostile)(3).agree(session, "sgd.order")

    assert Ranks(2).run(work)[1] == ([2, 1, 0], [], False)


def test_names_match_by_name_or_by_order():
    assert names.wire_name("allreduce", "loss") == "allreduce.loss"
    first, second = names.wire_name("barrier", None), names.wire_name("barrier", None)
    assert first.startswith("barrier.noname.") and int(second.split(".")[-1]) == int(first.split(".")[-1]) + 1


def test_named_parameters_are_checked():
    a, b, c = object(), object(), object()
    pairs = names.check_named(iter([("a", a), ("b", b), ("tied", a)]))
    assert names.in_forward_order(pairs, [b, a]) == [("a", a), ("b", b)]
    assert names.in_forward_order(pairs, [b]) == [("b", b)]
    with pytest.raises(ValueError, match="1 of the optimizer's parameters are not in it"):
        names.in_forward_order(pairs, [a, c])
    with pytest.raises(ValueError, match="sequence of tuples"):
        names.check_named([a])
    with pytest.raises(ValueError, match=r"more than once: x, y$"):
        names.check_named([("y", a), ("x", a), ("x", b), ("y", b), ("z", c)])
