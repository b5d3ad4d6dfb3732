"""The build that is tested, in an environment that sets nothing of Deft or of a launcher.

Who imports this module, as conftest.py does first of all, forgets what whoever runs the tests has set: DEFT_POLICY or a
rank would change what daemons and workers do. Two variables are for the tests themselves. DEFT_TEST_BUILD names another
build folder than build/. If that build has a sanitizer, DEFT_TEST_PRELOAD names its library: a Python that is built
without a sanitizer has to load it before libdeft.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SET_BY_OTHERS = ("DEFT_", "OMPI_", "PMI_", "PMIX_", "SLURM_")
PLACES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def forget_settings() -> None:
    for name in list(os.environ):
        if name.startswith("DEFT_TEST_"):  # Deft refuses a variable that it does not know; processes of xdist ask again
            os.environ[f"UNDER_{name.removeprefix('DEFT_')}"] = os.environ[name]
        if name.startswith(SET_BY_OTHERS) or name in PLACES:
            del os.environ[name]


forget_settings()
BUILD = Path(os.environ.get("UNDER_TEST_BUILD", ROOT / "build"))
PRELOAD = os.environ.get("UNDER_TEST_PRELOAD")  # None: this build has no sanitizer


def sanitizer_environment() -> dict[str, str]:
    """What a worker needs for a libdeft with a sanitizer. What Python itself leaves at its end counts as no leak."""
    if not PRELOAD:
        return {}
    options = os.environ.get("ASAN_OPTIONS", "").replace("detect_leaks=1", "detect_leaks=0")
    return {"LD_PRELOAD": PRELOAD, "ASAN_OPTIONS": options}
