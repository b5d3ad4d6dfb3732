"""Builds and runs Deft's test suites and counts their real results; scripts/test calls it after the set-up.

scripts/test [--fuzz-seconds N] [SUITE ...]

  unit    the C++ tests (ctest, GoogleTest)          asan   the same under AddressSanitizer and UBSan
  python  plugin, process and command tests (pytest) tsan   the same under ThreadSanitizer
  lint    scripts/lint                               fuzz   every fuzz target for --fuzz-seconds (libFuzzer)

All run without a name. The last line is `N passed, N failed, N skipped`; the exit status is 0 when nothing failed.
Output of all commands: build/test-results/.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build/test-results"
HEARTBEAT_SECONDS = 30
CTEST_TIMEOUT_SECONDS = 300
SUITE_TIMEOUT_SECONDS = 1800


@dataclass
class Tally:
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # with their reasons

    def add(self, other: Tally) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self) -> str:
        return f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"


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


def run(name: str, words: list[str], environment: dict[str, str] | None = None, timeout: float = SUITE_TIMEOUT_SECONDS):
    """Runs a command with its output in a log, and a sign of life now and then. Gives its status and the log."""
    log = RESULTS / f"{name}.log"
    began = time.monotonic()
    print(f"    {name}: {' '.join(words)}"[:150], flush=True)
    with log.open("w") as out:
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        try:
            while True:
                try:
                    status = process.wait(timeout=HEARTBEAT_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    spent = time.monotonic() - began
                    print(f"    {name}: {spent:.0f} s, {last_line(log)}", flush=True)
                    if spent > timeout:
                        end_group(process)
                        status = 124
                        break
        except BaseException:
            end_group(process)
            raise
    if status != 0:
        print(f"    {name}: ended with {status}; the end of {log.relative_to(ROOT)}:")
        print("\n".join("      " + line for line in log.read_text(errors="replace").splitlines()[-60:]), flush=True)
    return status, log


def read_cases(file: Path, suite: str) -> Tally:
    """Counts the test cases of a JUnit file, as GoogleTest, pytest, ctest and scripts/lint write them."""
    tally = Tally()
    for case in ElementTree.parse(file).getroot().iter("testcase"):
        name = f"{suite} {case.get('classname', '')}.{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            tally.failed.append(name)
        elif skipped is not None or case.get("result") == "skipped" or case.get("status") == "notrun":
            reason = (skipped.get("message") if skipped is not None else None) or "disabled"
            tally.skipped.append(f"{name}: {reason.strip().splitlines()[-1]}")
        else:
            tally.passed += 1
    return tally


def build(folder: str, *settings: str) -> bool:
    words = ["scripts/build", "--into", folder, *settings]
    return run(f"{folder}-build", words)[0] == 0


def count_ctest(suite: str, folder: Path, status: int) -> Tally:
    """The GoogleTest cases that ctest's programs wrote; one that died without a file counts as failed."""
    tally = Tally()
    summary = folder / "ctest.xml"
    if not summary.exists():
        return Tally(failed=[f"{suite} ctest wrote no results (status {status})"])
    for test in ElementTree.parse(summary).getroot().iter("testcase"):
        program = test.get("name", "")
        files = sorted(folder.glob(f"cases/{program}.xml")) + sorted(folder.glob(f"cases/{program}_[0-9]*.xml"))
        cases = Tally()
        for file in files:
            cases.add(read_cases(file, suite))
        ran_badly = test.get("status") == "fail"
        if ran_badly and not cases.failed:
            cases.failed.append(f"{suite} {program} (died or ran out of time)")
        elif not files and test.get("status") == "run":
            cases.passed += 1
        elif not files and not ran_badly:
            cases.skipped.append(f"{suite} {program}: {test.get('status')}")
        tally.add(cases)
    return tally


def run_ctest(suite: str, build_folder: str, environment: dict[str, str], wrapper: list[str]) -> Tally:
    results = RESULTS / suite
    shutil.rmtree(results, ignore_errors=True)
    (results / "cases").mkdir(parents=True)
    environment = {**environment, "GTEST_OUTPUT": f"xml:{results}/cases/", "GTEST_COLOR": "no"}
    words = [*wrapper, "ctest", "--test-dir", build_folder, "--output-on-failure", "--no-tests=error"]
    words += ["--timeout", str(CTEST_TIMEOUT_SECONDS), "--output-junit", str(results / "ctest.xml")]
    status, _ = run(suite, words, environment)
    return count_ctest(suite, results, status)


def unit(_: argparse.Namespace) -> Tally:
    return run_ctest("unit", "build", {}, [])


