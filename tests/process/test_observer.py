"""A job seen from outside: what daemons serve over HTTP agrees with `deft status`, and Prometheus works with it."""

import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from cluster import BUILD, Cluster, free_port, wait_for_line, wait_until
from hostile import Client

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus-alerts.yaml"
DASHBOARD = ROOT / "deploy/grafana-dashboard.json"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
GOOD = '<span class="good">'
STEPS = 12

TRAIN = """
group = session.declare("g", [deft.Tensor("t", deft.FLOAT32, (50_000,), 0)])
for step in range(int(os.environ["STEPS"])):
    session.stage(deft.FORWARD, step)
    session.stage(deft.BACKWARD, step)
    vector(group, 0, np.float32)[:] = 1
    group.ready(0, 1, step)
    group.wait(0, 1, step)
    time.sleep(0.02)  # traffic is measured ten times a second
say("trained")
while not os.path.exists(os.environ["END"]):
    time.sleep(0.01)
session.close()
"""

SAMPLE = re.compile(r'([a-z_]+)((?:\{[a-z_]+="[^"]*"(?:,[a-z_]+="[^"]*")*\})?) (\S+)')


def fetch(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def samples(text: str) -> dict[str, float]:
    found = {}
    for line in text.replace('\\"', "'").splitlines():
        if not line.startswith("#"):
            name, labels, value = SAMPLE.fullmatch(line).groups()
            assert name + labels not in found, line
            found[name + labels] = float(value)
    return found


@pytest.fixture(scope="module")
def training():
    """Two nodes whose workers have trained STEPS steps and wait; the address of each daemon."""
    with Cluster(2, metrics="127.0.0.1:0") as cluster:
        end = Path(cluster.folder.name, "end")
        for worker in cluster.start("os._exit(0)", DEFT_JOB="short"):
            worker.wait(60)
        with Client(cluster.socket(0)) as client:
            client.hello(job=b"a\tb")
            assert "control characters" in client.refusal()
        wait_until(lambda: cluster.status(0)["ended_jobs"], what="the end of the first job")
        workers = cluster.start(TRAIN, per_node=1, STEPS=str(STEPS), END=str(end), DEFT_JOB='a "job"')
        for worker in workers:
            wait_for_line(worker, "trained")
        cluster.addresses = [cluster.status(node)["metrics"] for node in range(2)]
        yield cluster
        end.touch()
        cluster.finish(workers)
        for address in cluster.addresses:
            wait_until(
                lambda at=address: samples(fetch(at, "/metrics")[1])['deft_jobs_ended_total{reason="well"}'] == 1
            )
        assert cluster.status(0)["ended_jobs"][0]["name"] == 'a "job"'


def test_metrics_and_status_tell_the_same(training):
    status = training.status(0)
    link = status["jobs"][0]["links"][0]
    found = samples(fetch(training.addresses[0], "/metrics")[1])
    job = f'job="a \'job\'",user="{os.geteuid()}"'
    labels = f'{{{job},link="{link["name"]}"}}'
    assert found["deft_link_bytes_total" + labels] == link["bytes"] >= STEPS * 200_000
    assert found["deft_link_transfer_seconds_count" + labels] == link["transfers"]["count"] == link["parts"]
    assert found[f'deft_worker_steps_total{{{job},rank="0"}}'] == STEPS - 1
    assert found[f'deft_group_updates_total{{{job},group="0"}}'] == STEPS
    assert found["deft_arena_bytes"] == status["memory_bytes"] > 0
    assert found["deft_up"] == found["deft_takes_jobs"] == found["deft_jobs"] == 1
    nodes = [name for name in found if name.startswith("deft_node_silent_seconds")]
    assert len(nodes) == 2 and all(found[name] < 60 for name in nodes)
    assert found["process_threads"] >= 3 and found["process_open_fds"] > 10
    other = samples(fetch(training.addresses[1], "/metrics")[1])
    assert any(name.startswith("deft_job_leader_silent") for name in other)


def test_what_each_user_has_and_how_jobs_ended_is_told(training):
    uid = os.geteuid()
    status = training.status(0)
    found = samples(fetch(training.addresses[0], "/metrics")[1])
    assert 200_000 <= found[f'deft_user_memory_bytes{{user="{uid}"}}'] <= status["memory_bytes"]
    links = status["jobs"][0]["links"]  # each has a thread, and work that blocks has some now and then
    assert len(links) <= found[f'deft_user_threads{{user="{uid}"}}'] < found["process_threads"]
    assert found['deft_ring_drops_total{reason="unread"}'] == found['deft_ring_drops_total{reason="corrupt"}'] == 0
    assert found["deft_ring_overflows_total"] == 0
    assert found[f'deft_user_sessions{{user="{uid}"}}'] >= 1 and found[f'deft_user_descriptors{{user="{uid}"}}'] >= 3
    assert found[f'deft_clients_refused_total{{user="{uid}",reason="invalid"}}'] == 1
    [ended] = [name for name in found if name.startswith("deft_ended_job_age_seconds")]
    assert f'job="short",user="{uid}",number="1",reason="lost",cause="' in ended and "rank" in ended
    link = next(name for name in found if name.startswith("deft_link_acknowledged_bytes_total"))
    assert found[link] >= 200_000 and link.replace("acknowledged_bytes", "retransmits") in found


def test_the_table_of_metrics_in_the_documentation_is_that_of_the_daemon(training):
    text = fetch(training.addresses[0], "/metrics")[1]
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    served = [(name, kinds[name], what) for name, what in re.findall(r"^# HELP (\w+) (.+)$", text, re.MULTILINE)]
    page = (ROOT / "docs/operations.md").read_text()
    assert re.findall(r"^\| `(\w+)` \| (\w+) \| [^|]*\| (.+) \|$", page, re.MULTILINE) == served


def test_status_over_http_is_that_of_the_tool(training):
    code, text = fetch(training.addresses[0], "/status")
    assert code == 200
    ours, tool = json.loads(text), training.status(0)
    assert ours["jobs"][0]["links"] == tool["jobs"][0]["links"] and ours["pid"] == tool["pid"]
    assert set(tool) <= set(ours)


def test_the_page_shows_the_job_and_needs_nothing_from_elsewhere(training):
    code, page = fetch(training.addresses[0], "/")
    assert code == 200 and "<h2>a &quot;job&quot; <span class=good>running</span></h2>" in page
    assert not re.search(r"<script|https?:|src=|@import", page)


@pytest.mark.skipif(BROWSER is None, reason="no browser: install chromium")
def test_a_browser_shows_the_page(training, tmp_path):
    """What the browser has made of it: every table has its rows, and nothing of the page is left as text."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path}"]
    words = [BROWSER, *flags, "--dump-dom", f"http://{training.addresses[0]}/"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    page = done.stdout
    assert '<h2>a "job" <span class="good">running</span></h2>' in page, page[-2000:]
    titles = re.findall(r"<h3>(.*?)</h3>", page)
    assert titles == ["Daemon", "Workers", "Links", "Nodes", "Users", "Ended jobs"]
    tables = [table.count("<tr>") for table in re.findall(r"<table>(.*?)</table>", page, re.DOTALL)]
    assert len(tables) == len(titles) and min(tables) >= 2 and tables[titles.index("Nodes")] == 3
    assert f"<td>gloo:lo</td><td>{GOOD}open</span></td>" in page and f"<td>{GOOD}attached</span></td>" in page


def test_a_second_daemon_at_the_same_address_says_so(training, tmp_path):
    words = [BUILD / "bin/deftd", f"--socket={tmp_path}/d.sock", f"--listen=127.0.0.1:{free_port('127.0.0.1')}"]
    words.append(f"--metrics={training.addresses[0]}")
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "another program holds this port" in done.stderr and "DEFT_METRICS" in done.stderr


# --- Prometheus


def expressions() -> list[str]:
    """All that the dashboard asks for, with Grafana's variables filled in."""
    filled = {"$instance": ".*", "$job": ".*", "$__rate_interval": "1m", "$__range": "1m"}
    found = [target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]]
    for name, value in filled.items():
        found = [text.replace(name, value) for text in found]
    return found


