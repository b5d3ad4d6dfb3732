"""Hostile messages, made from the descriptions of the real ones: each field at its extremes, truncated, repeated,
reordered, and garbage. A seed gives the same messages again.

    for packet in session_packets(random.Random(7)): ...      # of the unix socket
    for frame in control_frames(random.Random(7), join): ...  # of the control port
    for parts in server_messages(random.Random(7)): ...       # of a parameter server
    for bytes in greetings(random.Random(7)): ...             # of the ports of gloo and tcp links
    for parts in probe_questions(random.Random(7)): ...       # of the store of `deft probe`
    for bytes in http_requests(random.Random(7)): ...         # of the port of /metrics

The descriptions are read from the sources: the structs of core/ipc/messages.h, core/link/ps/wire.h and
core/link/peer_sockets.cc, and proto/control.proto. So a new field is attacked without a change here.
"""

import random
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zmtp import message, varint

ROOT = Path(__file__).resolve().parents[2]
CODES = {"uint8_t": "B", "uint16_t": "H", "uint32_t": "I", "uint64_t": "Q", "double": "d"}
ENUMS = {"MessageKind": "I", "Collective": "I", "TraceAction": "I", "Kind": "H"}
INTEGERS = {"B": 8, "H": 16, "I": 32, "Q": 64}
TEXTS = [
    b"",
    b"victims",
    b"attack",
    b"x" * 255,
    b"x" * 256,
    b"x" * 1025,
    b"x" * 60_000,
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"a\nE1124 deftd: all is lost",
    b"../../etc/passwd",
    b"policy=fifo\ntimeout=1e308",
    b"127.0.0.1:1",
    b"%s%n" * 20,
    b"\0" * 9,
]


@dataclass(frozen=True)
class Field:
    name: str
    code: str  # as the module struct calls it
    count: int = 1


def fields_of(path: str, name: str) -> list[Field]:
    """The members of a C++ struct of plain numbers, in order; MessageHeader is left out."""
    source = re.sub(r"//[^\n]*", "", (ROOT / path).read_text())
    body = re.search(rf"struct\s+{name} {{(.*?)\n}};", source, re.DOTALL).group(1)
    found = []
    for line in body.split(";"):
        parts = re.match(r"\s*(?:std::)?(\w+) (.+)", line.strip(), re.DOTALL)
        code = parts and (CODES.get(parts[1]) or ENUMS.get(parts[1]))
        if parts and parts[1] == "Secret":
            found.append(Field("secret", "16s"))
        for member in re.sub(r"\{[^}]*\}|= [^,]+", "", parts[2]).split(",") if code else ():
            array = re.match(r"\s*(\w+)(?:\[(\d+)\])?", member)
            found.append(Field(array[1], code, int(array[2] or 1)))
    return found


def extremes(code: str, dice: random.Random) -> list:
    if code == "d":
        return [0.0, -0.0, -1.0, 1e308, -1e308, float("inf"), float("-inf"), float("nan"), 5e-324]
    if code.endswith("s"):
        return [bytes(16), b"\xff" * 16, dice.randbytes(16)]
    bits = INTEGERS[code]
    edges = {0, 1, 2, 3, 7, 255, 4096, 4097, 2**20, 2**20 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1}
    return sorted({edge & (2**bits - 1) for edge in edges} | {dice.getrandbits(bits)})


def packed(fields: list[Field], values: dict) -> bytes:
    out = b""
    for field in fields:
        value = values.get(field.name, bytes(16) if field.code == "16s" else 0)
        out += struct.pack(f"={field.code}", value) * field.count
    return out


def with_each_extreme(fields: list[Field], values: dict, dice: random.Random) -> Iterator[bytes]:
    yield packed(fields, values)
    for field in fields:
        for value in extremes(field.code, dice):
            yield packed(fields, values | {field.name: value})
    for _ in range(2 * len(fields)):
        yield packed(fields, {field.name: dice.choice(extremes(field.code, dice)) for field in fields})


