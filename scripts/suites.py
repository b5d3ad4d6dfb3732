"""Builds and runs Deft's test suites and counts their real results; scripts/test calls it after the set-up.

scripts/test [--fuzz-seconds N] [--batches] [--require FILE] [SUITE ...]

  unit    the C++ tests (ctest, GoogleTest)          asan   all of them under AddressSanitizer and UBSan
  python  plugin, process and command tests (pytest) tsan   the programs with threads under ThreadSanitizer
  lint    scripts/lint                               fuzz   every fuzz target for --fuzz-seconds (libFuzzer)

All run without a name. If asan and tsan both run, unit leaves out the programs that do the same there.
While unit and python run, which mostly wait, lint and the builds of the other trees take what they leave of the
processors. asan and tsan also run some process tests with their builds of deftd and libdeft.
--require names a file such as .ci/parts: parts that must be there, and the skips that are right.
The last line is `N passed, N failed, N skipped`; the exit status is 0 when nothing failed.
Output of all commands: build/test-results/.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import parts  # noqa: E402
from results import Tally, count_ctest, plain_tests, read_cases  # noqa: E402

RESULTS = ROOT / "build/test-results"
HEARTBEAT_SECONDS = 30
CTEST_TIMEOUT_SECONDS = 600  # under ThreadSanitizer the longest program took 250 s beside a build
SUITE_TIMEOUT_SECONDS = 1800
BUILD_TIMEOUT_SECONDS = 3600  # builds and lint do not hang; beside tests and with cold caches they take long
FRAMEWORKS = ("tensorflow", "mxnet")  # each has an environment of its own, .venv-NAME, for tests/NAME
# Folders of Python tests that run one after the other, beside those of the other lines and all others: most tests wait.
# The files of a folder in HALVED are shared by two processes of pytest: it would end minutes after the others.
STREAMS = (("process",), (*FRAMEWORKS, "lab", "client", "launcher", "tools"))
HALVED = ("process",)
# For what runs beside tests that keep time. Linux gives each session an equal share of the processors, whatever nice
# says within it, unless the session as a whole is nice.
NICE_SESSION = '{ echo 19 >/proc/self/autogroup; } 2>/dev/null; exec nice -n 15 "$@"'
PATIENT = ("sh", "-c", NICE_SESSION, "patiently")

# AddressSanitizer's tree also has the fuzz targets if there is this compiler: libFuzzer needs it.
CLANG = "clang++-14"

# The process tests of the sanitizer trees: sums of every policy, collectives, several jobs, peers that die or lie.
POLICIES = ("fifo", "mgwfbp", "mergecomp", "p3", "bytescheduler", "prophet", "usbyte", "dear", "knapsack", "auto")
SANITIZED_TESTS = [
    *(f"tests/process/test_reduction.py::test_every_rank_gets_the_exact_sum[2-2-{policy}]" for policy in POLICIES),
    "tests/process/test_reduction.py::test_collectives_of_all_types[2-2]",
    "tests/process/test_reduction.py::test_several_jobs_at_once_are_kept_apart",
    "tests/process/test_faults.py::test_a_killed_node_is_named",
    "tests/process/test_faults.py::test_a_rank_that_ends_early_is_named",
    "tests/process/test_faults.py::test_a_worker_that_exits_by_an_exception_ends_the_others",
    "tests/process/test_bad_input.py::test_collectives_that_differ_fail_alone_and_the_job_goes_on",
    "tests/process/test_bad_input.py::test_garbage_on_the_socket",
]

running: set[subprocess.Popen] = set()


def last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:100] if lines else ""


def end_group(process: subprocess.Popen) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def wait(name: str, process: subprocess.Popen, log: Path, timeout: float) -> int:
    """Waits with a sign of life now and then; the exit status, 124 after `timeout` seconds."""
    began = time.monotonic()
    while True:
        try:
            return process.wait(timeout=HEARTBEAT_SECONDS)
        except subprocess.TimeoutExpired:
            spent = time.monotonic() - began
            print(f"    {name}: {spent:.0f} s, {last_line(log)}", flush=True)
            if spent > timeout:
                end_group(process)
                return 124


def run(
    name: str,
    words: list[str],
    environment: dict[str, str] | None = None,
    timeout: float = SUITE_TIMEOUT_SECONDS,
    patient: bool = False,
):
    """Runs a command with its output in a log. Gives its status and the log. `patient`: others' work goes first."""
    log = RESULTS / f"{name}.log"
    print(f"    {name}: {' '.join(words)}"[:150], flush=True)
    with log.open("w") as out:
        process = subprocess.Popen(
            [*PATIENT, *words] if patient else words,
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        running.add(process)
        try:
            status = wait(name, process, log, timeout)
        except BaseException:
            end_group(process)
            raise
        finally:
            running.discard(process)
    if status != 0:
        print(f"    {name}: ended with {status}; the end of {log.relative_to(ROOT)}:")
        print("\n".join("      " + line for line in log.read_text(errors="replace").splitlines()[-60:]), flush=True)
    return status, log


def build(folder: str, *words: str, patient: bool = False) -> bool:
    command = ["scripts/build", "--into", folder, *words]
    return run(f"{folder}-build", command, timeout=BUILD_TIMEOUT_SECONDS, patient=patient)[0] == 0


def run_ctest(suite: str, folder: str, environment: dict[str, str], wrapper: list[str], *words: str) -> Tally:
    results = RESULTS / suite
    shutil.rmtree(results, ignore_errors=True)
    (results / "cases").mkdir(parents=True)
    environment = {**environment, "GTEST_OUTPUT": f"xml:{results}/cases/", "GTEST_COLOR": "no"}
    ctest = ["ctest", "--test-dir", folder, *words]
    listing = subprocess.run([*ctest, "--show-only=json-v1"], cwd=ROOT, capture_output=True, text=True)
    command = [*wrapper, *ctest, "--output-on-failure", "--no-tests=error", "--timeout", str(CTEST_TIMEOUT_SECONDS)]
    status, _ = run(suite, [*command, "--output-junit", str(results / "ctest.xml")], environment)
    return count_ctest(suite, results, status, plain_tests(listing.stdout) if listing.returncode == 0 else set())


def run_pytest(
    suite: str, tests: list[str], environment: dict[str, str], wrapper: list[str], python: str = sys.executable
) -> Tally:
    results = RESULTS / f"{suite}.xml"
    results.unlink(missing_ok=True)
    words = [*wrapper, python, "-m", "pytest", *tests, "-q", "-ra", "--junitxml", str(results)]
    status, _ = run(suite, words, {"PYTHONFAULTHANDLER": "1", **environment})
    if not results.exists():
        return Tally(failed=[f"{suite}: pytest wrote no results (status {status})"])
    tally = read_cases(results, suite)
    if status != 0 and not tally.failed:
        tally.failed.append(f"{suite}: pytest ended with {status}")
    return tally


def both_sanitizers_run(arguments: argparse.Namespace) -> bool:
    """Then the normal tree leaves out the programs that do the same there."""
    return {"asan", "tsan"} <= set(arguments.suites)


def unit(arguments: argparse.Namespace) -> Tally:
    elsewhere = ["-LE", "sanitized"] if both_sanitizers_run(arguments) else []
    return run_ctest("unit", "build", {}, [], "-j2", *elsewhere)


def streams() -> list[list[str]]:
    """The folders of Python tests in groups that take about as long, to run at the same time."""
    folders = {file.parent.name for file in (ROOT / "tests").glob("*/test_*.py")}
    rest = folders.difference(*STREAMS)
    return [[name for name in stream if name in folders] for stream in (*STREAMS, sorted(rest))]


def of_framework(name: str) -> Tally:
    """The tests with an environment of their own: the frameworks ask for different versions of packages."""
    interpreter = ROOT / f".venv-{name}/bin/python"
    if not interpreter.exists():
        return Tally(skipped=[f"{name}: there is no .venv-{name}: run scripts/setup test"])
    return run_pytest(name, [f"tests/{name}"], {}, [], str(interpreter))


def stream(number: int, folders: list[str]) -> Tally:
    tally = Tally()
    for name in folders:
        if name in FRAMEWORKS:
            tally.add(of_framework(name))
    common = [f"tests/{name}" for name in folders if name not in FRAMEWORKS]
    if common:
        halves = ["-n", "2", "--dist", "loadfile"] if set(folders) & set(HALVED) else []
        tally.add(run_pytest(f"python-{number}", [*halves, *common], {}, []))
    return tally


def python(_: argparse.Namespace) -> Tally:
    tally = Tally()
    groups = streams()
    with ThreadPoolExecutor(len(groups)) as pool:
        for result in pool.map(stream, range(1, len(groups) + 1), groups):
            tally.add(result)
    return tally


def lint(_: argparse.Namespace) -> Tally:
    results = RESULTS / "lint.xml"
    results.unlink(missing_ok=True)
    words = [sys.executable, "scripts/lint", "--junit", str(results)]
    status, log = run("lint", words, timeout=BUILD_TIMEOUT_SECONDS, patient=True)
    for line in log.read_text().splitlines():
        if line.startswith("tidy: "):
            print(f"    {line}")
    return read_cases(results, "lint") if results.exists() else Tally(failed=[f"lint: ended with {status}"])


def by_clang(kind: str) -> bool:
    return kind == "address" and shutil.which(CLANG) is not None


def build_sanitized(folder: str, kind: str, *targets: str) -> bool:
    settings = [f"-DDEFT_SANITIZE={kind}", "-DDEFT_BUILD_BENCH=OFF", "-DDEFT_UNITY=ON"]
    settings += [f"-DCMAKE_CXX_COMPILER={CLANG}"] if by_clang(kind) else []
    return build(folder, *settings, *targets, patient=True)


def runtime(kind: str) -> str:
    """The compiler's sanitizer library, which a Python without it loads first."""
    if by_clang(kind):
        words = [CLANG, "-print-file-name=libclang_rt.asan-x86_64.so"]
    else:
        words = ["c++", "-print-file-name=libasan.so" if kind == "address" else "-print-file-name=libtsan.so"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip()


def sanitized_workers(suite: str, kind: str, environment: dict[str, str], wrapper: list[str]) -> Tally:
    """Process tests with this tree's deftd and libdeft. They mostly wait, so other tests run beside them."""
    tree = str(ROOT / f"build-{suite}")
    environment = {**environment, "DEFT_TEST_BUILD": tree, "DEFT_TEST_PRELOAD": runtime(kind)}
    return run_pytest(f"{suite}-process", SANITIZED_TESTS, environment, wrapper)


def asan(_: argparse.Namespace) -> Tally:
    least = {
        "ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "LSAN_OPTIONS": suppressions("lsan"),
    }
    # That a stack is used after its function has returned is looked for where callbacks are kept: it halves the speed.
    environment = {**least, "ASAN_OPTIONS": f"{least['ASAN_OPTIONS']}:detect_stack_use_after_return=1"}
    with ThreadPoolExecutor(1) as pool:
        workers = pool.submit(sanitized_workers, "asan", "address", environment, [])
        tally = run_ctest("asan", "build-asan", environment, [], "-j2", "-L", "threads")
        tally.add(run_ctest("asan-compute", "build-asan", least, [], "-j2", "-LE", "threads"))
        tally.add(workers.result())
    return tally


def tsan(_: argparse.Namespace) -> Tally:
    # GCC 12's runtime does not know the wider address randomization of newer kernels.
    fixed = ["setarch", "-R"]
    wrapper = fixed if subprocess.run([*fixed, "true"], capture_output=True).returncode == 0 else []
    environment = {"TSAN_OPTIONS": f"second_deadlock_stack=1 {suppressions('tsan')}"}
    with ThreadPoolExecutor(1) as pool:
        workers = pool.submit(sanitized_workers, "tsan", "thread", environment, wrapper)
        tally = run_ctest("tsan", "build-tsan", environment, wrapper, "-j2", "-L", "threads")
        tally.add(workers.result())
    return tally


def suppressions(kind: str) -> str:
    file = ROOT / f"tests/{kind}.supp"
    return f"suppressions={file}" if file.exists() else ""


def build_fuzzers() -> bool:
    if not shutil.which(CLANG):
        return True  # the suite says that it skips
    return build_sanitized("build-asan", "address", "fuzz_targets")


def reached(log: str) -> list[str]:
    """What a fuzzer says that it has reached: of the program, and kinds of messages."""
    program = re.findall(r"cov: (\d+) ft: (\d+)", log)
    edges = [f"{edges} edges of the program" for edges, _ in program[-1:]]
    return edges + re.findall(r"^reached: (.*)", log, re.MULTILINE)


def unreached(by_seeds: str, by_chance: str) -> list[str]:
    """Kinds of messages of a fuzzer that its seeds alone do not reach: then chance decides whether they are tried."""
    rows = [line.rsplit(": ", 1) for line in reached(by_seeds) if ": " in line]
    whole = {
        what for what, count in rows if (found := re.match(r"(\d+) of (\d+) kinds", count)) and found[1] == found[2]
    }
    wanted = {line.rsplit(": ", 1)[0] for line in reached(by_seeds) + reached(by_chance) if ": " in line}
    return [f"the seeds do not reach all {what}" for what in sorted(wanted - whole)]


def fuzz_one(target: Path, seconds: int) -> Tally:
    corpus = ROOT / "build-asan/corpus" / target.name
    corpus.mkdir(parents=True, exist_ok=True)
    seeds = [str(p) for p in ROOT.glob(f"tests/fuzz*/corpus/{target.name}")]
    limits = ["-timeout=10", "-rss_limit_mb=2048", f"-artifact_prefix={RESULTS}/{target.name}-"]
    replayed, replay_log = run(f"fuzz-{target.name}-seeds", [str(target), *seeds, "-runs=0", *limits], timeout=120)
    words = [str(target), str(corpus), *seeds, f"-max_total_time={seconds}", *limits]
    status, log = run(f"fuzz-{target.name}", words, timeout=seconds + 120)
    by_chance = log.read_text(errors="replace")
    for line in reached(by_chance):
        print(f"    fuzz-{target.name}: reached {line}", flush=True)
    if status != 0 or replayed != 0:
        return Tally(failed=[f"fuzz {target.name}: see build/test-results/{target.name}-*"])
    missed = unreached(replay_log.read_text(errors="replace"), by_chance)
    return Tally(failed=[f"fuzz {target.name}: {what}" for what in missed]) if missed else Tally(passed=1)


def fuzz(arguments: argparse.Namespace) -> Tally:
    if not shutil.which(CLANG):
        return Tally(skipped=[f"fuzz: {CLANG} is not installed: run scripts/setup test"])
    targets = sorted(p for p in (ROOT / "build-asan/fuzz").glob("*") if os.access(p, os.X_OK) and p.is_file())
    tally = Tally() if targets else Tally(failed=["fuzz: no target was built"])
    with ThreadPoolExecutor(2) as pool:
        for result in pool.map(lambda target: fuzz_one(target, arguments.fuzz_seconds), targets):
            tally.add(result)
    return tally


@dataclass
class Suite:
    run: Callable[[argparse.Namespace], Tally]
    build: Callable[[], bool] | None = None  # a tree of its own; without it the suite uses build/
    beside: bool = False  # runs beside the suites that wait


SUITES = {
    "unit": Suite(unit),
    "python": Suite(python),
    "lint": Suite(lint, beside=True),
    "asan": Suite(asan, lambda: build_sanitized("build-asan", "address", "deft_tests", "deftd", "python")),
    "tsan": Suite(tsan, lambda: build_sanitized("build-tsan", "thread", "deft_threaded_tests", "deftd", "python")),
    "fuzz": Suite(fuzz, build_fuzzers),
}


class Run:
    """One run of some suites: first what needs build/, with the other builds and lint beside it, then the rest."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.names = arguments.suites
        self.arguments = arguments
        self.total = Tally()
        self.unbuilt: set[str] = set()

    def suite(self, name: str) -> None:
        print(f"==> {name}", flush=True)
        began = time.monotonic()
        tally = SUITES[name].run(self.arguments)
        print(f"==> {name}: {tally} in {time.monotonic() - began:.0f} s", flush=True)
        self.total.add(tally)

    def beside(self) -> None:
        for name in self.names:
            suite = SUITES[name]
            if suite.beside:
                self.suite(name)
            elif suite.build and not suite.build():
                self.unbuilt.add(name)

    def all(self) -> Tally:
        waiting = [name for name in self.names if not SUITES[name].build]
        # The setting configures again: what scripts/setup has installed since the last time is found now.
        sanitized = "OFF" if both_sanitizers_run(self.arguments) else "ON"
        settings = ["-DDEFT_BUILD_TESTS=ON", f"-DDEFT_SANITIZED_TESTS={sanitized}"]
        settings += ["-DDEFT_UNITY=ON"] if self.arguments.batches else []
        if waiting and not build("build", *settings):
            self.total.failed.append("the build")
            return self.total
        try:
            with ThreadPoolExecutor(1) as pool:
                beside = pool.submit(self.beside)
                for name in waiting:
                    if not SUITES[name].beside:
                        self.suite(name)
                beside.result()
        except BaseException:
            for process in list(running):
                end_group(process)
            raise
        self.total.failed += [f"{name}: the build" for name in sorted(self.unbuilt)]
        for name in self.names:
            if SUITES[name].build and name not in self.unbuilt:
                self.suite(name)
        return self.total


def require(file: Path, total: Tally) -> None:
    """Adds to `total` the parts that may not be left out, and are missing; and skips that are not allowed."""
    required = parts.read(file)
    total.failed += required.missing()
    total.failed += [f"a skip that {file.name} does not allow: {line}" for line in required.wrong_skips(total.skipped)]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/test", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fuzz-seconds", type=int, default=8, help="time of each fuzz target")
    parser.add_argument("--batches", action="store_true", help="compile build/ faster, for a clone that nobody edits")
    parser.add_argument("--require", type=Path, metavar="FILE", help="parts that must be there, see scripts/parts.py")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=" ".join(SUITES))
    arguments = parser.parse_args()
    unknown = [name for name in arguments.suites if name not in SUITES]
    if unknown:
        parser.error(f"unknown suite {unknown[0]}: one of {' '.join(SUITES)}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    arguments.suites = arguments.suites or list(SUITES)
    total = Run(arguments).all()
    if arguments.require:
        require(arguments.require, total)
    for reason in total.skipped:
        print(f"skipped: {reason}")
    for failure in total.failed:
        print(f"FAILED: {failure}")
    print(f"all of this took {time.monotonic() - began:.0f} s")
    print(total)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
