"""The clock of day jumps by years at every look, in daemons and workers: nothing but the dates of the log changes."""

import signal
import subprocess
from pathlib import Path

import pytest
from cluster import BUILD, MARGIN_S, TIMEOUT_S, Cluster, wait_for_line

YEAR_S = 31_536_000
STEPS = 300
# In place of the C library's functions: each look at the clock of day is three years late or early.
JUMPS = f"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
static long jump(void) {{
  static long looks;
  return (__atomic_add_fetch(&looks, 1, __ATOMIC_RELAXED) & 1 ? 3 : -3) * {YEAR_S}L;
}}
int clock_gettime(clockid_t clock, struct timespec* now) {{
  static int (*real)(clockid_t, struct timespec*);
  if (!real) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += jump();
  return failed;
}}
int gettimeofday(struct timeval* now, void* zone) {{
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}}
time_t time(time_t* now) {{
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  if (now) *now = precise.tv_sec;
  return precise.tv_sec;
}}
"""

TRAIN = """
say(f"year {time.gmtime().tm_year}")
group = session.declare("g", [deft.Tensor("t", deft.FLOAT32, (20_000,), 0)])
for step in range(int(os.environ["STEPS"])):
    session.stage(deft.FORWARD, step)
    session.stage(deft.BACKWARD, step)
    vector(group, 0)[:] = rank + step
    group.ready(0, 1, step)
    group.wait(0, 1, step)
    assert (vector(group, 0) == sum(r + step for r in range(size))).all(), step
    session.barrier(f"step {step}") if step % 100 == 0 else None
say("trained")
while not os.path.exists(os.environ["END"]):
    time.sleep(0.01)
session.close()
"""


class JumpingCluster(Cluster):
    """Daemons whose clock of day jumps."""

    def __init__(self, library: Path, **options: str):
        super().__init__(2, **options)
        self.library = library
        self.program = Path(self.folder.name, "deftd")
        self.program.write_text(f'#!/bin/sh\nLD_PRELOAD={library} exec {BUILD / "bin/deftd"} "$@"\n')
        self.program.chmod(0o755)

    def start_daemon(self, node: int, **given) -> subprocess.Popen:
        return super().start_daemon(node, program=self.program, **given)


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("clock")
    (folder / "jumps.c").write_text(JUMPS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "jumps.so", "jumps.c", "-ldl"], cwd=folder, check=True)
    return folder / "jumps.so"


def test_a_job_trains_and_a_stopped_node_is_given_up_in_time_whatever_the_clock_of_day_says(library):
    with JumpingCluster(library, timeout=f"{TIMEOUT_S:g}s") as cluster:
        end = Path(cluster.folder.name, "end")
        workers = cluster.start(TRAIN, STEPS=str(STEPS), END=str(end), LD_PRELOAD=str(library))
        years = {int(wait_for_line(worker, "year").split()[1]) for worker in workers}
        for worker in workers:
            wait_for_line(worker, "trained")
        job = cluster.status()["jobs"][0]
        assert job["stalls"] == [] and job["groups"][0]["step"] == STEPS
        assert all(node["silent_ms"] < 1000 * TIMEOUT_S for node in job["leader"]["nodes"])
        end.touch()
        cluster.finish(workers)

        workers = cluster.start(TRAIN, STEPS=str(10**9), END=str(end), LD_PRELOAD=str(library))
        for worker in workers:
            wait_for_line(worker, "year")
        cluster.daemons[1].send_signal(signal.SIGSTOP)
        _, error = workers[0].communicate(timeout=TIMEOUT_S + MARGIN_S)
        assert workers[0].returncode != 0 and "node 1" in error, error
        logged = {int(line[1:5]) for line in cluster.log(0).splitlines() if line[:1] in "IWE" and line[1:5].isdigit()}
    assert max(logged) - min(logged) >= 5, f"the log should show that the clock jumps: {logged}, {years}"
