"""A short form of scripts/attack: a victim trains while all ports of its daemons and its parameter server are flooded.

Nothing here depends on how fast anything is: step times are compared by the script.
"""

import contextlib
import random
import struct

import attack
import hostile_messages
from cluster import wait_until
from held_ports import held_open

SURFACES = {"control", "server", "session", "probe", "frames", "http", "greetings"}
MESSAGES = 100_000  # to the control port
LEAK_KIB = 1024  # more than 10 bytes of each of them


def memory_comes_to_rest(victim: attack.Victim, dropped) -> bool:
    """After some MESSAGES the daemons need no more memory for as many more."""
    for _ in range(20):
        before, count = victim.sizes(), dropped("control_")
        wait_until(lambda c=count: dropped("control_") > c + MESSAGES, 300, "a flood")
        if all(now[0] < then[0] + LEAK_KIB for now, then in zip(victim.sizes(), before, strict=True)):
            return True
    return False


def test_a_victim_trains_on_while_all_its_ports_are_flooded(tmp_path):
    with attack.victim_in(tmp_path) as victim, contextlib.ExitStack() as ends:
        join = attack.join_of(victim)
        wait_until(lambda: not [j for j in victim.cluster.status()["jobs"] if j["name"] != "victim"], what="one job")
        quiet, drops = victim.sizes(), victim.dropped()
        gathering = attack.GatheringJob(victim.cluster)
        held = ends.enter_context(held_open(victim.cluster, join))

        def dropped(kind: str) -> float:
            now = victim.dropped()
            return sum(count - drops.get(key, 0) for key, count in now.items() if key.startswith(kind))

        with attack.Flood(attack.attack_on(victim, held, 100_000, join), seed=1) as flood:
            victim.trains()
            assert memory_comes_to_rest(victim, dropped), "an attack uses up memory"
            sent = flood.stop()
        victim.trains()
        wait_until(lambda: dropped("control_") >= sent["control"], what="each message is counted")
        assert sent.keys() == SURFACES and all(sent.values()), sent
        assert held.probe.grown_kib() < attack.ROOM_KIB
        held.probe.end()
        ends.close()
        gathering.end()
        reasons = {key for key, count in victim.dropped().items() if count > drops.get(key, 0)}
        assert {
            f"control_messages_dropped {why}" for why in ("unreadable", "version", "stranger", "unclaimed", "handshake")
        } <= reasons
        assert {f"server_drops {why}" for why in ("unreadable", "version", "hello", "refused", "handshake")} <= reasons
        assert {"clients_refused violation", "clients_refused invalid"} <= reasons
        assert "link_strangers wrong" in reasons
        attack.open_jobs_under_fire(victim, join, seed=1, jobs=2)
        wait_until(
            lambda: all(now[1] <= then[1] + 2 for now, then in zip(victim.sizes(), quiet, strict=True)),
            120,
            "the descriptors given back",
        )
        printed = victim.end()
    wanted = attack.losses_without_attack(max(printed))
    assert all(wanted[step] == digest for step, digest in printed.items()), "other losses than without an attack"


def test_a_seed_makes_the_same_messages_again_and_each_field_has_its_extremes():
    for make, arguments in (
        (hostile_messages.session_packets, ()),
        (hostile_messages.control_frames, (4,)),
        (hostile_messages.server_messages, ()),
        (hostile_messages.greetings, ()),
        (hostile_messages.probe_questions, ()),
        (hostile_messages.http_requests, ()),
    ):
        made = make(random.Random(1), *arguments)
        assert made == make(random.Random(1), *arguments) != make(random.Random(2), *arguments)
    kinds = {
        int.from_bytes(packet[4:8], "little")
        for packet in hostile_messages.session_packets(random.Random(1))
        if len(packet) > 16
    }
    assert set(range(1, 21)) <= kinds
    fields = hostile_messages.fields_of("core/ipc/messages.h", "Operation")
    assert [field.name for field in fields[:2]] == ["operation", "collective"] and len(fields) == 10
    proto = hostile_messages.protobuf_messages()
    assert len(proto["ToLeader"]) == 17 and len(proto["ToNode"]) == 19 and len(proto["Launch"]) == 11


def test_each_kind_of_message_is_sent():
    dice = random.Random(1)
    for way, name in ((hostile_messages.TO_LEADER, "ToLeader"), (hostile_messages.TO_NODE, "ToNode")):
        wanted = {number for _, number, _ in hostile_messages.protobuf_messages()[name]}
        tags = {
            body[0] & 127 | (body[1] << 7 if body[0] > 127 else 0) for body in hostile_messages.bodies_of(dice, way)
        }
        assert {tag >> 3 for tag in tags} == wanted
    fields, _ = hostile_messages.server_fields()
    names = [field.name for field in fields]
    at = struct.calcsize("=" + "".join(field.code for field in fields[: names.index("kind")]))
    headers = [header for header, _ in hostile_messages.server_messages(dice) if len(header) == 72]
    assert set(range(1, 9)) <= {struct.unpack_from("=H", header, at)[0] for header in headers}
    questions = [question for question in hostile_messages.probe_questions(dice) if len(question) == 4]
    assert {question[1] for question in questions} == set(hostile_messages.PROBE_WORDS)
    requests = b"\n".join(hostile_messages.http_requests(dice))
    assert all(method + b" /metrics HTTP/1.1" in requests for method in hostile_messages.HTTP_METHODS)
