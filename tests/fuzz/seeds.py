#!/usr/bin/env python3
"""The seeds of the fuzzers of byte programs: for each kind of message one input that reaches it.

    tests/fuzz/seeds.py        # writes them all anew, after a fuzzer's input or a message has changed
    seeds()                    # {"tests/fuzz_ps/corpus/fuzz_server/acts": b"...", ...}

scripts/test runs each fuzzer over its seeds alone, too, and fails if they do not reach all kinds.
"""

import json
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("tests/hostile", "tests/process")]

from hostile_messages import SOCKET_STRUCTS, fields_of, packed, packet  # noqa: E402

FROM_DAEMON = (2, 5, 7, 12, 14, 17)  # kinds of messages of the unix socket that no worker sends
SENT_BY_ACT = {  # of tests/fuzz_session/hostile_worker.cc, behind a hello
    "declare": [2, 0],
    "staging-buffer": [3, 1, 0, 64, 0, 1],
    "free-staging-buffer": [3, 1, 0, 64, 0, 0],
    "operation": [4, 1, 1, 1, 0, 0, 16],
    "records": [5, 0, 0, 0, 0, 1, 0, 0, 0, 5, 1, 1, 1, 5, 2, 0, 0, 5, 3, 0, 0, 5, 4, 0],
    "scribble": [6, 64, 0, 0, 0, 255],
    "statistics": [7],
    "store": [8, 0, 1, 3, 65, 66, 67, 8, 4, 1],
    "settings": [9, 0],
    "trace": [9, 1, 2],
    "goodbye": [10, 0],
    "error": [10, 1, 1, 0, 1, 65, 1, 66, 1, 67],
    "status": [11],
}
STATUS = {  # with all that `deft status` shows
    "version": "1",
    "pid": 7,
    "takes_jobs": False,
    "jobs": [
        {
            "name": "a\n",
            "world": 2,
            "leads": True,
            "compression": "int8",
            "workers": [{"rank": 0, "pid": 9, "attached": True}],
            "links": [{"name": "gloo:lo", "lost": "why", "goes_over": "ps", "parts": 3, "bytes": 5e9, "busy_us": 1}],
            "groups": [{"id": 0, "tensors": 1, "buckets": 1, "bytes": 4, "step": 2}],
            "stalls": [{"rank": 1, "owes": "t", "step": 2, "age_ms": 3}],
            "leader": {
                "nodes": [{"host": "h", "ranks": [0], "step_us": 5}],
                "plans": [{"epoch": 1, "codecs": {"int8": 1}, "judgement": {"judged": True, "accepted": True}}],
                "preserver": [{"group": 0, "codecs": "x"}],
                "merging": [{"group": 0, "from_step": 1, "buckets": 2, "transfers": 1, "groups": "1", "reason": "x"}],
                "policies": [{"group": 0, "policy": "p3", "simulated": [{"policy": "p3", "step_us": 1}]}],
            },
        }
    ],
    "ended_jobs": [{"name": "b", "reason": "lost", "cause": "x", "ended_s_ago": 1}],
}
OTHER_TYPES = {  # as a daemon of another version may have them
    "takes_jobs": "no",
    "jobs": [
        1,
        {"workers": [1], "links": [2, {"open": 3}], "compression": 4, "leads": 5, "leader": 6},
        {"leader": {"nodes": [7], "plans": [{"judgement": 8}, {"judgement": {"judged": 9}}], "policies": [10]}},
    ],
    "ended_jobs": [11, {"cause": 12}],
}


def of_messages() -> dict[str, bytes]:
    found = {}
    for kind, (name, texts) in SOCKET_STRUCTS.items():
        fields = fields_of("core/ipc/messages.h", name) if name else []
        found[f"kind-{kind:02}"] = packet(kind, packed(fields, {}) + b"".join(text + b"\0" for text in texts))
    return found


def of_session() -> dict[str, bytes]:
    hello = [1, 3]  # the only worker of a job of its own
    found = {name: bytes(hello + act) for name, act in SENT_BY_ACT.items()}
    return found | {f"rubbish-{kind:02}": bytes([*hello, 0, 64, kind]) for kind in FROM_DAEMON}


def of_ps() -> dict[str, bytes]:
    def pushes(codecs: range) -> bytes:
        return bytes(codec << 1 | node for codec in codecs for node in (0, 1))

    return {"pushes-0": pushes(range(4)), "pushes-1": pushes(range(4, 8))}


