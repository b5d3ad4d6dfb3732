"""The allocator of the lab's workers, the same for every scheme."""

from __future__ import annotations

import ctypes


def keep() -> None:
    """Lets glibc keep what a step frees for the next one.

    By default it gives large blocks back to the kernel in every step and gets them again as pages to be cleared: a
    fifth of a step here, different from scheme to scheme by the order in which memory is freed. Trainings that care
    about speed use an allocator that keeps memory, so every scheme gets one.
    """
    trim_threshold, top_pad, mmap_max, arena_max = -1, -2, -4, -8  # of malloc.h
    library = ctypes.CDLL(None)
    for option, value in ((mmap_max, 0), (arena_max, 1), (trim_threshold, (1 << 31) - 1), (top_pad, 64 << 20)):
        library.mallopt(option, value)
