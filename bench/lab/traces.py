"""Folders of traces that a user keeps."""

from __future__ import annotations

from pathlib import Path


def without_old_traces(folder: Path) -> Path:
    """The folder, made if it is not there: what an earlier run has left in it would be read with the new traces."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.trace*"):
        old.unlink()
    return folder
