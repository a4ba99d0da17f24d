"""A machine of its own for one test: a real systemd over a copy-on-write view of this one's files.

It has its own processes, mounts, network (loopback alone) and control groups. All that is written lies in
memory and is gone with it, as is every process, when its first one is killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

CGROUPS = ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")
BORROWED = Path("/usr/lib/borrowed")
_BOOT = """\
set -e
mount --make-rprivate /
mount -t tmpfs -o size=3g box "$BOX"
mkdir "$BOX"/upper "$BOX"/work "$BOX"/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$BOX/upper,workdir=$BOX/work" "$BOX/root"
cd "$BOX/root"
mount -t proc proc proc
# The kernel is this machine's own: nothing inside may set it up.
mount --bind -o ro proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t tmpfs run run
mount -t tmpfs tmp tmp
mkdir run/share
mount --bind "$SHARE" run/share
# What was changed, and nothing else.
mkdir run/changed
mount --bind "$BOX/upper" run/changed
mount --rbind /dev dev
mount -t sysfs sysfs sys -o ro
mount -t cgroup2 cgroup2 sys/fs/cgroup
# One that is known: a first boot would enable whatever is installed here.
tr -d - < proc/sys/kernel/random/uuid > etc/machine-id
rm -rf var/lib/systemd etc/systemd/system usr/sbin/policy-rc.d lib/systemd/system/sysinit.target.wants
# The workspace of whoever runs the tests.
rm -rf root/.chat-gateway
# The index of manual pages is built by a trigger of dpkg, for seconds.
rm -f var/lib/man-db/auto-update
mkdir -p etc/systemd/system var/lib/systemd lib/systemd/system/sysinit.target.wants
ln -s ../systemd-journald.service lib/systemd/system/sysinit.target.wants/
if [ -n "$PACKAGES" ]; then
  mkdir usr/lib/borrowed "$BOX"/own "$BOX"/own-work
  layers="lowerdir=$PACKAGES,upperdir=$BOX/own,workdir=$BOX/own-work"
  mount -t overlay overlay -o "$layers,metacopy=on" usr/lib/borrowed
  # Whatever mask they were installed under.
  find usr/lib/borrowed ! -perm -o=r -exec chmod a+rX '{}' +
fi
export container=oci
# No chroot, in which the kernel allows no namespaces of users.
mkdir old
pivot_root . old
umount -l /old
# Among its own alone: what systemd mounts for a service, its credentials for one, reaches it from outside.
mount --make-rshared /
exec /lib/systemd/systemd --system --unit=basic.target --log-target=journal --show-status=0
"""


_TRY = """\
mount -t tmpfs box /mnt
mkdir /mnt/upper /mnt/work /mnt/root /mnt/groups
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work,metacopy=on /mnt/root
mount -t cgroup2 cgroup2 /mnt/groups
"""


def lacking() -> str:
    """Say why no box can be had here; empty where one can."""
    if os.geteuid() != 0:
        return "needs root"
    if not Path("/lib/systemd/systemd").exists():
        return "needs systemd (apt-get install systemd)"
    tried = subprocess.run(
        ["unshare", "-mpfnu", "--cgroup", "sh", "-ec", _TRY], capture_output=True, check=False
    )
    return "" if tried.returncode == 0 else "needs namespaces, overlays and control groups of its own"


class Box:
    """``with Box(share) as box`` boots it.

    Args:
        share: the folder that it sees as ``/run/share``.
        packages: the folder that it sees as ``BORROWED``, readable for everybody; None: there is none.
    """

    def __init__(self, share: Path, *, packages: Path | None = None) -> None:
        self.share = share
        self._packages = packages
        self._place = Path(tempfile.mkdtemp(prefix="chat-gateway-box-"))
        self._group = _own_group()
        self._first: subprocess.Popen[bytes] | None = None
        self._systemd = 0

    def __enter__(self) -> Box:
        join = f'echo $$ > "{self._group}/cgroup.procs"; ' if self._group else ""
        self._first = subprocess.Popen(
            ["sh", "-c", f'{join}exec unshare -mpfnu --cgroup --kill-child sh -c "$0"', _BOOT],
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "BOX": str(self._place),
                "SHARE": str(self.share),
                "PACKAGES": str(self._packages or ""),
            },
            stdin=subprocess.DEVNULL,
        )
        try:
            self._await("a first process", lambda: self._child() > 0)
            self._systemd = self._child()
            self._await("a manager", lambda: self.run("systemctl", "is-system-running").stdout != "")
            self._await("its targets", self._is_up)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, *words: str, check: bool = False, **env: str) -> subprocess.CompletedProcess[str]:
        enter = ("nsenter", "-t", str(self._systemd), "-m", "-p", "-n", "-u", "-C", "-r", "-w")
        clean = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
        done = subprocess.run(
            [*enter, *words], env={**clean, **env}, capture_output=True, text=True, timeout=120, check=False
        )
        assert not check or done.returncode == 0, (
            f"{words}\n{done.stdout}{done.stderr}\n{self.journal('*gateway*')}"
        )
        return done

    def journal(self, unit: str = "") -> str:
        """What the journal holds, of one unit alone if one is named."""
        words = ("journalctl", "--no-pager", "-o", "cat", "-n", "60", *(("-u", unit) if unit else ()))
        return self.run(*words).stdout

    def shown(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", "--value", "-p", name, unit).stdout.strip()

    def until(self, unit: str, name: str, value: str, within_s: float = 60) -> None:
        """Wait until a property of a unit has a value."""
        end = time.monotonic() + within_s
        while (now := self.shown(unit, name)) != value:
            assert time.monotonic() < end, f"{unit}: {name} is {now}\n{self.journal(unit)}"
            time.sleep(0.1)

    def close(self) -> None:
        if self._first is not None:
            if child := self._child():
                # The kernel ends every process of a namespace with its first.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            self._first.kill()
            self._first.wait()
        if self._group is not None:
            _remove(self._group)
        shutil.rmtree(self._place, ignore_errors=True)

    def _child(self) -> int:
        assert self._first is not None
        pid = self._first.pid
        try:
            found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return 0
        return int(found[0]) if found else 0

    def _is_up(self) -> bool:
        # Whatever else this machine starts at boot may fail inside.
        return self.run("systemctl", "is-active", "basic.target").stdout.strip() == "active"

    def _await(self, what: str, so: object, within_s: float = 60) -> None:
        end = time.monotonic() + within_s
        while not so():  # type: ignore[operator]
            assert self._first is not None
            if self._first.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the box did not come up: no {what}")
            time.sleep(0.05)


def _own_group() -> Path | None:
    """Make a control group for it, so that those of its units can be found and removed."""
    for name in CGROUPS:
        top = Path(name)
        if (top / "cgroup.procs").exists():
            group = top / f"chat-gateway-box-{os.getpid()}"
            with contextlib.suppress(OSError):
                group.mkdir(exist_ok=True)
                return group
    return None


def _remove(group: Path) -> None:
    end = time.monotonic() + 10
    while group.exists() and time.monotonic() < end:
        for folder in _deepest_first(group):
            with contextlib.suppress(OSError):
                folder.rmdir()
        time.sleep(0.05)


def _deepest_first(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for inner in folder.iterdir():
            if inner.is_dir():
                yield from _deepest_first(inner)
    yield folder
