"""Images built and run without a daemon: buildah and podman as root, over a Debian that is made here.

No registry of images is asked: the base is what ``debootstrap`` makes, with Debian's own Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.support.harness import ROOT

PROGRAMS = ("buildah", "podman", "debootstrap")
BASE = "localhost/python:debian"
IMAGE = "localhost/chat-gateway"
PACKAGES = "python3-venv,python-is-python3,ca-certificates"
# What a machine may need to reach its package index, for the time of the build.
SEEN = ("/etc/ssl/certs", "/etc/pip.conf")
# A machine's own hierarchies of control groups may be of a kind that the runtime does not take.
_WITHOUT_GROUPS = 'umount -R /sys/fs/cgroup 2>/dev/null; mount -t tmpfs groups /sys/fs/cgroup; exec "$@"'
# Not all of what is inherited may be set again.
_LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--cgroups", "disabled")


def lacking() -> str:
    """Say why no image can be built here; empty where one can."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)} (apt-get install {' '.join(missing)})"
    tried = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "needs namespaces"


class Containers:
    """Keeps images and containers in a folder of its own; ``close`` ends what runs and removes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        kept = ("--root", str(folder / "store"), "--runroot", str(folder / "run"))
        self._kept = (*kept, "--storage-driver", os.environ.get("STORAGE_DRIVER", "overlay"))

    def make_base(self) -> None:
        """Make the base image: a small Debian with Python."""
        tree = self._folder / "debian"
        suite = _os_release()["VERSION_CODENAME"]
        _run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", suite, str(tree))
        shutil.rmtree(tree / "var" / "cache" / "apt", ignore_errors=True)
        shutil.rmtree(tree / "var" / "lib" / "apt" / "lists", ignore_errors=True)
        container = self.buildah("from", "scratch").strip()
        self.buildah("add", "-q", container, str(tree), "/")
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self.buildah("config", "--env", f"PATH={path}", "--env", "LANG=C.UTF-8", container)
        self.buildah("commit", "-q", "--rm", container, BASE)
        shutil.rmtree(tree)

    def build(self) -> None:
        seen = [word for path in SEEN if Path(path).exists() for word in ("--volume", f"{path}:{path}:ro")]
        words = ("--format", "docker", "--isolation", "chroot", "--build-arg", f"PYTHON={BASE}", *seen)
        file = str(ROOT / "deploy" / "Dockerfile")
        self.buildah("bud", *words, "--file", file, "--tag", IMAGE, str(ROOT))

    def buildah(self, *words: str) -> str:
        return _run("buildah", *self._kept, *words).stdout

    def podman(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run podman in a view of the machine without control groups."""
        inner = ("podman", *self._kept, "--cgroup-manager", "cgroupfs", *words)
        return _run("unshare", "-m", "sh", "-c", _WITHOUT_GROUPS, "sh", *inner, check=check)

    def start(self, name: str, *words: str) -> None:
        """Start a container of the image in the network of this machine."""
        self.podman("run", "--detach", "--name", name, "--network", "host", *_LIMITS, *words, IMAGE)

    def close(self) -> None:
        """End all containers, and remove what is kept."""
        self.podman("rm", "--all", "--force", check=False)
        self.podman("rmi", "--all", "--force", check=False)
        shutil.rmtree(self._folder, ignore_errors=True)


def _run(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


def _os_release() -> dict[str, str]:
    lines = Path("/etc/os-release").read_text().splitlines()
    return {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}
