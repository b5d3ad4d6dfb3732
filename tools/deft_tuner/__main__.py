"""`deft tune` runs this folder by python3, whatever the working directory is."""

import signal
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from deft_tuner import command  # noqa: E402

if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: the job gets its own settings back
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda got, _: sys.exit(128 + got))
    sys.exit(command.main(sys.argv[1:]))
