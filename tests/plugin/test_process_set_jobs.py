"""Where a process set's leader is reached; without daemons."""

import types

import pytest
from deft import process_sets

LISTENS = "0.0.0.0:29610"


def leader_of(monkeypatch, listens, leader, rank=2, node=1, ranks=(2, 3)):
    """What rank `rank` of four, two a node, says of its daemon."""
    monkeypatch.setattr(process_sets, "daemon_status", lambda: {"listen": listens})
    monkeypatch.setattr(process_sets, "option", {"leader": leader}.__getitem__)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    whole = types.SimpleNamespace(rank=rank, node=node, node_of=lambda other: other)
    return process_sets._leader_of(whole, list(ranks))


def test_the_leader_of_a_set_is_told_if_others_need_it(monkeypatch):
    assert leader_of(monkeypatch, "10.0.0.2:29610", "10.0.0.1:29610") == ("10.0.0.2:29610", "")
    assert leader_of(monkeypatch, "127.0.0.1:4", "127.0.0.1:3") == ("127.0.0.1:4", ""), "all on one machine"
    assert leader_of(monkeypatch, "127.0.0.1:4", "") == ("127.0.0.1:4", "")
    assert leader_of(monkeypatch, LISTENS, "127.0.0.1:3") == ("127.0.0.1:29610", ""), "the address towards the leader"
    assert leader_of(monkeypatch, LISTENS, "10.0.0.1:1", rank=3) == ("", ""), "another rank of the set says it"
    assert leader_of(monkeypatch, LISTENS, "10.0.0.1:1", rank=0, node=0, ranks=(0, 2)) == ("", ""), "known"
    assert leader_of(monkeypatch, LISTENS, "10.0.0.1:1", ranks=(2,)) == ("", ""), "no other node"


@pytest.mark.parametrize("listens", ["127.0.0.1:29610", "localhost:29610"])
def test_a_daemon_that_others_cannot_reach_is_named(monkeypatch, listens):
    leader, problem = leader_of(monkeypatch, listens, "10.0.0.1:29610")
    assert leader == ""
    assert problem == (
        f"no rank of the set is on node 0, and the deftd of rank 2 listens on {listens}, where other nodes cannot "
        "reach it: start it with --listen=ADDRESS:PORT"
    )


class Store:
    """A session of rank 0 of two, whose other rank comes to some meetings alone."""

    rank, size = 0, 2

    def __init__(self):
        self.values, self.comes = {}, True

    def set(self, key, value):
        self.values[key] = value
        if not value:
            del self.values[key]

    def ask(self, key):
        there = self.comes or key.endswith(".0")
        said = self.values.get(key[:-1] + "0") if there else None
        return types.SimpleNamespace(answer=lambda _: said)


def test_what_a_rank_wrote_for_a_meeting_goes_when_all_have_come_to_a_later_one(monkeypatch):
    monkeypatch.setattr(process_sets, "timeout_seconds", lambda: 0.001)
    monkeypatch.setattr(process_sets, "_met", "")
    store = Store()
    for number in range(3):
        process_sets._meet(store, f"add.{number}", "add_process_set", [0, 1])
        assert list(store.values) == [f"add.{number}.0"]
    store.comes = False
    for _ in range(2):
        with pytest.raises(process_sets.DeftError, match="rank 1 did not call it"):
            process_sets._meet(store, "add.3", "add_process_set", [0, 1])
        assert list(store.values) == ["add.2.0", "add.3.0"], "the other rank may still read the earlier one"
    store.comes = True
    process_sets._meet(store, "add.3", "add_process_set", [0, 1])
    assert list(store.values) == ["add.3.0"]


def test_long_lists_of_ranks_are_shortened():
    assert process_sets._shown([0, 2]) == "[0, 2]"
    text = process_sets._shown(range(1000))
    assert len(text) < 330 and text.endswith("... (1000 ranks)")
