"""scripts/test counts what really ran: a program that dies, hangs or writes nothing is a failure, never a silence."""

import argparse
import json
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def suites(load):
    return load("scripts/suites.py")


def ctest_file(folder: Path, rows: str) -> None:
    (folder / "cases").mkdir()
    (folder / "ctest.xml").write_text(f"<testsuite>{rows}</testsuite>")


def case_file(folder: Path, program: str, rows: str) -> None:
    text = f'<testsuites><testsuite name="S">{rows}</testsuite></testsuites>'
    (folder / "cases" / f"{program}.xml").write_text(text)


PASSED = '<testcase name="one" classname="S" status="run" result="completed"/>'
FAILED = '<testcase name="two" classname="S" status="run" result="completed"><failure message="x"/></testcase>'
SKIPPED = '<testcase name="three" classname="S" status="run" result="skipped"><skipped message="no NIC"/></testcase>'


def test_what_a_fuzzer_has_reached_is_told(suites):
    log = "#2 INITED cov: 7 ft: 8\n#9 NEW    cov: 12 ft: 30 corp: 2/9b\nreached: messages: 3 of 4 kinds, not 2\n"
    assert suites.reached(log) == ["12 edges of the program", "messages: 3 of 4 kinds, not 2"]
    assert suites.reached("a crash") == []


def test_kinds_that_the_seeds_of_a_fuzzer_do_not_reach_are_a_failure(suites):
    to_a_node = "reached: to a node: 4 of 4 kinds, each at least 1 times\n"
    both = to_a_node + "reached: to the leader: 2 of 2 kinds, each at least 3 times\n"
    assert suites.unreached(both, both) == []
    one = "reached: to a node: 3 of 4 kinds, not 2\n"
    assert suites.unreached(one, both) == [f"the seeds do not reach all to {who}" for who in ("a node", "the leader")]
    assert suites.unreached("", "no kinds are counted") == []


def test_cases_are_counted_one_by_one(suites, tmp_path):
    ctest_file(tmp_path, '<testcase name="ring_test" status="fail"/>')
    case_file(tmp_path, "ring_test", PASSED + FAILED + SKIPPED)
    tally = suites.count_ctest("unit", tmp_path, 8, set())
    assert tally.passed == 1
    assert tally.failed == ["unit S.two"]
    assert tally.skipped == ["unit S.three: no NIC"]
    assert str(tally) == "1 passed, 1 failed, 1 skipped"


def test_a_program_that_died_is_a_failure(suites, tmp_path):
    ctest_file(tmp_path, '<testcase name="ring_test" status="fail"/><testcase name="other" status="run"/>')
    tally = suites.count_ctest("asan", tmp_path, 8, {"other"})
    assert tally.failed == ["asan ring_test (died or ran out of time)"]
    assert tally.passed == 1


def test_a_program_that_died_after_passing_cases_is_a_failure(suites, tmp_path):
    ctest_file(tmp_path, '<testcase name="ring_test" status="fail"/>')
    case_file(tmp_path, "ring_test", PASSED)
    tally = suites.count_ctest("asan", tmp_path, 8, {"other"})
    assert tally.failed == ["asan ring_test (died or ran out of time)"]


def test_a_program_that_wrote_no_cases_is_a_failure_unless_it_is_a_plain_command(suites, tmp_path):
    ctest_file(tmp_path, '<testcase name="ring_test" status="run"/><testcase name="exports" status="run"/>')
    exports = {"name": "exports"}
    ring = {"name": "ring_test", "properties": [{"name": "LABELS", "value": ["gtest"]}]}
    listing = json.dumps({"tests": [ring, exports]})
    tally = suites.count_ctest("unit", tmp_path, 0, suites.plain_tests(listing))
    assert tally.failed == ["unit ring_test (ended well, but wrote no results)"]
    assert tally.passed == 1


@pytest.fixture
def required(suites, tmp_path):
    def write(text: str):
        (tmp_path / "parts").write_text(text)
        return suites.parts.read(tmp_path / "parts")

    return write


def test_a_required_part_that_is_missing_is_named(suites, required, monkeypatch):
    monkeypatch.setitem(suites.parts.PARTS, "mpi", lambda: False)
    monkeypatch.setitem(suites.parts.PARTS, "torch", lambda: True)
    assert required("# why\n\npart mpi\npart torch\n").missing() == ["part mpi: CI requires it, and it is missing here"]


def test_a_skip_that_the_list_does_not_allow_is_named(required):
    allowed = required("skip this processor has\n")
    skips = ["unit Reduce.Avx2: this processor has no AVX2", "python test_mpi.test_sum: this build has no MPI links"]
    assert allowed.wrong_skips(skips) == skips[1:]


@pytest.mark.parametrize("line", ["part nothing", "skip", "mpi"])
def test_a_wrong_line_in_the_list_of_parts_is_an_error(required, line):
    with pytest.raises(ValueError, match="parts:1"):
        required(line)


