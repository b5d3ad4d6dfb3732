"""What a script's calls that trace the job do if the job no longer obeys."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from deft import tracing


def test_a_timeline_is_written_although_its_trace_has_ended_already(monkeypatch, tmp_path):
    written = []

    def obey(function, *_):
        if function is tracing.lib.deft_trace_stop:
            raise RuntimeError("the job writes no trace (start one first)")

    monkeypatch.setattr(tracing.world, "session", lambda: SimpleNamespace(handle=lambda: None))
    monkeypatch.setattr(tracing.world, "rank", lambda: 0)
    monkeypatch.setattr(tracing, "option", lambda name: "")
    monkeypatch.setattr(tracing, "call", obey)
    monkeypatch.setattr(tracing, "_write_timeline", lambda traces, timeline: written.append((traces, timeline)))
    path = tmp_path / "timeline.json"
    tracing.start_timeline(path)
    with pytest.raises(RuntimeError, match="writes no trace"):
        tracing.stop_timeline()
    assert written == [(Path(f"{path}.traces"), path)]
    with pytest.raises(ValueError, match="no timeline was started"):
        tracing.stop_timeline()
