"""Hosts on one machine: network namespaces on one switch, made by a process that is in such a one itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HUB = "10.77.0.1"
_APART = "CHAOS_APART"
_NEEDED = ("unshare", "nsenter", "ip")
# What a process needs to be allowed that calls itself apart.
_TRIAL = "ip link add trial type veth peer name trial2 && ip link add hub type bridge"


def why_not() -> str:
    """Say what this machine lacks for it, empty where nothing."""
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)} (util-linux, iproute2)"
    trial = ["unshare", "--net", "sh", "-c", _TRIAL]
    tried = subprocess.run(trial, capture_output=True, text=True, check=False)
    return f"no network namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


def apart(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a module where nothing of this machine's network is: its addresses are its own, and end with it."""
    return subprocess.run(
        ["unshare", "--net", "--", sys.executable, "-m", module, *words],
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
        env={**os.environ, _APART: "1"},
    )


class Hosts:
    """So many hosts on one switch, on which this process is ``HUB``; ``with Hosts(2) as hosts``."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._holders: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Hosts:
        if _APART not in os.environ:
            raise RuntimeError("this is the network of the machine: run it by apart()")
        ip("link", "set", "lo", "up")
        ip("link", "add", "hub", "type", "bridge")
        ip("address", "add", f"{HUB}/24", "dev", "hub")
        ip("link", "set", "hub", "up")
        for number in range(self._count):
            self._add(number)
        return self

    def __exit__(self, *_: object) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()

    def prefix(self, number: int) -> Sequence[str]:
        """Return what runs a program on a host."""
        return ["nsenter", "--target", str(self._holders[number].pid), "--net", "--"]

    def unplug(self, number: int) -> None:
        """Part a host from the others: what is sent arrives nowhere, and nobody is told."""
        ip("link", "set", f"port{number}", "down")

    def plug_in(self, number: int) -> None:
        """Join it to them again."""
        ip("link", "set", f"port{number}", "up")

    def _add(self, number: int) -> None:
        holder = subprocess.Popen(["unshare", "--net", "--", "sleep", "infinity"])
        self._holders.append(holder)
        while _net(holder.pid) == _net(os.getpid()):
            time.sleep(0.01)
        ip("link", "add", f"port{number}", "type", "veth", "peer", "name", "plug", "netns", str(holder.pid))
        ip("link", "set", f"port{number}", "master", "hub")
        inside = self.prefix(number)
        ip("address", "add", f"10.77.0.{number + 2}/24", "dev", "plug", prefix=inside)
        ip("link", "set", "lo", "up", prefix=inside)
        ip("link", "set", "plug", "up", prefix=inside)
        self.plug_in(number)


def _net(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/net").readlink()


def ip(*words: str, prefix: Sequence[str] = ()) -> None:
    """Run ``ip`` of iproute2, on a host where ``prefix`` names it."""
    subprocess.run([*prefix, "ip", *words], check=True)
