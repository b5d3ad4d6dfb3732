"""`cmake --install` gives a tree that works by itself, and the files of deploy/ are sound."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLURM = ("deploy/slurm-prolog", "deploy/slurm-task-prolog", "deploy/slurm-epilog")
VERSION = re.search(r"project\(deft VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed") / "a blank"
    words = ["cmake", "--install", ROOT / "build", "--prefix", folder]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def run(*words, **environment) -> subprocess.CompletedProcess:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(words, capture_output=True, text=True, timeout=60, env={**clean, **environment})


def test_the_installed_programs_run(prefix):
    for program in ("deft", "deftd", "deftrun"):
        result = (
            run(sys.executable, prefix / "bin" / program, "--version")
            if program == "deftrun"
            else run(prefix / "bin" / program, "--version")
        )
        assert result.returncode == 0, result.stderr
    tuner = run(prefix / "bin/deft", "tune", "--help")
    assert tuner.returncode == 0 and tuner.stdout.startswith("usage: deft tune"), tuner.stderr


def test_the_installed_launcher_runs_workers_with_the_installed_package(prefix, tmp_path):
    python = "import deft; print(deft.__file__); s = deft.open(); print(s.rank, s.size); s.close()"
    words = [sys.executable, prefix / "bin/deftrun", "-np", "2", "--nodes", "2", sys.executable, "-c", python]
    result = run(*words, TMPDIR=str(tmp_path))
    assert result.returncode == 0, result.stderr
    lines = sorted(result.stdout.splitlines())
    where = prefix / "lib/deft/python/deft/__init__.py"
    assert lines == sorted(["[0] 0 2", f"[0] {where}", "[1] 1 2", f"[1] {where}"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    made = run(ROOT / "scripts/wheel", "--build", ROOT / "build", "--out", out)
    assert made.returncode == 0, made.stderr
    (file,) = out.glob(f"deft-{VERSION}-py3-none-*.whl")
    return file


def test_the_wheel_is_all_that_a_training_needs(wheel, tmp_path):
    assert run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv").returncode == 0
    python = tmp_path / "venv/bin/python"
    installed = run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel)
    assert installed.returncode == 0, installed.stderr
    script = "import deft; s = deft.open(); s.barrier(); print(deft.__file__, deft.__version__, s.size); s.close()"
    path = f"{tmp_path}/venv/bin:/usr/bin:/bin"
    launch = [tmp_path / "venv/bin/deftrun", "-np", "2", "--nodes", "2", "--links", "gloo:lo", "python", "-c", script]
    result = run(*launch, TMPDIR=str(tmp_path), PATH=path)
    assert result.returncode == 0, result.stderr
    (package,) = tmp_path.glob("venv/lib/python*/site-packages/deft/__init__.py")
    said = [f"[{rank}] {package} {VERSION} 2" for rank in range(2)]
    assert sorted(result.stdout.splitlines()) == said
    for program in ("deft", "deftd", "deftrun"):
        shown = run(tmp_path / "venv/bin" / program, "--version", PATH=path)
        assert shown.stdout.split()[-1] == VERSION, shown.stderr
    built = json.loads(run(tmp_path / "venv/bin/deft", "check-build", "--json", PATH=path).stdout)
    assert all(plugin["here"] for plugin in built["plugins"]), built
    assert {link["name"]: link["here"] for link in built["links"]}["mpi"] is False, (
        "Open MPI does not travel in a wheel"
    )
    tuner = run(tmp_path / "venv/bin/deft", "tune", "--help", PATH=path)
    assert tuner.stdout.startswith("usage: deft tune"), tuner.stderr


def test_the_wheel_has_an_extra_for_each_framework(wheel):
    with zipfile.ZipFile(wheel) as packed:
        metadata = packed.read(f"deft-{VERSION}.dist-info/METADATA").decode()
    assert {"torch", "tensorflow", "mxnet"} <= set(re.findall(r"^Provides-Extra: (\w+)", metadata, re.MULTILINE))


def test_the_wheel_brings_its_libraries(wheel, tmp_path):
    tag = re.search(r"manylinux_\d+_\d+", wheel.name)
    if not tag:
        pytest.skip("there is no auditwheel")
    assert f"`{tag[0]}`" in (ROOT / "docs/install.md").read_text(), "the systems that the wheel is for"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path)
    foreign = set()
    for name in ("bin/deftd", "bin/deft", "libdeft.so"):
        os.chmod(tmp_path / "deft" / name, 0o755)
        for library, where in re.findall(r"(\S+) => (\S+)", run("ldd", tmp_path / "deft" / name).stdout):
            if not where.startswith(str(tmp_path)):
                foreign.add(library.split(".so")[0])
    assert foreign <= {"libstdc++", "libm", "libgcc_s", "libc", "libz", "libpthread", "libresolv", "libdl", "librt"}


def test_the_package_does_not_need_the_tree(prefix):
    links = [path for path in prefix.rglob("*") if path.is_symlink() and ROOT in path.resolve().parents]
    assert links == []


def test_the_installed_readme_leads_to_the_installed_pages(prefix):
    readme = prefix / "share/doc/deft/README.md"
    targets = re.findall(r"\]\((docs/[^)#\s]+|LICENSE)", readme.read_text())
    assert len(targets) > 10
    assert [target for target in targets if not (readme.parent / target).is_file()] == []


def test_the_unit_is_sound(prefix, tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    unit = prefix / "lib/systemd/system/deftd.service"
    text = unit.read_text()
    for line in ("Type=notify", "WatchdogSec=30", "RuntimeDirectory=deft", "LimitMEMLOCK=infinity", "Group=deft"):
        assert line in text.splitlines()
    assert f'ExecStart="{prefix}/bin/deftd" ' in text and f'"--flag-file={prefix}/etc/deft/deftd.conf"' in text
    here = tmp_path / "deftd.service"
    here.write_text(text)
    checked = run("systemd-analyze", "verify", "--man=no", here)
    complaints = [line for line in checked.stderr.splitlines() if "deftd.service" in line]
    assert complaints == []


def test_the_example_configuration_is_accepted_line_by_line(prefix, tmp_path):
    lines = (prefix / "etc/deft/deftd.conf").read_text().splitlines()
    options = [line[2:] for line in lines if line.startswith("# ") and " = " in line and "`" not in line]
    assert len(options) >= 4
    file = tmp_path / "all.conf"
    file.write_text("\n".join(options))
    result = run(prefix / "bin/deft", "status", f"--flag-file={file}", DEFT_SOCKET=str(tmp_path / "none"))
    assert result.returncode == 1, result.stderr  # no daemon there; a wrong option would be 2


def test_an_upgrade_keeps_the_configuration_of_the_administrator(prefix):
    file = prefix / "etc/deft/deftd.conf"
    example = file.read_text()
    assert example == (ROOT / "deploy/deftd.conf").read_text()
    try:
        file.write_text("policy = fifo\n")
        upgraded = run("cmake", "--install", ROOT / "build", "--prefix", prefix)
        assert upgraded.returncode == 0, upgraded.stderr
        assert file.read_text() == "policy = fifo\n"
    finally:
        file.write_text(example)


@pytest.mark.parametrize(
    "script", ["deploy/slurm.sbatch", *SLURM, "scripts/setup", "scripts/build", "scripts/quickstart"]
)
def test_the_scripts_are_sound_shell(script):
    assert run("bash", "-n", ROOT / script).stderr == ""
