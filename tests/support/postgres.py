"""A private PostgreSQL server: own folder and port, gone with the process that started it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from tests.support.broker import spawn
from tests.support.ports import KeptPort

_FOLDERS = (*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), Path("/usr/local/bin"))


def program(name: str) -> str:
    """Find a program of the server, which Debian keeps out of the path."""
    found = next((folder / name for folder in _FOLDERS if (folder / name).exists()), None)
    return str(found) if found is not None else (shutil.which(name) or name)


class Postgres:
    """One server with a database ``gateway``. ``with Postgres() as postgres`` starts it.

    It syncs each commit, as in production, and is not root's: it refuses to run for root.
    """

    def __init__(self, *, address: str = "127.0.0.1") -> None:
        self.address = address
        self.base = Path(tempfile.mkdtemp(prefix="chat-gateway-postgres-"))
        self._kept_port = KeptPort()
        self.port = self._kept_port.port
        self._server: subprocess.Popen[bytes] | None = None
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._as = {"user": "nobody", "group": "nogroup", "extra_groups": ()}
            shutil.chown(self.base, "nobody", "nogroup")

    @property
    def url(self) -> str:
        """Its address, with a password that it does not ask for."""
        return f"postgresql://gateway:s3cret-words@{self.address}:{self.port}/gateway"

    def __enter__(self) -> Postgres:
        try:
            self._run("initdb", "--no-sync", "--auth=trust", "--username=gateway", str(self.base / "data"))
            with (self.base / "data" / "pg_hba.conf").open("a") as file:
                file.write("host all all 0.0.0.0/0 trust\n")
            self.start()
            with psycopg.connect(self.url.removesuffix("/gateway") + "/postgres", autocommit=True) as admin:
                admin.execute("CREATE DATABASE gateway")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the server, and return when it takes connections."""
        options = {
            "listen_addresses": self.address,
            "unix_socket_directories": str(self.base),
            "port": str(self.port),
            "max_connections": "40",
        }
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with (self.base / "log").open("ab") as log:
            command = [program("postgres"), "-D", str(self.base / "data"), *words]
            self._server = spawn(command, stdout=log, stderr=log, cwd="/", **self._as)
        command = [program("pg_isready"), "--timeout=1", "-h", self.address, "-p", str(self.port)]
        while subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
            if self._server.poll() is not None:
                raise RuntimeError((self.base / "log").read_text())

    def stop(self) -> None:
        """Stop it, without waiting for its clients."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill it as a crash does: what it had not synced is lost to nobody but itself."""
        self._end(signal.SIGQUIT)

    def freeze(self, frozen: bool = True) -> None:
        """Stop all of its processes, or let them go on."""
        assert self._server is not None
        pid = self._server.pid
        # Each of its processes has a session of its own.
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (pid, *map(int, children)):
            os.kill(each, signal.SIGSTOP if frozen else signal.SIGCONT)

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Execute a statement in the database, on a connection of its own; return its rows."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute(statement.encode(), values)
            return found.fetchall() if found.description else []

    def close(self) -> None:
        """Stop it for good, and remove its folder."""
        self._end(signal.SIGINT)
        shutil.rmtree(self.base, ignore_errors=True)

    def _end(self, by: signal.Signals) -> None:
        if self._server is not None and self._server.poll() is None:
            self._server.send_signal(by)
            self._server.wait()

    def _run(self, name: str, *words: str) -> None:
        subprocess.run([program(name), *words], check=True, capture_output=True, cwd="/", **self._as)
