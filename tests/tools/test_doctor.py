"""deft doctor on machines whose network or kernel has faults: network namespaces, files mounted over the kernel's."""

import os
import subprocess
from pathlib import Path

import pytest
from cluster import json_of
from test_lost_links import emulated  # noqa: F401  (skips where there are no emulated nodes)
from under_test import BUILD

DEFT = BUILD / "bin/deft"
NOT_HERE = 77

# nic NAME ADDRESS: a NIC whose cable ends on this machine.
NIC = """
nic() {
  ip link add "$1" type veth peer name "peer-$1" && ip link set "peer-$1" up &&
  ip addr add "$2" dev "$1" && ip link set "$1" up
}
ip link set lo up
"""


def doctor(script: str, links: str = "auto", **variables: str) -> dict[str, dict]:
    """What it finds, by the name of the check, on a machine on which `script` has run."""
    done = subprocess.run(
        ["unshare", "-Urnm", "bash", "-ec", f"PATH=$PATH:/usr/sbin:/sbin\n{NIC}{script}\nexec {DEFT} doctor --json"],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"DEFT_SOCKET": "/nowhere/deftd.sock", "DEFT_LINKS": links, **variables},
    )
    if done.returncode == NOT_HERE:
        pytest.skip(f"this kernel has no {done.stdout.strip()}")
    return {row["check"]: row for row in json_of(done)}


def test_nics_without_faults_are_told_to_be_so():
    found = doctor("nic eth0 10.1.0.1/24; nic eth1 10.2.0.1/24")
    for check in ("MTU", "duplex", "shaping", "wires"):
        assert found[check]["health"] == "ok" and found[check]["fix"] == "", found[check]
    assert found["MTU"]["found"] == "eth0 1500, eth1 1500"
    assert "leader" not in found


def test_only_the_nics_of_the_links_are_looked_at():
    script = "nic eth0 10.1.0.1/24; nic eth1 10.2.0.1/24; ip link set eth1 mtu 600"
    assert doctor(script, links="gloo:eth0")["MTU"]["found"] == "eth0 1500"
    found = doctor(script, links="gloo:eth1")["MTU"]
    assert (found["health"], found["found"]) == ("warn", "eth1 600") and "ip link set NIC mtu 1500" in found["fix"]
    assert "MTU" not in doctor(script, links="gloo:lo")


def test_all_nics_of_a_link_over_several_are_looked_at():
    script = "nic eth0 10.1.0.1/24; nic eth1 10.2.0.1/24; ip link set eth1 mtu 600"
    found = doctor(script, links="gloo:eth0,nccl:eth0,eth1")["MTU"]
    assert (found["health"], found["found"]) == ("warn", "eth0 1500, eth1 600")


def test_a_nic_that_tc_slows_down_is_named_with_what_to_type():
    slow = "tc qdisc add dev eth1 root tbf rate 10mbit burst 10kb latency 50ms"
    found = doctor(f"nic eth0 10.1.0.1/24; nic eth1 10.2.0.1/24; {slow}")["shaping"]
    assert found["health"] == "warn" and found["found"].startswith("eth1: tbf")
    assert "tc qdisc del dev eth1 root" in found["fix"]


def test_two_nics_with_addresses_of_one_network_are_named():
    found = doctor("nic eth0 10.2.0.1/24; nic eth1 10.1.0.1/24; nic eth2 10.1.0.2/24")["wires"]
    assert found["health"] == "warn" and "eth1 and eth2 have addresses of one network, 10.1.0.0/24" in found["found"]
    assert found["fix"].endswith("DEFT_LINKS=gloo:eth0,eth1")


def test_two_nics_on_one_wire_are_named():
    one = "ip link add link wire name eth{0} type macvlan || {{ echo macvlan; exit 77; }}"
    script = f"nic wire 10.9.0.1/24; {one.format(0)}; {one.format(1)}; "
    script += "for k in 0 1; do ip addr add 10.$k.0.1/24 dev eth$k; ip link set eth$k up; done"
    found = doctor(script, links="gloo:eth0,gloo:eth1")["wires"]
    assert found["health"] == "warn" and found["found"] == "eth0 and eth1 are both on wire"
    assert "DEFT_LINKS=gloo:eth0" in found["fix"]


HALF_DUPLEX = """
import array, fcntl, socket, struct
settings = array.array("B", bytes(44))  # struct ethtool_cmd
request = struct.pack("16sP8x", b"tap0", settings.buffer_info()[0])
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    for command in (1, 2):  # get, set
        struct.pack_into("I", settings, 0, command)
        settings[14] = 0  # half
        fcntl.ioctl(any_socket, 0x8946, request)
"""


