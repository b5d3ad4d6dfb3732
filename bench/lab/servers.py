"""Parameter servers of the lab: a link ps:ethK has one on each node, on that NIC."""

from __future__ import annotations

from pathlib import Path

from lab.netns import Nodes


def resolved(lab: Nodes, link: str, port: int) -> str:
    """The link as DEFT_LINKS has it: ps:ethK by the addresses of its servers, any other as it is."""
    kind, _, interface = link.partition(":")
    if kind != "ps" or not interface.startswith("eth"):
        return link
    return "ps:" + "+".join(f"{lab.address(node, int(interface[3:]))}:{port}" for node in range(lab.nodes))


def commands(build: Path, link: str) -> list[list[str]]:
    """What starts the servers of a resolved link, in the order of the nodes."""
    if not link.startswith("ps:"):
        return []
    program = str(build / "bin/deftd")
    addresses = link.removeprefix("ps:").split("+")
    return [[program, "server", f"--listen={address}", "--insecure=on"] for address in addresses]
