"""Combinations of options that bench/compare refuses before it starts anything, and how it starts."""

import importlib.machinery
import importlib.util
import sys

import pytest
from lab import arguments as command_line
from lab import catalogue, netns
from lab.data import MissingData
from lab_commands import COMPARE


@pytest.fixture(autouse=True)
def data(monkeypatch):
    monkeypatch.setattr(catalogue, "find_data", lambda *_: None)


def checked(*words: str):
    return command_line.check(command_line.parser().parse_args(words))


@pytest.mark.parametrize("more", [["--epochs", "1"], ["--accuracy"], ["--schedule", "cosine"]])
def test_steps_that_are_traced_belong_to_no_training_of_a_given_length(more):
    checked("--predict", "--schemes", "fifo")
    with pytest.raises(ValueError, match=f"leave out {more[0]}"):
        checked("--predict", "--schemes", "ddp,fifo", *more)


def test_a_scheme_needs_one_of_the_links_on_its_nics():
    checked("--links", "mpi:eth1", "--schemes", "fifo,ddp@1,fifo:links=auto@1")
    with pytest.raises(ValueError, match="scheme 'fifo@1': none of --links mpi:eth1 is on its NICs"):
        checked("--links", "mpi:eth1", "--schemes", "fifo,fifo@1")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--links", "ps:eth0"], "--links needs emulated nodes"),
        (["--nic-event", "eth0@step 3: 10mbit"], "--nic-event needs emulated nodes"),
        (["--schemes", "fifo,fifo@2x"], "'fifo@2x' needs emulated nodes"),
    ],
)
def test_loopback_has_neither_nics_nor_rates(words, named):
    with pytest.raises(ValueError, match=named):
        checked("--loopback", *words)


@pytest.mark.parametrize("unshaped", [["--rate", "none"], ["--nodes", "1"]])
def test_what_is_not_shaped_cannot_be_twice_as_fast(unshaped):
    with pytest.raises(ValueError, match="scheme 'fifo@2x': NICs that are not shaped have no rate to multiply"):
        checked("--schemes", "fifo,fifo@2x", *unshaped)


def test_a_rate_that_a_scheme_makes_too_slow_is_refused():
    with pytest.raises(ValueError, match="too slow"):
        checked("--rate", "200mbit", "--schemes", "fifo,fifo@0.00000001x")


def test_a_shell_in_the_lab_needs_no_data(monkeypatch):
    def missing(*_):
        raise MissingData("no data")

    monkeypatch.setattr(catalogue, "find_data", missing)
    checked("--lab-shell", "true")
    with pytest.raises(MissingData):
        checked()


class BrokenLab(netns.Loopback):
    emulated = True

    def shape(self, _rates):
        raise netns.CommandFailed("tc qdisc replace: out of memory")


class NoLab:
    def __init__(self, *_):
        raise netns.Unavailable("forbidden")


@pytest.mark.parametrize(
    ("lab", "more", "status", "said"),
    [
        (BrokenLab, [], 1, "bench/compare: tc qdisc replace: out of memory\n"),
        (NoLab, [], 0, "No emulated nodes: forbidden.\nGoing on over plain loopback, with NICs that are not shaped.\n"),
        (NoLab, ["--links", "gloo:eth0"], 2, "bench/compare: --links needs emulated nodes"),
    ],
)
def test_only_a_system_without_namespaces_is_left_for_loopback(monkeypatch, capfd, lab, more, status, said):
    loader = importlib.machinery.SourceFileLoader("bench_compare", COMPARE)
    program = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_compare", loader))
    loader.exec_module(program)
    monkeypatch.setattr(netns, "inside", lambda: True)
    monkeypatch.setattr(netns, "Lab", lab)
    monkeypatch.setattr(sys, "argv", [COMPARE, "--rate", "100mbit", *more, "--lab-shell", "true"])
    assert program.main() == status
    assert said in capfd.readouterr().err
