"""What Horovod's tests import as `common`, which their source distribution does not contain."""

import contextlib
import os
import tempfile


def mpi_env_rank_and_size():
    return int(os.environ["DEFT_RANK"]), int(os.environ["DEFT_WORLD_SIZE"])


@contextlib.contextmanager
def temppath():
    """A path at which nothing is yet."""
    with tempfile.TemporaryDirectory() as folder:
        yield os.path.join(folder, "file")


def skip_or_fail_gpu_test(test, message):
    test.skipTest(message)