def test_a_half_duplex_nic_is_named(tmp_path):
    (tmp_path / "half_duplex.py").write_text(HALF_DUPLEX)
    script = "ip tuntap add dev tap0 mode tap || { echo tap; exit 77; }; ip addr add 10.1.0.1/24 dev tap0; "
    script += f"ip link set tap0 up; python3 {tmp_path}/half_duplex.py"
    found = doctor(script, links="gloo:tap0")["duplex"]
    assert found["health"] == "warn" and found["found"].startswith("tap0: half duplex") and "ethtool" in found["fix"]


# No machine has this address: packets to it get lost, as behind a firewall.
SILENT = "nic eth0 10.1.0.1/24; ip neigh replace 10.1.0.9 lladdr 02:00:00:00:00:fe dev eth0 nud permanent"
LISTENS = f"""exec python3 -c '
import os, socket
listener = socket.create_server(("10.1.0.1", 29610))
listener.set_inheritable(True)
os.execv("{DEFT}", ["deft", "doctor", "--json"])'
"""


def test_a_firewall_on_the_way_to_rank_0s_node_is_told_from_a_daemon_that_is_not_there():
    found = doctor(SILENT, DEFT_LEADER="10.1.0.9:29610")["leader"]
    assert found["health"] == "fail" and found["found"].startswith("10.1.0.9:29610 does not answer")
    assert "firewall" in found["fix"]
    found = doctor(SILENT, MASTER_ADDR="10.1.0.1")["leader"]
    assert found["health"] == "warn" and "DEFT_LISTEN=10.1.0.1:29610" in found["fix"]
    found = doctor(f"{SILENT}\n{LISTENS}", MASTER_ADDR="10.1.0.1")["leader"]
    assert found["health"] == "ok", found
    found = doctor("", DEFT_LEADER="no-such-host.invalid:1")["leader"]
    assert found["health"] == "fail" and "DEFT_LEADER" in found["fix"]


def test_a_name_that_has_an_address_of_ipv6_too_is_looked_for_where_daemons_listen(tmp_path):
    (tmp_path / "hosts").write_text("fd00::9 box\n10.1.0.1 box\n")
    route = "ip -6 addr add fd00::1/64 dev eth0 nodad"  # so the address of IPv6 comes first
    script = f"nic eth0 10.1.0.1/24; {route}; mount --bind {tmp_path}/hosts /etc/hosts\n{LISTENS}"
    found = doctor(script, links="ps:box:29610", DEFT_LEADER="box:29610")
    assert found["leader"]["health"] == "ok", found["leader"]
    assert "no parameter server answers" not in str(found)


def test_a_limit_on_locked_memory_is_named_to_whoever_has_one():
    as_nobody = f"ulimit -l 8192\nexec unshare -U {DEFT} doctor --json"  # root of no user namespace
    found = doctor(as_nobody)["memlock"]
    assert (found["health"], found["found"]) == ("warn", "locked memory: 8 MB"), found
    assert "ulimit -l unlimited" in found["fix"]


@pytest.mark.parametrize(
    ("free", "defrag", "health", "says"),
    [
        (0, "always defer defer+madvise [madvise] never", "ok", "0 MB are set aside"),
        (1 << 20, "always defer defer+madvise [madvise] never", "warn", "vm.nr_hugepages=0"),
        (0, "[always] defer defer+madvise madvise never", "warn", "transparent_hugepage/defrag"),
    ],
)
def test_huge_pages_that_cost_memory_or_time_are_named(tmp_path, free, defrag, health, says):
    thp = Path("/sys/kernel/mm/transparent_hugepage")
    if not thp.exists():
        pytest.skip("this kernel has no transparent huge pages")
    pages = f"HugePages_Total: {free}\nHugePages_Free: {free}\nHugepagesize: 2048 kB\n"
    kept = [line for line in Path("/proc/meminfo").read_text().splitlines() if not line.lower().startswith("huge")]
    (tmp_path / "meminfo").write_text("\n".join(kept) + "\n" + pages)
    (tmp_path / "defrag").write_text(defrag + "\n")
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    script = f"mount --bind {tmp_path}/meminfo /proc/meminfo; "
    script += "".join(f"mount --bind {tmp_path}/{name} {thp}/{name}; " for name in ("defrag", "enabled"))
    found = doctor(script)["huge pages"]
    assert found["health"] == health and says in found["found"] + found["fix"], found
