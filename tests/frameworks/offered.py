"""What Deft offers: all policies, as the command says, and all codecs of docs/compression.md."""

import re
import subprocess

from under_test import BUILD

CODECS = ["bf16", "fp16", "int8", "int4", "int2", "efsignsgd", "onebit", "signsgd"]
CODECS += ["topk/ratio=0.05", "randk/ratio=0.1", "qsgd", "terngrad"]


def policies():
    said = subprocess.run([BUILD / "bin/deft", "options", "--markdown"], capture_output=True, text=True, check=True)
    return re.search(r"`DEFT_POLICY`.*One of: ([a-z0-9 ]+)\.", said.stdout).group(1).split()
