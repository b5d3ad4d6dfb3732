"""Short forms of scripts/soak: some faults with a fixed seed, crowds, and a training that is not quite so long.

A pause may be longer here than on a quiet machine, because other tests run at the same time. The bounds are four times
what a machine showed that had ten busy processes for each core. An arena that the event loop allocates by itself takes
longer than they allow.
"""

import os

import pytest
from cluster import MARGIN_S
from soak import Report, run_lanes
from soak_cases import JOB_S, START_S, draw_case
from soak_crowd import jobs_of_users, large_arenas, nodes_of_a_job, ranks_of_a_job
from soak_faults import FAULTS, LimitedDaemon
from soak_lane import lanes_for
from soak_steps import long_training
from test_lost_links import emulated  # noqa: F401  (skips where there are no emulated nodes)

SEED = 1
LANES = 2
TIMEOUT_S = 10  # with less, a daemon that gets no processor for a while counts as lost
LONGEST_FAULT_S = 1.5
PAUSE_MS = 400
PAUSE_OF_JOBS_MS = 1500  # their links are opened at once


def test_after_faults_at_random_instants_every_worker_goes_on_or_is_told_and_nothing_is_left(emulated):  # noqa: F811
    report = Report(echo=False)
    common = {"seed": SEED, "timeout_s": TIMEOUT_S, "grace_s": MARGIN_S, "longest_fault_s": LONGEST_FAULT_S}
    run_lanes(lanes_for(len(FAULTS), LANES, **common), report)
    print(report.table())
    assert not report.wrong(), report.failures + [words for one in report.verdicts for words in one["wrong"]]
    assert {one["case"]["kind"] for one in report.verdicts} == set(FAULTS), "each kind of fault has run"


def test_a_seed_gives_the_same_cases_again():
    cases = [draw_case(SEED, number) for number in range(60)]
    assert cases == [draw_case(SEED, number) for number in range(60)]
    assert {case.kind for case in cases} == set(FAULTS)
    assert cases != [draw_case(SEED + 1, number) for number in range(60)]


def test_a_fault_begins_at_any_instant_and_limits_also_while_a_job_starts():
    for kind, fault in FAULTS.items():
        instants = [draw_case(SEED, number, [kind]).at_s for number in range(200)]
        assert min(instants) < START_S < 0.9 * JOB_S < max(instants), kind
        early = sum(at < START_S for at in instants)
        assert early > 60 if issubclass(fault, LimitedDaemon) else early < 60, kind


def test_many_jobs_of_several_users_at_once():
    if os.getuid() != 0:
        pytest.skip("needs root, to become another user")
    figures = jobs_of_users(users=4, jobs=8)
    assert figures["pause_ms"] < PAUSE_OF_JOBS_MS, figures


def test_hundreds_of_ranks_join():
    figures = ranks_of_a_job(daemons=2, ranks=200)
    assert figures["pause_ms"] < PAUSE_MS, figures


def test_hundreds_of_nodes_join():
    figures = nodes_of_a_job(nodes=200)
    assert figures["pause_ms"] < PAUSE_MS, figures


def test_large_arenas_are_attached_while_the_daemon_answers():
    figures = large_arenas(count=2, size=1 << 30)
    assert figures["pause_ms"] < PAUSE_MS and figures["slowest_answer_ms"] < PAUSE_MS, figures


def test_nothing_grows_in_a_long_training():
    figures = long_training(steps=30_000)
    assert figures["grown"] == [], figures
