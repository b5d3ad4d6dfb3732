import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(os.environ.get("DEFT_TEST_BUILD", ROOT / "build")) / "python"
sys.path.insert(0, str(PACKAGE))
sys.path.insert(0, os.path.dirname(__file__))