def spoiled(whole: list[bytes], dice: random.Random) -> list[bytes]:
    """All of them, and of some: cut, with flipped bits, twice in one, and garbage as long; in another order."""
    some = dice.sample(whole, min(len(whole), 200))
    cut = [one[: dice.randrange(len(one))] for one in some if one]
    flipped = []
    for one in some:
        if one:
            bits = bytearray(one)
            bits[dice.randrange(len(bits))] ^= 1 << dice.randrange(8)
            flipped.append(bytes(bits))
    garbage = [dice.randbytes(min(len(one), 2000)) for one in some]
    everything = whole + cut + flipped + [one + one for one in some if len(one) < 20_000] + garbage
    dice.shuffle(everything)
    return everything


# --- The unix socket ---

SOCKET_STRUCTS = {  # kind: the struct behind the header, and the texts behind it
    1: ("Hello", [b"attack", b"", b"", b"0"]),
    2: ("Welcome", [b""]),
    3: ("Declare", [b"group"]),
    4: ("DeclareTensor", [b"tensor", b""]),
    5: ("Declared", []),
    6: ("StagingBuffer", []),
    7: ("StagingBuffer", []),
    8: ("Operation", [b"name", b"terms"]),
    9: (None, []),
    10: ("ErrorMessage", [b"what", b"fix", b"where"]),
    11: (None, []),
    12: ("Text", [b"piece"]),
    13: ("StagingBuffer", []),
    14: ("LinkMessage", [b"tcp", b"lo", b"127.0.0.1", b"prefix"]),
    15: ("StoreItem", [b"key", b"value"]),
    16: ("StoreItem", [b"key"]),
    17: ("StoreItem", [b"key", b"value"]),
    18: ("Statistics", []),
    19: (None, [b"nobody", b"policy=fifo\ncredit_bytes=0"]),  # what a user may order of an own job is no attack
    20: ("TraceRequest", [b"nobody", b"/proc/nowhere"]),
}
MAGIC, VERSION = 0x54464544, 7


def packet(kind: int, body: bytes, magic: int = MAGIC, version: int = VERSION, size: int | None = None) -> bytes:
    return struct.pack("=IIII", magic, kind, 16 + len(body) if size is None else size, version) + body


def session_packets(dice: random.Random) -> list[bytes]:
    made = []
    for kind, (name, texts) in SOCKET_STRUCTS.items():
        fields = fields_of("core/ipc/messages.h", name) if name else []
        plain = b"".join(text + b"\0" for text in texts)
        bodies = [body + plain for body in with_each_extreme(fields, {}, dice)]
        for place in range(len(texts)):
            for text in TEXTS:
                given = b"".join((text if i == place else other) + b"\0" for i, other in enumerate(texts))
                bodies.append(packed(fields, {"world": 1, "local_size": 1}) + given)
        made += [packet(kind, body) for body in bodies]
        made += [packet(kind, bodies[0], size=size) for size in extremes("I", dice)]
        made += [packet(kind, bodies[0], version=version) for version in extremes("I", dice)[:4]]
    made += [packet(kind, b"") for kind in extremes("I", dice)]
    made.append(packet(1, bytes(16), magic=0))
    return [one for one in spoiled(made, dice) if 0 < len(one) <= 65_536]


# --- The control plane ---


def protobuf_messages() -> dict[str, list[tuple[str, int, bool]]]:
    """Of each message of proto/: its fields as (type, number, repeated). Nested messages go by their own name."""
    text = "".join((ROOT / f"proto/{name}.proto").read_text() for name in ("control", "plan"))
    text = re.sub(r"//[^\n]*", "", text)
    found: dict[str, list[tuple[str, int, bool]]] = {}
    open_names: list[str] = []
    pattern = r"message (\w+) \{|oneof \w+ \{|enum \w+ \{|\}|(?:(repeated|optional) )?([\w.]+) \w+ = (\d+)[^;]*;"
    for match in re.finditer(pattern, text):
        if match[1]:
            found.setdefault(match[1], [])
        if match[0].endswith("{"):
            open_names.append(match[1] or "")
        elif match[0] == "}":
            open_names.pop()
        elif match[3]:
            owner = next(name for name in reversed(open_names) if name)
            found[owner].append((match[3].rsplit(".", 1)[-1], int(match[4]), match[2] == "repeated"))
    return found


NUMBERS = [0, 1, 2, 3, 255, 2**20, 2**31, 2**32 - 1, 2**32, 2**53, 2**63, 2**64 - 1]
SCALARS = ("uint32", "uint64", "int32", "int64", "bool", "sint64")


