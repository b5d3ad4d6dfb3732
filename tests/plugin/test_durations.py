"""Python reads a duration as the daemon does."""

import pytest
from deft import durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("30S", 30),
        ("500ms", 0.5),
        ("500MS", 0.5),
        ("2m", 120),
        ("1 Min", 60),
        ("1.5h", 5400),
        ("7", 7),
        ("10 us", 1e-5),
        ("1E1s", 10),
    ],
)
def test_durations_are_read_as_the_daemon_reads_them(monkeypatch, text, seconds):
    monkeypatch.setattr(durations, "option", {"timeout": text}.__getitem__)
    assert durations.timeout_seconds() == pytest.approx(seconds)