def of_server() -> dict[str, bytes]:
    hellos = [0, 0 + 8]
    sound = [*hellos, 1, 1 + 8, 6, 6 + 8, 2, 1, 2 + 8, 1]
    kinds = {f"kind-{kind}": bytes([*hellos, 3, kind, 4, 1, 2, 3, 4]) for kind in range(1, 9)}
    return kinds | {
        "sound": bytes(sound),
        "hangs-up": bytes([*hellos, 1, 5, 0]),
        "spoiled": bytes([*hellos, 1 + 32, 24, 0, 255]),
        "frames": bytes([4 + 96, 3, 1, 2, 3, 1, 0, 0, 2, 9, 9]),
    }


def of_ps_link() -> dict[str, bytes]:
    sound = [1, 2, 1, 1, 2, *[3] * 8]
    kinds = {f"kind-{kind}": bytes([2, 6, kind, 4, 0, 1, 2, 3, 4]) for kind in range(1, 9)}
    return kinds | {
        "sound": bytes(sound),
        "failed": bytes([2, 4, 3, 4, 65, 66, 67, 68]),
        "ping": bytes([5, 2, 0, 3]),
        "frames": bytes([2, 7, 3, 1, 2, 3]),
    }


def of_peers() -> dict[str, bytes]:
    """Each way to be greeted with each request, plain and encrypted, and all that goes wrong in between."""
    found = {}
    for plan in range(16):
        if plan >> 2 < 3:
            found[f"sound-{plan:02}"] = bytes([plan, 0, *([0] + [1] * 128) * 2])
    return found | {
        "strangers": bytes([0, 6, 0, 5, 4, 1, 2, 3, 4, 0, 4 + 8, 16, 0, 9, 0, 6 + 16]),
        "in-pieces": bytes([0, 2, 0, 3, 20, 0]),
        "called-by-who-hangs-up": bytes([1, 3, 1, 6, 1, 3 + 8, 7]),
        "text": bytes([32, 0, 40, *b"0123456789abcdef127.0.0.1 99999\naes:0"]),
        "spoiled-frame": bytes([0, 0, 1, 8, 0, 1]),
        "spoiled-record": bytes([2, 0, *([0] + [1] * 128) * 8, 3, 9, 0, 1, 40, 0, 2, 5, 0, 3]),
    }


def of_probe() -> dict[str, bytes]:
    """A key of one byte is set and read; a word that the store does not know; messages of one and of eight frames."""
    key = [1, 107]
    return {
        "sound": bytes([0, 49, *key, 2, 65, 66, 1, 50, *key, 0, 5, 51, 1, 120, 0]),
        "another-word": bytes([2, 49, *key, 2, 65, 66]),
        "frames": bytes([3, 3, 1, 2, 3, 3 + 56, 1, 0, 1, 1, 1, 2, 1, 3, 0, 0, 0, 0]),
    }


def of_answers() -> dict[str, bytes]:
    """To a question for the status (0) and to a command (1): each kind of packet, and each kind of error."""

    def text(kind: int, words: str) -> bytes:
        return bytes([kind]) + struct.pack("=H", len(words)) + words.encode()

    status = json.dumps(STATUS)
    other_types = json.dumps(OTHER_TYPES)
    errors = {f"error-{kind}": bytes([kind % 2, 2, kind, 3]) + b"why" for kind in (*range(9), 255)}
    return errors | {
        "status": b"\0" + text(0, status[:500]) + text(1, status[500:]),
        "other-types": b"\0" + text(1, other_types),
        "answer": b"\1" + text(1, "done"),
        "descriptor": b"\1" + text(5, "done"),
        "no-json": b"\0" + text(1, "[]"),
        "bytes": bytes([0, 3, 20, *range(20)]),
        "header": bytes([0, 4, 12, 8, *[1] * 8]),
        "too-long": bytes([1, 6]),
        "closed": bytes([0]),
    }


def of_records() -> dict[str, bytes]:
    return {"sound": bytes([99, 49]), "changed": bytes([99, 49, 10, 0, 0, 1]), "cut": bytes([99, 49, 10, 0, 1, 0])}


FUZZERS = {
    "fuzz/messages": of_messages,
    "fuzz_session/fuzz_session": of_session,
    "fuzz_probe/fuzz_probe": of_probe,
    "fuzz_ps/fuzz_ps": of_ps,
    "fuzz_ps/fuzz_server": of_server,
    "fuzz_ps/fuzz_ps_link": of_ps_link,
    "fuzz_links/fuzz_peers": of_peers,
    "fuzz_records/fuzz_records": of_records,
    "fuzz_answers/fuzz_answers": of_answers,
}


def seeds() -> dict[str, bytes]:
    found = {}
    for fuzzer, made in FUZZERS.items():
        folder, name = fuzzer.split("/")
        found |= {f"tests/{folder}/corpus/{name}/{seed}": content for seed, content in made().items()}
    return found


def main() -> None:
    for path, content in seeds().items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_bytes(content)


if __name__ == "__main__":
    main()