class Protobuf:
    def __init__(self, dice: random.Random):
        self.dice = dice
        self.messages = protobuf_messages()

    def value(self, kind: str, depth: int):
        if kind in ("bytes", "string"):
            return self.dice.choice([text for text in TEXTS if len(text) < 2000])
        if kind in ("double", "float"):
            return self.dice.choice(extremes("d", self.dice))
        if kind in self.messages:
            return self.body(kind, depth + 1)
        return self.dice.choice(NUMBERS)

    def body(self, name: str, depth: int = 0) -> bytes:
        """A message with every field at some extreme; some fields are left out, or stand twice."""
        out = b""
        for kind, number, repeated in self.messages[name]:
            if depth > 4 or self.dice.random() < 0.2:
                continue
            times = self.dice.choice([1, 2, 5]) if repeated else self.dice.choice([1, 1, 1, 2])
            out += message(**{f"f{number}": [self.value(kind, depth) for _ in range(times)]})
        return out

    def each_field(self, name: str) -> Iterator[bytes]:
        for kind, number, _ in self.messages[name]:
            if kind in SCALARS:
                yield from (message(**{f"f{number}": value}) for value in NUMBERS)
            elif kind not in self.messages:
                values = extremes("d", self.dice) if kind == "double" else [text for text in TEXTS if len(text) < 2000]
                yield from (message(**{f"f{number}": value}) for value in values)
            else:
                yield from (message(**{f"f{number}": self.body(kind, 1)}) for _ in range(6))


TO_LEADER, TO_NODE = 40, 41
GATHERING = b"gathers"  # a job that waits for its second node meanwhile


def bodies_of(dice: random.Random, way: int) -> list[bytes]:
    """ToLeader or ToNode: each kind of message, with each of its fields at its extremes."""
    proto = Protobuf(dice)
    made = []
    for kind, number, _ in proto.messages["ToLeader" if way == TO_LEADER else "ToNode"]:
        inner = [*proto.each_field(kind), *(proto.body(kind) for _ in range(8)), b""]
        made += [message(**{f"f{number}": body}) for body in inner]
    return made


def foreign_join(dice: random.Random) -> bytes:
    """Of a node whose workers belong to another user, and do not have the job's token."""
    ranks = bytes([dice.randrange(2)])
    return message(
        f1=b"far", f2=b"0", f3=2, f4=ranks, f8=dice.randrange(1000, 1 << 31), f9=dice.choice([b"", b"guess"])
    )


def control_frames(dice: random.Random, version: int) -> list[bytes]:
    """Envelopes of a stranger: to jobs that run, to one that gathers its nodes and has a token, and to others."""
    made = []
    for way in (TO_LEADER, TO_NODE):
        for body in bodies_of(dice, way):
            job = dice.choice([b"victim", b"attack", b"nobody", b"", b"\xff" * 9])
            incarnation = dice.choice(NUMBERS)
            made.append(message(f1=version, f2=job, f3=incarnation, **{f"f{way}": body}))
    for job in (b"victim", GATHERING):
        made += [message(f1=other, f2=job, f3=run, f40=b"") for other in NUMBERS for run in (0, 1)]
        made += [message(f1=other, f2=job, f23=message(f1=1, f2=b"no")) for other in NUMBERS]
    made += [message(f1=version, f2=GATHERING, f40=message(f1=foreign_join(dice))) for _ in range(100)]
    made += [varint(number << 3 | wire) for number in (1, 2, 40, 2**29 - 1) for wire in range(8)]
    return spoiled(made, dice)


# --- A parameter server ---


def server_fields() -> tuple[list[Field], dict]:
    source = (ROOT / "core/link/ps/wire.h").read_text()
    fields = fields_of("core/link/ps/wire.h", "PsHeader")
    assert struct.calcsize("=" + "".join(field.code for field in fields)) == 72
    version = int(re.search(r"kVersion = (\d+);", source).group(1))
    return fields, {"magic": 0x53504644, "version": version, "node": 0, "nodes": 2}


def server_hello(node: int, link: bytes) -> tuple[bytes, bytes]:
    """A right one."""
    fields, values = server_fields()
    return packed(fields, values | {"kind": 1, "node": node}), bytes(16) + link


