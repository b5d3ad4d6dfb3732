"""`deft report`: the page of a real traced job, drawn by a real browser that has no network."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cluster import Cluster, deft, json_of
from test_trace import TRAIN, merged_events, trace

STEPS = 24
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def traces(tmp_path_factory) -> Path:
    """Two jobs: under fifo, and under bytescheduler."""
    folder = tmp_path_factory.mktemp("reports")
    for policy in ("fifo", "bytescheduler"):
        (folder / policy).mkdir()
        with Cluster(2) as cluster:
            trace(folder / policy, cluster, DEFT_POLICY=policy)
    return folder


def report(*arguments: str) -> str:
    done = deft("report", *arguments)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip()).read_text()


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)[1])


def drawn_by_browser(page: Path) -> str:
    """The page's elements after its script has run."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--virtual-time-budget=5000"]
    command = [BROWSER, *flags, f"--user-data-dir={page.parent / 'browser'}", "--dump-dom", f"file://{page}#measure"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_page_has_all_that_the_trace_tells_and_needs_no_network(traces):
    page = report(str(traces / "fifo"), "--budget", "1s")
    data = data_of(page)
    # The browser itself keeps the page off the network.
    assert "default-src 'none'" in page and "<script src" not in page and "<link" not in page
    assert data["options"]["policy"] == "fifo" and len(data["timeline"]["nodes"]) == 2
    assert [cause["cause"] for cause in data["causes"]] == [
        cause["cause"] for cause in json_of(deft("explain", str(traces / "fifo"), "--json"))
    ]
    # The steps behind the warm-up and before the last one, which never ends.
    assert data["steps"][0]["step"] == list(range(2, STEPS - 1))
    assert sorted(tensor["tensor"] for tensor in data["tensors"]) == ["t0", "t1", "t2", "t3"]
    assert 0 <= sum(bucket["bytes"] for bucket in data["buckets"]) - 4 * 400_000 < 4096  # the arena is aligned
    assert sum(share["us"] for share in data["shares"]) > 0
    for bucket in data["buckets"]:  # of a step: launches of other steps do not count
        assert bucket["parts"] in (1, 2), "1.6 MB in parts of 1 MB"
        assert bucket["wire_bytes"] == bucket["bytes"]
    works = {row["work"] for row in data["threads"]}
    assert {
        "event loop",
        "all threads",
        "sums, encodes and copies",
        "receives",
        "collects results and sends segments",
    } <= works
    assert {row["place"] for row in data["threads"]} == {"node0", "node0/lo", "node1", "node1/lo"}
    slices = sum(len(track["b"]) for track in data["timeline"]["tracks"])
    merged = [event for event in merged_events(traces / "fifo") if event["ph"] == "X"]
    assert slices == sum(event["cat"] not in ("send", "receive") for event in merged), "all but segments"


def test_explain_writes_the_same_page_without_replays(traces, tmp_path):
    page = tmp_path / "why.html"
    explained = deft("explain", str(traces / "fifo"), "--html", str(page))
    assert explained.returncode == 0 and "where a step's time goes" in explained.stdout, explained.stderr
    data = data_of(page.read_text())
    assert data["causes"][0]["what"] in explained.stdout
    steps_us = data["what_if"]["us"]
    assert sum(us is not None for us in steps_us) <= 8, "no more than the first of each thread"
    unwritten = deft("explain", str(traces / "fifo"), "--html", str(tmp_path / "no" / "why.html"))
    assert unwritten.returncode == 2 and "why.html" in unwritten.stderr


def test_what_if_is_what_replay_says(traces):
    grid = data_of(report(str(traces / "fifo"), "--budget", "10m"))["what_if"]
    assert grid["policies"][0] == "fifo" and grid["nodes"][0] == 2

    def point(policy: str, links: float, compute: float) -> float:
        axes = (grid["policies"].index(policy), 0, grid["compute"].index(compute), grid["links"].index(links))
        p, n, c, k = axes
        at = ((p * len(grid["nodes"]) + n) * len(grid["compute"]) + c) * len(grid["links"]) + k
        return grid["us"][at]

    for policy, links, compute in (("fifo", 1, 1), ("bytescheduler", 0.25, 1), ("fifo", 2, 2)):
        what_if = ("--policy", policy, "--links", f"gloo:lo={links}x", "--compute", f"{compute}x", "--json")
        says = json_of(deft("replay", str(traces / "fifo"), *what_if))[0]["step_us_p50"]
        assert point(policy, links, compute) == round(says)


@pytest.mark.skipif(BROWSER is None, reason="no browser: install chromium")
def test_a_browser_draws_the_page_and_a_comparison(traces, tmp_path):
    page = tmp_path / "page.html"
    data = data_of(
        report(str(traces / "fifo"), "--with", str(traces / "bytescheduler"), "-o", str(page), "--budget", "1s")
    )
    dom = drawn_by_browser(page)
    path = len(data["path"]["b"])
    slices = sum(len(track["b"]) for track in data["timeline"]["tracks"])
    assert f'data-slices="{slices + path}"' in dom, dom[-2000:]
    assert float(re.search(r'data-slowest-frame-ms="([\d.]+)"', dom)[1]) > 0
    assert data["causes"][0]["what"].replace("<", "&lt;") in dom
    assert dom.count("dygraph-legend") >= 2  # steps, and the comparison
    assert re.search(r'<p id="prediction">[\d.]+ ms a step', dom)
    # One bucket of all tensors, and one for each tensor: the first of each has the same number, and other layers.
    assert data["drawn"]["all"] and '<p id="drawn" class="note"></p>' in dom
    assert "bucket 0 on links" not in dom
    assert f"{len(data['buckets'])} of {len(data['buckets'])} buckets are not compared" in dom


def compared_with_itself(traces: Path, folder: Path) -> tuple[Path, str, dict]:
    """The file of a page that compares a trace with the same one, its text, and its data."""
    page = folder / "page.html"
    same = str(traces / "bytescheduler")
    text = report(same, "--with", same, "-o", str(page), "--budget", "0s")
    return page, text, data_of(text)


def with_data(text: str, data: dict) -> str:
    """The same page of other data."""
    before, mark, rest = text.partition('<script id="data" type="application/json">')
    return before + mark + json.dumps(data) + rest[rest.index("</script>") :]


@pytest.mark.skipif(BROWSER is None, reason="no browser: install chromium")
def test_a_page_of_very_many_buckets_does_not_stand_still(traces, tmp_path):
    page, text, data = compared_with_itself(traces, tmp_path)
    like = data["buckets"][0]
    data["buckets"] = [like | {"bucket": bucket, "path_ms": bucket / 1e3} for bucket in range(150_000)]
    data["other"]["buckets"] = data["buckets"]
    page.write_text(with_data(text, data))
    dom = drawn_by_browser(page).partition("<script")[0]
    assert "The first 500 of 150000 rows" in dom
    assert dom.partition('id="bucket-table"')[2].partition("</table>")[0].count("<tr") == 1 + 500
    assert "bucket 7 on links" in dom and "not compared" not in dom


@pytest.mark.skipif(BROWSER is None, reason="no browser: install chromium")
def test_a_page_says_which_steps_of_a_long_trace_it_draws(traces, tmp_path):
    """The trace is not that long: the page is told that it had room for two steps."""
    page, text, data = compared_with_itself(traces, tmp_path)
    steps = [[data["steps"][0][column][at] for column in ("step", "begin", "ms")] for at in (5, 15)]
    drawn = [[step, begin, round(1000 * ms)] for step, begin, ms in steps]
    data["drawn"] = {"all": False, "cut": False, "steps": drawn, "of": STEPS - 3}
    page.write_text(with_data(text, data))
    dom = drawn_by_browser(page)
    assert f"Of {STEPS - 3} steps 2 are drawn, each as a whole and on all nodes" in dom
    for bucket in range(len(data["buckets"])):
        assert f"bucket {bucket} on links" in dom
    assert "not compared" not in dom.partition("<script")[0]


def test_names_of_a_trace_cannot_become_a_script(tmp_path):
    evil = "</script><script>document.title='taken'</script>"
    with Cluster(2) as cluster:
        trace(tmp_path, cluster, TRAIN.replace('f"t{i}"', f"{evil!r} + str(i)"))
    page = report(str(tmp_path), "--budget", "0s")
    assert evil not in page and data_of(page)["tensors"][0]["tensor"].startswith(evil)


def test_report_says_what_it_cannot_do(tmp_path):
    assert deft("report").returncode == 2
    assert deft("report", str(tmp_path)).returncode == 2
    soon = deft("report", str(tmp_path), "--budget", "soon")
    assert soon.returncode == 2 and "--budget is 'soon'" in soon.stderr
