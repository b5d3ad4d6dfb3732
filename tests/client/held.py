"""What a process holds, to find leaks."""

import os


def held(pid: int | str = "self") -> tuple[int, int]:
    """Open descriptors and threads of the process."""
    folder = f"/proc/{pid}/task"
    return descriptors(pid), sum(runs(f"{folder}/{task}") for task in os.listdir(folder))


def descriptors(pid: int | str) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def runs(task: str) -> bool:
    """False for a thread that has been joined: the kernel lists it for a moment longer, as exiting (PF_EXITING)."""
    try:
        with open(f"{task}/stat") as stat:
            return not int(stat.read().rpartition(")")[2].split()[6]) & 0x4
    except OSError:  # gone since it was listed
        return False
