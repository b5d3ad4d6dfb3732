import os
import sys

from under_test import BUILD

PACKAGE = BUILD / "python"
sys.path.insert(0, str(PACKAGE))
sys.path.insert(0, os.path.dirname(__file__))