def server_messages(dice: random.Random) -> list[tuple[bytes, bytes]]:
    """Header and payload. The version and the magic are right in most of them."""
    fields, plain = server_fields()
    payloads = [b"", b"x", bytes(8), b"x" * 4096, dice.randbytes(16) + b"victim/1/0", dice.randbytes(16) + b"\n" * 9]
    payloads += [b"x" * 17, b"x" * 600, dice.randbytes(131_072)]
    made = []
    for kind in (*range(10), 2**16 - 1):
        values = plain | {"kind": kind}
        for header in with_each_extreme(fields, values, dice):
            made.append((header, dice.choice(payloads[:-1])))
        made.append((packed(fields, values), payloads[-1]))
    for size in (1, 24, 40, 65_536, 65_537):  # of a recipe
        header = packed(fields, plain | {"kind": 2, "bytes": 260, "total": 260, "recipe_bytes": size})
        made.append((header + dice.randbytes(size), bytes(260)))
    made += [(one, b"") for one in spoiled([header for header, _ in made], dice)]
    dice.shuffle(made)
    return made


# --- The ports of gloo and tcp links ---


def greetings(dice: random.Random) -> list[bytes]:
    """Greetings as members send them, and what is none: nothing, halves, a preamble of gloo's, other protocols."""
    fields = fields_of("core/link/peer_sockets.cc", "Greeting")
    call = int(re.search(r"kCall = (0x\w+)", (ROOT / "core/link/peer_sockets.cc").read_text()).group(1), 16)
    made = []
    for magic in (call, call + 1):
        made += with_each_extreme(fields, {"magic": magic, "member": 1}, dice)
    made += [
        struct.pack("=6Q", 64, 0, 99_999, 0, 16, 0),
        struct.pack("=6Q", *[2**64 - 1] * 6),
        b"GET / HTTP/1.1\r\n\r\n",
    ]
    return [b"", *spoiled(made, dice)]


# --- The store of `deft probe` ---

PROBE_WORDS = (b"set", b"get", b"forget", b"")
# Not the keys by which its processes find each other: whoever writes these ends the probe, as docs/reliability.md says.
PROBE_KEYS = (b"", b"rank", b"rank/99", b"rows/99", b"link", b"bye/99", b"\xff\xfe", b"x" * 1025)


def probe_questions(dice: random.Random) -> list[list[bytes]]:
    """The number of a question, a word, a key and a value; and messages of fewer and of more parts."""
    values = [*TEXTS, b"[]", b'[{"link": 0, "nodes": [0, 1]}]', dice.randbytes(300)]
    made = [[b"1", word, key, value] for word in PROBE_WORDS for key in PROBE_KEYS for value in values]
    some = dice.sample(made, 40)
    made += [question[: dice.randrange(1, 4)] for question in some] + [question * 2 for question in some[:9]]
    dice.shuffle(made)
    return made


# --- HTTP ---

HTTP_PATHS = (
    b"/",
    b"/metrics",
    b"/status",
    b"/healthz",
    b"/readyz",
    b"/../etc/passwd",
    b"/%00",
    b"*",
    b"/" + b"x" * 9000,
)
HTTP_METHODS = (b"GET", b"HEAD", b"POST", b"DELETE", b"CONNECT", b"GET" * 500, b"\xff")
HTTP_HEADERS = (
    b"",
    b"Host: localhost\r\n",
    b"Host: evil.example\r\n",
    b"Content-Length: 18446744073709551615\r\n",
    b"Content-Length: -1\r\nContent-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"X: " + b"x" * 9000 + b"\r\n",
    b"X: y\r\n" * 500,
    b" folded\r\n",
    b"\0: \0\r\n",
)


def http_requests(dice: random.Random) -> list[bytes]:
    """Each method with each path and each header, right and spoiled."""
    made = [
        method + b" " + path + b" HTTP/" + version + b"\r\n" + header + b"\r\n"
        for method in HTTP_METHODS
        for path in HTTP_PATHS
        for header in HTTP_HEADERS
        for version in (b"1.1", dice.choice([b"1.0", b"0.9", b"2.0", b"99999999999"]))
    ]
    return [b"", b"\x16\x03\x01\x02\x00\x01", *spoiled(made, dice)]
