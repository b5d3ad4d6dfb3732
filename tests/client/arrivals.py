"""Workers that wait for each other before they open their sessions."""

import os
import time


def await_all_workers():
    """Imports of one rank may take longer than a short timeout after those of another."""
    arrivals = os.environ["ARRIVALS"]
    with open(f"{arrivals}.{os.environ['RANK']}", "w"):
        pass
    while not all(os.path.exists(f"{arrivals}.{rank}") for rank in range(int(os.environ["WORLD_SIZE"]))):
        time.sleep(0.005)
