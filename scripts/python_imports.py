"""The Python half of scripts/check_includes: which Python folder may import which, and no circles.

Imports inside functions count as those at a module's head do: they only hide a circle until it runs.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

# folder -> the folders whose modules it may import besides its own, and the packages from outside; "*": anything.
MAY_IMPORT: dict[str, set[str]] = {
    "plugins/python": {"setuptools", "numpy"},  # setup.py; the code that plugins with numpy arrays share
    "plugins/torch": {"plugins/python", "torch"},
    "plugins/mxnet": {"plugins/python", "mxnet", "numpy"},
    "plugins/tensorflow": {"plugins/python", "tensorflow", "keras", "numpy"},
    "tools": {"optuna"},  # which is optional
    "scripts": set(),
    "cmake": set(),
    "bench": {"*"},
    "examples": {"*"},
}
# import name -> the folder of its modules. The longest name counts.
PACKAGES = {
    "deft": "plugins/python/deft",
    "deft.torch": "plugins/torch",
    "deft.mxnet": "plugins/mxnet",
    "deft.tensorflow": "plugins/tensorflow",
    "deft.tensorflow.keras": "plugins/tensorflow/keras",
    "lab": "bench/lab",
    "deft_launcher": "tools/deft_launcher",
    "deft_tuner": "tools/deft_tuner",
}


def folder_of(path: str) -> str | None:
    """The folder of MAY_IMPORT that `path` lies in."""
    return next((folder for folder in MAY_IMPORT if path.startswith(folder + "/")), None)


def is_python(file: Path) -> bool:
    if file.suffix or not file.is_file():
        return file.suffix == ".py"
    with file.open("rb") as stream:
        first = stream.readline(100)
    return first.startswith(b"#!") and b"python" in first


def module_names(path: str, node: ast.stmt) -> list[str]:
    """The full names that an import statement may mean: `from a import b` is a module a.b or a name of a."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        own = Path(path).parent
        for _ in range(node.level - 1):
            own = own.parent
        package = next((name for name, folder in PACKAGES.items() if folder == own.as_posix()), own.name)
        base = f"{package}.{base}" if base else package
    return [f"{base}.{alias.name}" for alias in node.names]


def find(root: Path, path: str, name: str) -> str | None:
    """The file of ours that `name` means; None for a package from outside."""
    beside = (root / path).parent / (name.split(".")[0] + ".py")
    package = max((p for p in PACKAGES if name == p or name.startswith(p + ".")), key=len, default=None)
    if package is None:
        return beside.relative_to(root).as_posix() if beside.is_file() else None
    folder = root / PACKAGES[package]
    module = folder / (name.removeprefix(package).lstrip(".").split(".")[0] + ".py")
    file = module if module.is_file() else folder / "__init__.py"
    return file.relative_to(root).as_posix()


def error_of(path: str, source: str, name: str, target: str | None) -> str | None:
    allowed = MAY_IMPORT[source]
    if target is not None:
        place = folder_of(target)
        wrong = place != source and place not in allowed
    else:
        place = name.split(".")[0]
        wrong = place not in sys.stdlib_module_names and place not in allowed
    if not wrong or "*" in allowed:
        return None
    return (
        f"{path}: imports {name}: {source} sees only {', '.join(sorted(allowed)) or 'itself'} and Python's own modules"
    )


def check(root: Path) -> tuple[list[str], dict[str, list[str]]]:
    """A line for each wrong import, and the graph of the imports between our files."""
    errors: list[str] = []
    graph: dict[str, list[str]] = {}
    for top in sorted({folder.split("/")[0] for folder in MAY_IMPORT}):
        for file in sorted((root / top).rglob("*")):
            path = file.relative_to(root).as_posix()
            source = folder_of(path)
            if source is None or not is_python(file):
                continue
            graph[path] = []
            statements = [n for n in ast.walk(ast.parse(file.read_text(), path)) if isinstance(n, ast.stmt)]
            for name in (name for statement in statements for name in module_names(path, statement)):
                target = find(root, path, name)
                error = error_of(path, source, name, target)
                if error:
                    errors.append(error)
                if target and target != path and not (file.name == "__init__.py" and target.endswith("__init__.py")):
                    graph[path].append(target)
    return sorted(set(errors)), graph