@pytest.fixture(scope="module")
def prometheus(training, tmp_path_factory):
    if not shutil.which("prometheus"):
        pytest.skip("there is no prometheus (Debian's package of this name; scripts/setup test)")
    folder = tmp_path_factory.mktemp("prometheus")
    config = (ROOT / "deploy/prometheus.yaml").read_text()
    targets = ", ".join(f'"{address}"' for address in training.addresses)
    config = re.sub(r"_interval: \d+s", "_interval: 2s", config.replace('"127.0.0.1:29612"', targets))
    (folder / "prometheus.yaml").write_text(config.replace("prometheus-alerts.yaml", str(RULES)))
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    words = ["prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
    words.append(f"--web.listen-address={address}")
    with open(folder / "log", "w") as log:
        server = subprocess.Popen(words, stdout=log, stderr=log)

    def ask(path: str) -> dict:
        return json.loads(fetch(address, "/api/v1" + path)[1])["data"]

    def scraped() -> bool:
        try:
            return len(ask("/query?query=deft_up")["result"]) == 2
        except (OSError, KeyError, json.JSONDecodeError):  # it starts
            assert server.poll() is None, (folder / "log").read_text()
            return False

    wait_until(scraped, what="the first scrape by Prometheus")
    yield ask
    server.terminate()
    server.wait(timeout=60)


def query(prometheus, expression: str) -> list[dict]:
    return prometheus("/query?query=" + urllib.request.quote(expression))["result"]


def test_prometheus_scrapes_the_daemons_and_loads_the_rules(prometheus):
    def health() -> list[str]:
        return [target["health"] for target in prometheus("/targets")["activeTargets"]]

    wait_until(lambda: health() == ["up", "up"], what="daemons that answer Prometheus")  # a scrape may take too long
    [group] = prometheus("/rules")["groups"]
    assert len(group["rules"]) >= 9 and all(rule.get("lastError", "") == "" for rule in group["rules"])
    newest = query(prometheus, "last_over_time(deft_job_world[10m])")
    assert newest[0]["metric"]["job"] == 'a "job"'


def test_every_panel_and_alert_asks_for_metrics_that_there_are(prometheus):
    rules = re.findall(r"expr: (.*)", RULES.read_text())
    # This job makes no plans and encodes nothing. Its callbacks may all be shorter than a millisecond.
    may_miss = {"deft_plan_staleness_steps", "deft_plan_stale_ratio", "deft_plan_codec_error", "deft_link_codec_error"}
    may_miss.add("deft_reactor_callback_seconds")
    wanted = set(re.findall(r"\b(?:deft|process)_[a-z_]+", " ".join(expressions() + rules))) - may_miss
    there = {series["__name__"] for series in prometheus('/series?match[]={__name__=~"deft_.*|process_.*"}')}
    assert wanted - there == set()
    for expression in expressions() + rules:
        query(prometheus, expression)  # an error has no "data"


def test_a_panel_has_a_curve(prometheus):
    def rate() -> bool:
        return len(query(prometheus, "rate(deft_reactor_turn_seconds_count[1m])")) == 2

    wait_until(rate, what="two scrapes of each daemon")


def interval(what: str) -> str:
    return re.search(rf"{what}_interval: (\d+s)", (ROOT / "deploy/prometheus.yaml").read_text())[1]


def promtool(*words: str, **options) -> str:
    """What it complains of."""
    if not shutil.which("promtool"):
        pytest.skip("there is no promtool (Debian's package prometheus; scripts/setup test)")
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60, **options)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def rule_faults(tests: list[dict], folder: Path) -> str:
    file = folder / "alerts_test.yaml"
    content = {"rule_files": [str(RULES)], "evaluation_interval": interval("evaluation"), "tests": tests}
    file.write_text(json.dumps(content))
    return promtool("test", "rules", str(file))


