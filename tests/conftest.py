"""For all tests in Python."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def load():
    """load("scripts/lint") gives a program of the tree as a module, with or without the ending .py."""

    def made(path: str) -> ModuleType:
        name = Path(path).stem
        loader = importlib.machinery.SourceFileLoader(name, str(ROOT / path))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
        sys.modules[name] = module  # dataclasses look it up
        loader.exec_module(module)
        return module

    return made
