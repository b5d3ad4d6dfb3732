"""The Debian package and the manual pages, made from this build and unpacked; tests/deploy/try_package installs it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ports import free_port
from under_test import BUILD

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.search(r"project\(deft VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


def run(*words, **more) -> subprocess.CompletedProcess:
    return subprocess.run(words, capture_output=True, text=True, timeout=120, **more)


def test_the_changelog_begins_with_this_version():
    assert re.findall(r"^## (.*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0] == VERSION


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    if not shutil.which("dpkg-shlibdeps"):
        pytest.skip("there is no dpkg-shlibdeps (Debian's package dpkg-dev)")
    folder = tmp_path_factory.mktemp("package")
    variables = os.environ | {"DEBEMAIL": "maintainers@debian.org"}
    made = run(ROOT / "scripts/package", "--build", BUILD, "--out", folder, env=variables, cwd=ROOT)
    assert made.returncode == 0, made.stderr
    return Path(made.stdout.splitlines()[-1])


def test_a_library_that_no_package_has_is_told(package, tmp_path):
    failing = tmp_path / "dpkg-shlibdeps"
    failing.write_text("#!/bin/sh\necho 'no dependency information found for libx.so' >&2\nexit 2\n")
    failing.chmod(0o755)
    path = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    made = run(ROOT / "scripts/package", "--build", BUILD, "--out", tmp_path / "out", env=path, cwd=ROOT)
    assert made.returncode != 0 and "no dependency information found for libx.so" in made.stderr
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def unpacked(package, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    assert run("dpkg-deb", "-R", package, folder).returncode == 0
    return folder


def test_its_fields_say_what_it_is_and_needs(package):
    fields = dict(re.findall(r"^(\S+): (.*)", run("dpkg-deb", "-f", package).stdout, re.MULTILINE))
    assert fields["Package"] == "deft" and fields["Version"] == VERSION
    needed = fields["Depends"]
    libraries = ("libc6", "libstdc++6", "libzmq5", "libsodium23", "libgoogle-glog", "libprotobuf", "libsystemd0")
    for library in (*libraries, "python3"):
        assert library in needed
    assert "mpi" not in needed


def test_it_has_all_that_a_node_needs(unpacked):
    programs = ("usr/bin/deftd", "usr/bin/deft", "usr/bin/deftrun", "lib/systemd/system/deftd.service")
    package = ("usr/lib/deft/python/deft/torch/__init__.py", "usr/lib/deft/python/deft/tensorflow/__init__.py")
    others = ("usr/lib/sysusers.d/deft.conf", "usr/include/deft.h", "usr/share/doc/deft/docs/operations.md")
    pages = ("usr/share/man/man1/deft.1.gz", "usr/share/man/man8/deftd.8.gz")
    assert [name for name in (*programs, *package, *others, *pages) if not (unpacked / name).is_file()] == []
    unit = (unpacked / "lib/systemd/system/deftd.service").read_text()
    assert "StartLimitIntervalSec=0\n" in unit.split("[Service]")[0], "systemd reads it in [Unit] alone"
    assert 'ExecStart="/usr/bin/deftd" ' in unit and '"--flag-file=/etc/deft/deftd.conf"' in unit
    assert (unpacked / "DEBIAN/conffiles").read_text() == "/etc/deft/deftd.conf\n"
    assert run(unpacked / "usr/bin/deftd", "--version").stdout == f"deftd {VERSION}\n"
    assert not (unpacked / "usr/bin/deftd").stat().st_uid
    assert not list(unpacked.rglob("__pycache__"))


def test_its_scripts_are_sound(unpacked):
    for name in ("preinst", "postinst", "prerm", "postrm"):
        assert run("sh", "-n", unpacked / "DEBIAN" / name).stderr == ""


# On a node of its own: a mount namespace whose /run is empty.
UPGRADE = """
import json, os, signal, socket, subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
os.mkdir("/run/deft")
at, mark = "/run/deft/deftd.sock", "/run/deft-drained-for-upgrade"
words = ["deftd", "--socket=" + at, f"--listen=127.0.0.1:{sys.argv[1]}", "--ready-fd=1"]
daemon = subprocess.Popen(words, stdout=-1, stderr=subprocess.DEVNULL)
assert daemon.stdout.readline() == b"ready\\n"
script = "import deft, sys; s = deft.open(); print('here', flush=True); sys.stdin.read(); s.close()"
named = os.environ | {"DEFT_JOB": "resnet: v2"}
worker = subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, env=named)
assert worker.stdout.readline() == b"here\\n"

