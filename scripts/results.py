"""Counts what test programs really ran: the JUnit files of GoogleTest, pytest, ctest and scripts/lint."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree


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


def read_cases(file: Path, suite: str) -> Tally:
    """The test cases of one JUnit file."""
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


def plain_tests(listing: str) -> set[str]:
    """The tests of `ctest --show-only=json-v1` that are no GoogleTest programs: their exit status is their result."""
    plain = set()
    for test in json.loads(listing)["tests"]:
        labels = [p["value"] for p in test.get("properties", []) if p["name"] == "LABELS"]
        if "gtest" not in (labels[0] if labels else []):
            plain.add(test["name"])
    return plain


def count_program(suite: str, test: ElementTree.Element, folder: Path, plain: set[str]) -> Tally:
    """One program of ctest: its cases, or a failure if it wrote none."""
    program, status = test.get("name", ""), test.get("status")
    files = sorted(folder.glob(f"cases/{program}.xml")) + sorted(folder.glob(f"cases/{program}_[0-9]*.xml"))
    tally = Tally()
    for file in files:
        tally.add(read_cases(file, suite))
    if status == "fail":
        if not tally.failed:
            tally.failed.append(f"{suite} {program} (died or ran out of time)")
    elif files:
        pass
    elif status != "run":
        said = (test.findtext("system-out") or "").strip().splitlines()
        tally.skipped.append(f"{suite} {program}: {said[-1] if said else status}")
    elif program in plain:
        tally.passed += 1
    else:
        tally.failed.append(f"{suite} {program} (ended well, but wrote no results)")
    return tally


def count_ctest(suite: str, folder: Path, status: int, plain: set[str]) -> Tally:
    """The cases of all programs that ctest ran; `folder` holds its ctest.xml and the programs' files in cases/."""
    summary = folder / "ctest.xml"
    if not summary.exists():
        return Tally(failed=[f"{suite} ctest wrote no results (status {status})"])
    tally = Tally()
    for test in ElementTree.parse(summary).getroot().iter("testcase"):
        tally.add(count_program(suite, test, folder, plain))
    return tally
