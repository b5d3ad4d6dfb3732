"""How the benchmarks ask the program `deft`."""

import pytest
from lab import arguments, deft_program
from lab_commands import ROOT

DEFT = ROOT / "build/bin/deft"
pytestmark = pytest.mark.skipif(not DEFT.exists(), reason="deft is not built: run scripts/build")


def test_the_table_of_options_is_known_by_name():
    policies = deft_program.options(DEFT)["policy"]["choices"].split("|")
    assert {"fifo", "knapsack", "auto"} <= set(policies)
    assert arguments.known_policies(ROOT / "build") == policies


def test_a_command_that_fails_is_named_with_what_it_said(tmp_path):
    profile = tmp_path / "profile.json"
    profile.write_text('{"buckets": 3}')
    with pytest.raises(deft_program.DeftFailed, match=r"^deft simulate: .*buckets"):
        deft_program.ask(DEFT, "simulate", profile, "--policy", "fifo")


def test_a_command_that_fails_without_a_word_is_named_too(tmp_path):
    silent = tmp_path / "deft"
    silent.write_text("#!/bin/sh\nexit 7\n")
    silent.chmod(0o755)
    with pytest.raises(deft_program.DeftFailed, match=r"^deft replay: it ended with 7 and said nothing$"):
        deft_program.ask(silent, "replay")


def test_a_command_that_hangs_is_given_up(tmp_path):
    hanging = tmp_path / "deft"
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o755)
    with pytest.raises(deft_program.DeftFailed, match=r"^deft status: no answer within 0.2 s$"):
        deft_program.printed(hanging, "status", timeout_s=0.2)
