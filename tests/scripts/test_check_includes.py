"""A wrong include is caught, and the tree has none."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(root: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, ROOT / "scripts/check_includes", root], capture_output=True, text=True, check=False
    )


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_the_tree_holds_the_rules():
    result = run(ROOT)
    assert result.returncode == 0, result.stdout


def test_right_includes_pass(tmp_path):
    write(tmp_path, "core/model/dtype.h", "#include <cstdint>\n")
    write(tmp_path, "core/sched/fifo.cc", '#include "core/model/dtype.h"\n#include <vector>\n')
    write(tmp_path, "core/link/gloo/link_impl.cc", "#include <gloo/allreduce.h>\n")
    write(tmp_path, "daemon/main.cc", '#include <glog/logging.h>\n#include "core/sched/fifo.h"\n')
    write(tmp_path, "daemon/base/reactor.h", "#include <cstdint>\n")
    write(tmp_path, "daemon/node/job.h", '#include "daemon/base/reactor.h"\n#include "core/sched/fifo.h"\n')
    write(tmp_path, "daemon/server/server.h", '#include "daemon/node/job.h"\n')
    assert run(tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("path", "include", "says"),
    [
        ("core/sched/fifo.cc", '"core/shm/ring.h"', "core/sched sees only core/base, core/model"),
        ("core/sched/fifo.cc", '"daemon/engine.h"', "core/sched sees only"),
        ("core/base/config.cc", '"core/model/dtype.h"', "core/base sees only itself"),
        ("core/model/tensors.cc", '"core/sched/scheduler.h"', "core/model sees only core/base"),
        ("plugins/torch/hooks.cc", '"core/ipc/message_socket.h"', "plugins sees only core/client"),
        ("core/client/session.cc", "<glog/logging.h>", "only daemon"),
        ("core/ipc/message_socket.cc", "<zmq.hpp>", "only core/link/ps, core/link/curve, daemon, tools"),
        ("core/shm/segment.cc", "<gloo/allreduce.h>", "only core/link/gloo"),
        ("core/client/api.cc", "<google/protobuf/message.h>", "only daemon"),
        ("core/base/config.cc", '"proto/control.pb.h"', "core/base sees only itself"),
        ("tools/main.cc", '"daemon/engine.h"', "tools sees only"),
        ("daemon/main.cc", '"core/client/deft.h"', "daemon sees only"),
        ("daemon/base/reactor.cc", '"daemon/node/job.h"', "daemon/base sees only itself"),
        ("daemon/channel/channel.cc", '"daemon/leader/leader.h"', "daemon/channel sees only daemon/base, daemon/wire"),
        ("daemon/leader/leader.cc", '"daemon/node/job.h"', "daemon/leader sees only daemon/base, daemon/wire"),
        ("daemon/node/job.cc", '"daemon/server/worker_session.h"', "daemon/node sees only daemon/base, daemon/channel"),
        ("daemon/node/job.cc", '"proto/control.pb.h"', "only daemon/wire, tools, proto"),
        ("daemon/novel/thing.cc", "<vector>", "stands in no rule"),
        ("core/sched/fifo.cc", '"../shm/ring.h"', "from the root of the tree"),
        ("core/novel/thing.cc", "<vector>", "stands in no rule"),
    ],
)
def test_a_wrong_include_is_caught(tmp_path, path, include, says):
    write(tmp_path, path, f"// why\n  #  include {include}\n")
    result = run(tmp_path)
    assert result.returncode == 1
    assert path in result.stdout
    assert says in result.stdout


def test_an_include_in_a_comment_is_none(tmp_path):
    write(tmp_path, "core/sched/fifo.cc", '// #include "core/shm/ring.h"\n/*\n#include "core/shm/ring.h"\n*/\n')
    assert run(tmp_path).returncode == 0


def test_a_circle_is_caught(tmp_path):
    write(tmp_path, "core/model/a.h", '#include "core/model/b.h"\n')
    write(tmp_path, "core/model/b.h", '#include "core/model/c.h"\n')
    write(tmp_path, "core/model/c.h", '#include "core/model/a.h"\n')
    result = run(tmp_path)
    assert result.returncode == 1
    assert "a circle of includes: core/model/a.h -> core/model/b.h -> core/model/c.h -> core/model/a.h" in result.stdout


def test_right_imports_pass(tmp_path):
    write(tmp_path, "plugins/python/deft/session.py", "import ctypes\nfrom deft import _native\n")
    write(tmp_path, "plugins/python/deft/_native.py", "import ctypes\n")
    write(tmp_path, "plugins/torch/arena.py", "import torch\nimport deft\nfrom .dtypes import HALVES\n")
    write(tmp_path, "plugins/torch/dtypes.py", "from __future__ import annotations\n")
    write(tmp_path, "bench/lab/job.py", "import numpy\nimport deft\nfrom lab import netns\n")
    write(tmp_path, "bench/lab/netns.py", "import os\n")
    result = run(tmp_path)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("path", "line", "says"),
    [
        ("plugins/python/deft/session.py", "import torch", "plugins/python sees only numpy, setuptools"),
        ("plugins/python/deft/session.py", "import deft.torch", "plugins/python sees only numpy, setuptools"),
        ("plugins/torch/arena.py", "import lab", "plugins/torch sees only plugins/python, torch"),
        ("plugins/torch/arena.py", "import numpy as np", "plugins/torch sees only plugins/python, torch"),
        ("tools/deft_launcher/launch.py", "import deft", "tools sees only optuna"),
        ("scripts/lint.py", "from deft_launcher import hosts", "scripts sees only itself"),
    ],
)
def test_a_wrong_import_is_caught_also_in_a_function(tmp_path, path, line, says):
    write(tmp_path, path, f"def later():\n    {line}\n")
    result = run(tmp_path)
    assert result.returncode == 1
    assert path in result.stdout
    assert says in result.stdout


def test_a_circle_of_imports_is_caught_also_through_a_function(tmp_path):
    write(tmp_path, "bench/lab/job.py", "def start():\n    from lab import worker\n")
    write(tmp_path, "bench/lab/worker.py", "from lab.links import Probe\n")
    write(tmp_path, "bench/lab/links.py", "from .job import Job\n")
    result = run(tmp_path)
    assert result.returncode == 1
    circle = "bench/lab/job.py -> bench/lab/worker.py -> bench/lab/links.py -> bench/lab/job.py"
    assert f"a circle of imports: {circle}" in result.stdout