def firing(alert: str, when: str, samples: list[dict]) -> dict:
    return {
        "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
        "eval_time": when,
        "exp_samples": samples,
    }


ONE = [{"labels": "{}", "value": 1}]


def test_the_alerts_fire_when_they_should(tmp_path):
    series = {
        "DeftDaemonHangs": ("deft_up", "0x9"),
        "DeftEventLoopSlow": ("deft_reactor_longest_callback_seconds", "0.3x9"),
        "DeftJobFailed": ('deft_jobs_ended_total{reason="lost"}', "0 0 0 1x6"),
        "DeftLinkLost": ("deft_link_lost", "0 1x8"),
        "DeftLinkLosesPackets": ("deft_link_retransmits_total", "0+1200x9"),
        "DeftNodeSilent": ("deft_node_silent_seconds", "6x9"),
        "DeftJobStalls": ("deft_job_stalls", "1x9"),
        "DeftProtocolViolations": ('deft_sessions_lost_total{reason="violation"}', "0+60x9"),
        "DeftDescriptorsShort": ("process_open_fds", "900x9"),
        "DeftArenasFull": ("deft_arena_bytes", "95x9"),
    }
    calm = {"deft_up": "1x9", "process_max_fds": "1000x9", "deft_arena_limit_bytes": "100x9"}
    assert set(series) == set(re.findall(r"alert: (\w+)", RULES.read_text()))
    tests = []
    for alert, (name, values) in series.items():
        shown = calm | {name: values}
        checks = [{"eval_time": "9m", "alertname": other, "exp_alerts": []} for other in series if other != alert]
        inputs = [{"series": one, "values": text} for one, text in shown.items()]
        tests.append({"name": alert, "interval": "1m", "input_series": inputs, "alert_rule_test": checks})
        tests[-1]["promql_expr_test"] = [firing(alert, "9m", ONE)]
    assert rule_faults(tests, tmp_path) == ""