def tell(what):
    takes = json.loads(subprocess.run(["deft", "status", "--json"], stdout=-1).stdout)["takes_jobs"]
    print(what, "takes jobs" if takes else "drains", "marked" if os.path.exists(mark) else "plain", flush=True)

def upgrade(script="preinst", action="upgrade", **variables):
    return subprocess.run(["sh", f"{sys.argv[2]}/{script}", action, "0.0.1"], env=os.environ | variables).returncode

tell(upgrade())
tell(upgrade(DEFT_UPGRADE_ANYWAY="1"))
worker.communicate()
subprocess.run(["deft", "drain"], stdout=subprocess.DEVNULL, check=True)  # the administrator waits for the job
tell(upgrade())
tell(upgrade("postrm", "abort-upgrade"))
subprocess.run(["deft", "drain", "--undo"], stdout=subprocess.DEVNULL, check=True)
tell(upgrade())
tell(upgrade("postrm", "abort-upgrade"))
daemon.send_signal(signal.SIGSTOP)
silent = upgrade(DEFT_TIMEOUT="1s")
daemon.send_signal(signal.SIGCONT)
tell(silent)
daemon.terminate()
daemon.wait()
socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).bind(at)
print(upgrade(), "nobody is there")
"""


def test_an_upgrade_is_refused_unless_no_job_runs_and_none_begins_meanwhile():
    clean = os.environ | {"PATH": f"{BUILD / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(BUILD / "python")}
    words = ["unshare", "-Urm", sys.executable, "-c", UPGRADE, str(free_port()), ROOT / "deploy/debian"]
    done = run(*words, env=clean | {"DEFT_SOCKET": "/run/deft/deftd.sock"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "1 takes jobs plain",  # a job runs
        "0 takes jobs plain",  # the administrator does not mind
        "0 drains plain",  # it drained before,
        "0 drains plain",  # so an upgrade that fails changes nothing
        "0 drains marked",
        "0 takes jobs plain",
        "1 takes jobs plain",  # the daemon did not answer
        "0 nobody is there",
    ]
    assert "jobs run on this node: resnet: v2" in done.stderr and "deft drain" in done.stderr
    assert "the daemon does not say whether jobs run" in done.stderr


def test_lintian_finds_nothing(package):
    if not shutil.which("lintian"):
        pytest.skip("there is no lintian")
    found = run("lintian", "--tag-display-limit", "0", package).stdout
    assert [line for line in found.splitlines() if line.startswith(("E:", "W:"))] == []


def test_the_manual_pages_name_every_command_and_option(tmp_path):
    assert run(ROOT / "scripts/man_pages", BUILD / "bin", tmp_path).returncode == 0
    page = (tmp_path / "man1/deft.1").read_text().replace("\\-", "-")
    usage = run(BUILD / "bin/deft", "--help").stdout
    commands = re.findall(r"^  ([a-z]\S+) ", usage, re.MULTILINE)
    assert len(commands) > 8
    assert [name for name in commands if not re.search(rf"^\.B {name}\b", page, re.MULTILINE)] == []
    daemon = (tmp_path / "man8/deftd.8").read_text().replace("\\-", "-")
    options = [row["name"].upper() for row in json.loads(run(BUILD / "bin/deft", "options", "--json").stdout)]
    assert [name for name in options if f"DEFT_{name}" not in daemon] == []
    for path in tmp_path.rglob("*.[18]"):
        if shutil.which("man"):
            shown = run("man", "--warnings", "-l", path, env=os.environ | {"MANWIDTH": "100", "LC_ALL": "C.UTF-8"})
            assert shown.returncode == 0 and shown.stderr == "", shown.stderr
