"""NIC rates: what --rate and --coverage mean, and a plain TCP transfer that shows whether the lab keeps them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from lab.netns import PAYLOAD_SHARE, Nodes

_UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
LEAST_BITS_PER_SECOND = 8  # tc counts in bytes
_PROBE = str(Path(__file__).with_name("probe.py"))


def bits_per_second(rate: str) -> float:
    """tc's notation, 200mbit, as a number; ValueError says which forms there are."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?bit)", rate.strip().lower())
    if not match or float(match[1]) == 0:
        raise ValueError(f"'{rate}' is no rate: write it as tc does, for instance 200mbit or 1.5gbit")
    return _not_too_slow(float(match[1]) * _UNITS[match[2]])


def _not_too_slow(bits: float) -> float:
    if bits < LEAST_BITS_PER_SECOND:
        raise ValueError(f"{bits:g} bit/s are too slow: tc has rates of {LEAST_BITS_PER_SECOND}bit and more")
    return bits


def parse(text: str, nics: int) -> list[str] | None:
    """--rate: none, one rate for all NICs, or one a NIC."""
    if text == "none":
        return None
    rates = [rate.strip() for rate in text.split(",")]
    for rate in rates:
        bits_per_second(rate)
    if len(rates) not in (1, nics):
        raise ValueError(f"--rate gives {len(rates)} rates for {nics} NICs: give one, or one a NIC")
    return rates if len(rates) == nics else rates * nics


def for_coverage(coverage: float, compute_s: float, gradient_bytes: int, nodes: int, nics: int) -> list[str]:
    """Equal rates at which all NICs together need coverage x compute_s to all-reduce one step's gradients.

    A ring moves 2(n-1)/n of the bytes through each node, each way. The rate is the wire's: it is raised by what the
    headers take, so the payload takes the time that was asked for.
    """
    payload_bits = 8 * gradient_bytes * 2 * (nodes - 1) / nodes
    wire = payload_bits / (coverage * compute_s) / PAYLOAD_SHARE / nics
    return [_written(wire)] * nics


def scaled(rates: list[str], speed: float) -> list[str]:
    """So many times as fast."""
    return rates if speed == 1 else [_written(speed * bits_per_second(rate)) for rate in rates]


def _written(bits: float) -> str:
    """As tc writes it; ValueError if tc cannot."""
    _not_too_slow(bits)
    return f"{bits:.0f}bit" if bits < 100e3 else f"{bits / 1e3:.0f}kbit"


def achieved(lab: Nodes, rates: list[str], seconds: float = 0.6) -> list[float]:
    """The real rate of a TCP stream from node 0 to node 1 on each NIC, all at the same time, over the wanted rate."""
    receivers, senders, shares = [], [], []
    for nic in range(len(rates)):
        receivers.append(
            lab.start(1, [sys.executable, "-I", _PROBE, "receive", lab.address(1, nic)], stdout=subprocess.PIPE)
        )
        receivers[-1].stdout.readline()  # it listens
    for nic, rate in enumerate(rates):
        payload = bits_per_second(rate) * PAYLOAD_SHARE / 8
        senders.append(
            lab.start(0, [sys.executable, "-I", _PROBE, "send", lab.address(1, nic), str(int(payload * seconds))])
        )
    for rate, receiver, sender in zip(rates, receivers, senders, strict=True):
        got = float(receiver.stdout.readline() or 0)
        shares.append(8 * got / (bits_per_second(rate) * PAYLOAD_SHARE))
        receiver.stdout.close()
        sender.wait()
        receiver.wait()
    return shares