def python(_: argparse.Namespace) -> Tally:
    results = RESULTS / "python.xml"
    results.unlink(missing_ok=True)
    words = [sys.executable, "-m", "pytest", "tests", "-q", "-ra", "--junitxml", str(results)]
    status, _ = run("python", words, {"PYTHONFAULTHANDLER": "1"})
    if not results.exists():
        return Tally(failed=[f"python: pytest wrote no results (status {status})"])
    tally = read_cases(results, "python")
    if status != 0 and not tally.failed:
        tally.failed.append(f"python: pytest ended with {status}")
    return tally


def lint(_: argparse.Namespace) -> Tally:
    results = RESULTS / "lint.xml"
    results.unlink(missing_ok=True)
    status, log = run("lint", [sys.executable, "scripts/lint", "--junit", str(results)])
    for line in log.read_text().splitlines():
        if line.startswith("tidy: time was up"):
            print(f"    {line}")
    return read_cases(results, "lint") if results.exists() else Tally(failed=[f"lint: ended with {status}"])


def sanitizer_settings(kind: str) -> list[str]:
    return [f"-DDEFT_SANITIZE={kind}", "-DDEFT_BUILD_BENCH=OFF"]


def asan(_: argparse.Namespace) -> Tally:
    if not build("build-asan", *sanitizer_settings("address")):
        return Tally(failed=["asan: the build"])
    environment = {
        "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "LSAN_OPTIONS": suppressions("lsan"),
    }
    return run_ctest("asan", "build-asan", environment, [])


def tsan(_: argparse.Namespace) -> Tally:
    if not build("build-tsan", *sanitizer_settings("thread")):
        return Tally(failed=["tsan: the build"])
    # GCC 12's runtime does not know the wider address randomization of newer kernels.
    fixed = ["setarch", "-R"]
    wrapper = fixed if subprocess.run([*fixed, "true"], capture_output=True).returncode == 0 else []
    return run_ctest("tsan", "build-tsan", {"TSAN_OPTIONS": f"second_deadlock_stack=1 {suppressions('tsan')}"}, wrapper)


def suppressions(kind: str) -> str:
    file = ROOT / f"tests/{kind}.supp"
    return f"suppressions={file}" if file.exists() else ""


def fuzz(arguments: argparse.Namespace) -> Tally:
    if not shutil.which("clang++-14"):
        return Tally(skipped=["fuzz: clang++-14 is not installed: run scripts/setup"])
    folder = ROOT / "build-fuzz"
    if not build("build-fuzz", "-DDEFT_FUZZ=ON", "-DCMAKE_CXX_COMPILER=clang++-14", "fuzz_targets"):
        return Tally(failed=["fuzz: the build"])
    tally = Tally()
    for target in sorted(p for p in (folder / "fuzz").glob("*") if os.access(p, os.X_OK) and p.is_file()):
        corpus = folder / "corpus" / target.name
        corpus.mkdir(parents=True, exist_ok=True)
        seeds = [str(p) for p in ROOT.glob(f"tests/fuzz*/corpus/{target.name}")]
        words = [str(target), str(corpus), *seeds, f"-max_total_time={arguments.fuzz_seconds}", "-timeout=10"]
        words += ["-rss_limit_mb=2048", f"-artifact_prefix={RESULTS}/{target.name}-"]
        status, _ = run(f"fuzz-{target.name}", words, timeout=arguments.fuzz_seconds + 120)
        if status == 0:
            tally.passed += 1
        else:
            tally.failed.append(f"fuzz {target.name}: see build/test-results/{target.name}-*")
    if not tally.passed and not tally.failed:
        tally.failed.append("fuzz: no target was built")
    return tally


SUITES = {"unit": unit, "python": python, "lint": lint, "asan": asan, "tsan": tsan, "fuzz": fuzz}
NEED_BUILD = {"unit", "python", "lint"}


def run_suites(names: list[str], arguments: argparse.Namespace) -> Tally:
    total = Tally()
    built = not NEED_BUILD.intersection(names) or build("build")
    if not built:
        total.failed.append("the build")
    for name in names:
        if name in NEED_BUILD and not built:
            continue
        print(f"==> {name}", flush=True)
        began = time.monotonic()
        tally = SUITES[name](arguments)
        print(f"==> {name}: {tally} in {time.monotonic() - began:.0f} s", flush=True)
        total.add(tally)
    return total


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/test", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fuzz-seconds", type=int, default=20, help="time of each fuzz target")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=" ".join(SUITES))
    arguments = parser.parse_args()
    unknown = [name for name in arguments.suites if name not in SUITES]
    if unknown:
        parser.error(f"unknown suite {unknown[0]}: one of {' '.join(SUITES)}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    total = run_suites(arguments.suites or list(SUITES), arguments)
    for reason in total.skipped:
        print(f"skipped: {reason}")
    for failure in total.failed:
        print(f"FAILED: {failure}")
    print(f"all of this took {time.monotonic() - began:.0f} s")
    print(total)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
