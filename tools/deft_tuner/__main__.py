"""`deft tune` runs this folder by python3, whatever the working directory is."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from deft_tuner import command  # noqa: E402

if __name__ == "__main__":
    sys.exit(command.main(sys.argv[1:]))