SOON_OVER = {
    "its job ends after half of the timeout": (
        "DeftNodeSilent",
        {'deft_node_silent_seconds{job="j"}': "0x3 5.1 stale"},
    ),
    "it was silent for a moment": ("", {'deft_node_silent_seconds{job="j"}': "0x3 3 0x9"}),
    "the watchdog ends it": ("DeftDaemonHangs", {'up{job="deft"}': "1x13", "deft_up": "1x3 0 1x9"}),
    "it is dead": ("DeftDaemonHangs", {'up{job="deft"}': "1x3 0x9", "deft_up": "1x3 stale"}),
    "it is restarted": ("", {'up{job="deft"}': "1x3 0 1x9", "deft_up": "1x3 stale 1x9"}),
}


def test_the_alerts_see_what_is_soon_over(tmp_path):
    """Samples as deploy/prometheus.yaml takes them; a series ends with its job, or with its daemon."""
    tests = []
    for name, (alert, series) in SOON_OVER.items():
        inputs = [{"series": one, "values": text} for one, text in series.items()]
        tests.append({"name": name, "interval": interval("scrape"), "input_series": inputs})
        tests[-1]["promql_expr_test"] = [
            firing(one, "75s", ONE if one == alert else []) for one in ("DeftNodeSilent", "DeftDaemonHangs")
        ]
    assert rule_faults(tests, tmp_path) == ""


def test_promtool_finds_nothing_to_blame_in_the_metrics(training):
    assert promtool("check", "metrics", input=fetch(training.addresses[0], "/metrics")[1]) == ""


def test_promtool_finds_nothing_to_blame_in_the_configuration():
    assert promtool("check", "config", str(ROOT / "deploy/prometheus.yaml")) == ""