def test_the_list_of_ci_can_be_read(suites):
    assert suites.parts.read(ROOT / ".ci/parts").parts


def test_no_results_is_a_failure(suites, tmp_path):
    assert suites.count_ctest("unit", tmp_path, 1, set()).failed


def test_output_and_status_of_a_command_are_kept(suites, tmp_path, monkeypatch):
    monkeypatch.setattr(suites, "RESULTS", tmp_path)
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    status, log = suites.run("noisy", ["sh", "-c", "echo said; exit 7"])
    assert status == 7
    assert log.read_text() == "said\n"


def test_a_command_that_hangs_is_ended_with_its_children(suites, tmp_path, monkeypatch):
    monkeypatch.setattr(suites, "RESULTS", tmp_path)
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    monkeypatch.setattr(suites, "HEARTBEAT_SECONDS", 0.2)
    status, log = suites.run("hanging", ["sh", "-c", "sleep 600 & echo $!; wait"], timeout=5)
    assert status == 124
    child = Path(f"/proc/{log.read_text().split()[0]}/stat")
    deadline = time.monotonic() + 30
    while child.exists() and child.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "the child lives"
        time.sleep(0.01)


def test_the_streams_of_the_python_suite_hold_every_test_file_once(suites):
    streams = suites.streams()
    assert all(streams)
    folders = [name for stream in streams for name in stream]
    assert sorted(folders) == sorted({file.parent.name for file in (ROOT / "tests").rglob("test_*.py")})


def test_the_tests_of_a_framework_run_in_their_own_environment(suites, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    monkeypatch.setattr(suites, "run_pytest", lambda *arguments: asked.append(arguments) or suites.Tally(passed=1))
    tally = suites.stream(2, ["tensorflow", "mxnet"])
    assert not asked
    assert tally.skipped == [
        f"{name}: there is no .venv-{name}: run scripts/setup test" for name in ("tensorflow", "mxnet")
    ]
    (tmp_path / ".venv-mxnet/bin").mkdir(parents=True)
    (tmp_path / ".venv-mxnet/bin/python").touch()
    assert suites.stream(2, ["mxnet", "lab"]).passed == 2
    assert asked == [
        ("mxnet", ["tests/mxnet"], {}, [], str(tmp_path / ".venv-mxnet/bin/python")),
        ("python-2", ["tests/lab"], {}, []),
    ]


def test_two_processes_share_the_files_of_the_longest_folder(suites, monkeypatch):
    asked = []
    monkeypatch.setattr(suites, "run_pytest", lambda *arguments: asked.append(arguments) or suites.Tally(passed=1))
    suites.stream(1, ["process"])
    assert asked == [("python-1", ["-n", "2", "--dist", "loadfile", "tests/process"], {}, [])]


def test_suites_that_wait_run_beside_builds_and_a_build_that_fails_is_a_failure(suites, monkeypatch):
    order = []

    def suite(name):
        return lambda _: order.append(name) or suites.Tally(passed=1)

    def beside(_):
        order.append("lint")
        return suites.Tally(failed=["lint x"])

    fakes = {
        "unit": suites.Suite(suite("unit")),
        "lint": suites.Suite(beside, beside=True),
        "asan": suites.Suite(suite("asan"), lambda: order.append("asan's build") or True),
        "tsan": suites.Suite(suite("tsan"), lambda: order.append("tsan's build") or False),
    }
    monkeypatch.setattr(suites, "SUITES", fakes)
    monkeypatch.setattr(suites, "build", lambda *_: order.append("build") or True)
    total = suites.Run(argparse.Namespace(batches=False, suites=list(fakes))).all()
    assert order[0] == "build"
    assert order[-1] == "asan"
    assert sorted(order) == sorted(["build", "unit", "lint", "asan's build", "tsan's build", "asan"])
    assert total.passed == 2
    assert sorted(total.failed) == ["lint x", "tsan: the build"]


def test_without_the_normal_build_nothing_runs(suites, monkeypatch):
    monkeypatch.setattr(suites, "build", lambda *_: False)
    run = suites.Run(argparse.Namespace(batches=True, suites=["unit", "asan"]))
    assert run.all().failed == ["the build"]


@pytest.mark.parametrize(("names", "whole"), [("unit asan", True), ("unit tsan", True), ("unit asan tsan", False)])
def test_what_both_sanitizers_run_is_left_to_them(suites, monkeypatch, names, whole):
    made, ran = [], []
    monkeypatch.setattr(suites, "build", lambda *words, **_: made.append(words) or words[0] == "build")
    monkeypatch.setattr(suites, "run_ctest", lambda *words: ran.append(words) or suites.Tally(passed=1))
    suites.Run(argparse.Namespace(batches=False, suites=names.split())).all()
    assert (f"-DDEFT_SANITIZED_TESTS={'ON' if whole else 'OFF'}" in made[0]) and made[0][0] == "build"
    assert [words[0] for words in ran] == ["unit"]
    assert (ran[0][-2:] == ("-LE", "sanitized")) == (not whole)
