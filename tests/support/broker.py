"""A private RabbitMQ node: own name, port, folders and epmd, gone with the process that started it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.ports import KeptPort

BIN = Path("/usr/lib/rabbitmq/bin")
TEMPLATES = Path(tempfile.gettempdir()) / f"chat-gateway-broker-template-{os.getuid()}"
# Which core each of its schedulers keeps to, where somebody says so: the nodes of many tests share a machine.
BIND = "RABBITMQ_SCHEDULER_BIND_TYPE"
START_HEADER = b"AMQP\x00\x00\x09\x01"
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
# The kernel's "parent" is the thread that started a child: this one lives as long as the process.
_starter = ThreadPoolExecutor(1, thread_name_prefix="broker")


def _die_with_parent() -> None:
    os.setsid()
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def spawn(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a server that ends with this process, however that ends."""

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, preexec_fn=_die_with_parent, **options)

    return _starter.submit(start).result()


def answers(port: int) -> bool:
    """Say whether an AMQP server answers the protocol header with ``Connection.Start``."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as peer:
            peer.sendall(START_HEADER)
            return peer.recv(1) == b"\x01"
    except OSError:
        return False


class Broker:
    """One node. ``with Broker() as broker`` starts it and at the end kills all that it started.

    Args:
        consumer_timeout_ms: after how long a channel with an unacknowledged letter is closed (None: 30 min).
        check_ms: how often the broker looks for such channels (its own default is a minute).
        config: further lines of ``rabbitmq.conf``.
        name: of the node, before its ``@localhost``; one with a name of its own starts from nothing.
        beside: another node on this machine, whose secret and directory of nodes it shares.
    """

    def __init__(
        self,
        *,
        consumer_timeout_ms: int | None = None,
        check_ms: int | None = None,
        config: tuple[str, ...] = (),
        folder: Path | None = None,
        name: str = "chat",
        beside: Broker | None = None,
    ) -> None:
        self._own = folder is None
        self.base = folder or Path(tempfile.mkdtemp(prefix="chat-gateway-broker-"))
        self._kept_ports = [KeptPort() for _ in range(3)]
        self.port, self._dist, self.epmd_port = (kept.port for kept in self._kept_ports)
        self._name, self._beside = name, beside
        self._consumer_timeout_ms, self._check_ms, self._config = consumer_timeout_ms, check_ms, config
        self._epmd: subprocess.Popen[bytes] | None = None
        self._node: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address with the guest account, virtual host ``/``."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def pid(self) -> int:
        assert self._node is not None
        return self._node.pid

    def __enter__(self) -> Broker:
        try:
            self.lay_out()
            self._take_template()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, timeout_s: float = 90) -> None:
        """Start the node and return when it speaks AMQP."""
        self.launch(timeout_s)
        self.wait(timeout_s)

    def launch(self, timeout_s: float = 90) -> None:
        """Start the node without waiting for it."""
        if self._beside is None and (self._epmd is None or self._epmd.poll() is not None):
            command = [shutil.which("epmd") or "epmd", "-address", "127.0.0.1", "-port", str(self.epmd_port)]
            self._epmd = spawn(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            # A node that finds none starts one of its own, which nobody ends.
            self._await_epmd(timeout_s)
        with (self.base / "boot.out").open("ab") as out:
            self._node = spawn(
                [str(BIN / "rabbitmq-server"), "-noinput"],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def _await_epmd(self, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.epmd_port), 2):
                return
            assert self._epmd is not None
            if self._epmd.poll() is not None or time.monotonic() > end:
                raise RuntimeError("epmd did not start")
            time.sleep(0.02)

    def wait(self, timeout_s: float = 90) -> None:
        """Return when the node speaks AMQP."""
        assert self._node is not None
        end = time.monotonic() + timeout_s
        while not answers(self.port):
            if self._node.poll() is not None or time.monotonic() > end:
                raise RuntimeError("RabbitMQ did not start:\n" + (self.base / "boot.out").read_text()[-2000:])
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the node with SIGKILL; its data stays."""
        if self._node is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._node.pid, signal.SIGKILL)
            self._node.wait()

    def restart(self) -> None:
        """Kill the node and start it again on the same data."""
        self.kill()
        self.start()

    def stop(self) -> None:
        if self._node is not None and self._node.poll() is None:
            self._node.terminate()
            try:
                self._node.wait(90)
            except subprocess.TimeoutExpired:
                self.kill()

    def ctl(self, *arguments: str) -> str:
        """Run ``rabbitmqctl`` against the node and return what it prints."""
        done = subprocess.run(
            [BIN / "rabbitmqctl", "--quiet", *arguments],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"rabbitmqctl {arguments[0]}: {done.stdout}{done.stderr}")
        return done.stdout

    def alarm(self, on: bool) -> None:
        """Raise the memory alarm, or end it."""
        self.ctl("set_vm_memory_high_watermark", *(("0.000001",) if on else ("absolute", "1GB")))

    def user(self, name: str, password: str) -> None:
        self.ctl("add_user", name, password)
        self.ctl("set_permissions", name, ".*", ".*", ".*")

    def vhost(self, name: str) -> str:
        self.ctl("add_vhost", name)
        self.ctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
        return f"{self.url}{name}"

    def delete_queues(self, names: Iterable[str]) -> None:
        """Delete every queue whose name begins with one of ``names`` and a dot."""
        pattern = f"^({'|'.join(names)})[.]"
        self.ctl(
            "eval",
            '[rabbit_amqqueue:delete(Q, false, false, <<"test">>) || Q <- rabbit_amqqueue:list(), '
            f're:run(element(4, amqqueue:get_name(Q)), "{pattern}") =/= nomatch].',
        )

    def close(self) -> None:
        self.kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None
        for kept in self._kept_ports:
            kept.close()
        if self._own:
            shutil.rmtree(self.base, ignore_errors=True)

    def lay_out(self) -> None:
        """Write the files that the node reads at its start."""
        (self.base / "home").mkdir(parents=True, exist_ok=True)
        lines = [
            f"listeners.tcp.1 = 127.0.0.1:{self.port}",
            "vm_memory_high_watermark.absolute = 1GB",
            "disk_free_limit.absolute = 50MB",
            "log.file.level = warning",
            *self._config,
        ]
        if self._consumer_timeout_ms is not None:
            lines.append(f"consumer_timeout = {self._consumer_timeout_ms}")
        (self.base / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        check = f"{{rabbit, [{{channel_tick_interval, {self._check_ms}}}]}}" if self._check_ms else ""
        (self.base / "advanced.config").write_text(f"[{check}].\n")
        (self.base / "enabled_plugins").write_text("[].\n")

    def _take_template(self) -> None:
        """Copy the data of a node that was started once: 4 s instead of 10 to the first answer."""
        if (self.base / "mnesia").exists() or self._name != "chat":
            return
        with TEMPLATES.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not TEMPLATES.exists():
                self.start()
                self.stop()
                fresh = TEMPLATES.with_suffix(f".{os.getpid()}")
                # A process of the same number may have been killed here.
                shutil.rmtree(fresh, ignore_errors=True)
                shutil.copytree(self.base / "mnesia", fresh)
                fresh.rename(TEMPLATES)
            else:
                shutil.copytree(TEMPLATES, self.base / "mnesia")

    def environment(self) -> dict[str, str]:
        """The environment of the node, and of the programs that speak to it."""
        base, first = self.base, self._beside or self
        return {
            **({BIND: os.environ[BIND]} if BIND in os.environ else {}),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(first.base / "home"),
            "ERL_EPMD_PORT": str(first.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP": "/dev/null",
            "RABBITMQ_NODENAME": f"{self._name}@localhost",
            "RABBITMQ_DIST_PORT": str(self._dist),
            "RABBITMQ_MNESIA_BASE": str(base / "mnesia"),
            "RABBITMQ_LOG_BASE": str(base / "log"),
            "RABBITMQ_CONFIG_FILE": str(base / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(base / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(base / "enabled_plugins"),
            "RABBITMQ_ALLOW_INPUT": "1",  # the script becomes the node: its process id is ours to kill
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
