"""Types what the pages say: a shell in a folder of its own, where the program is forked and not started."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support import prepared
from tests.support.harness import environment
from tests.support.until import until

WITHIN_S = 150
# Where pages put things on a machine; here they lie below the folder of the test.
_ROOTS = re.compile(r"(?<![\w./~}-])/(?=(?:var|etc|opt|path|usr/local)/)")
_PROGRAM = """\
#!{python} -IS
import json, os, signal, socket, sys
asks = socket.socket(fileno=int(os.environ["PREPARED"]))
told, tell = os.pipe()
request = {{"words": ["gateway", *sys.argv[1:]], "env": dict(os.environ), "cwd": os.getcwd()}}
socket.send_fds(asks, [json.dumps(request).encode()], [0, 1, 2, tell])
os.close(tell)
lines = os.fdopen(told)
child = int(lines.readline())
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(child, number))
code = int(lines.readline() or -9)
sys.exit(code if code >= 0 else 128 - code)
"""
# Who types may do all that is done here already.
_SUDO = """\
#!/bin/sh
while :; do case $1 in -u) shift 2 ;; --preserve-env=*) shift ;; *) exec "$@" ;; esac; done
"""


@dataclass(frozen=True)
class Typed:
    """What became of a command."""

    code: int
    out: str
    err: str


class Typist:
    """``async with Typist(folder, env=...) as typist``: one shell, whose folder and variables last."""

    def __init__(
        self,
        folder: Path,
        *,
        env: Mapping[str, str],
        names: Mapping[str, str] | None = None,
        litellm: bool = False,
    ) -> None:
        """``names`` are words of the pages, and what they are here; ``litellm``: a model will be asked."""
        self.folder = folder
        self.home = folder / "home"
        self._names = dict(names or {})
        self._chosen: dict[str, str] = {}
        self._env = env
        self._litellm = litellm
        self._count = 0

    async def __aenter__(self) -> Typist:
        self.home.mkdir(parents=True)
        programs = self.folder / "bin"
        programs.mkdir()
        write_program(programs / "chat-gateway", _PROGRAM.format(python=sys.executable))
        write_program(programs / "sudo", _SUDO)
        server = prepared.server(litellm=self._litellm).fileno()
        self._environment = environment({}) | {
            "HOME": str(self.home),
            "PATH": f"{programs}:{self.folder}/usr/local/bin:{os.environ['PATH']}:/usr/sbin:/sbin",
            "PREPARED": str(server),
            **self._env,
        }
        codes, code = os.pipe()
        self._shell = await asyncio.create_subprocess_exec(
            *("bash", "--noprofile", "--norc"),
            cwd=self.home,
            env=self._environment,
            stdin=asyncio.subprocess.PIPE,
            pass_fds=[server, code],
            start_new_session=True,
        )
        os.close(code)
        self._code, self._server = code, server
        self._codes = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._codes), os.fdopen(codes, "rb", 0)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        with suppress(ProcessLookupError):
            # With what it still runs, where a command never ended.
            os.killpg(self._shell.pid, signal.SIGKILL)
        await self._shell.wait()

    def here(self, text: str) -> str:
        """Return a text of a page with the paths and names of this place."""
        for name, real in {**self._names, **self._chosen}.items():
            text = text.replace(name, real)
        return _ROOTS.sub(f"{self.folder}/", text)

    def choose(self, shown: str, real: str) -> None:
        """Note what the gateway chose in place of an id that a page shows."""
        self._chosen[shown] = real

    def on_page(self, out: str) -> str:
        """Return an output as a page has it, whose ids are others."""
        for shown, real in self._chosen.items():
            out = out.replace(real, shown)
        return out

    async def type(self, command: str, stdin: str = "") -> Typed:
        """Type a command and wait until it is done; what it asks is answered by ``stdin``."""
        file, out, err = self._files(command, stdin)
        assert self._shell.stdin is not None
        line = f". {file} <{file}.in >{out} 2>{err}; echo $? >&{self._code}\n"
        self._shell.stdin.write(line.encode())
        told = await asyncio.wait_for(self._codes.readline(), WITHIN_S)
        return Typed(int(told or -1), out.read_text(), err.read_text())

    async def leave_running(self, command: str, *, within_s: float = WITHIN_S) -> Typed:
        """Start what runs until Ctrl-C, wait for its ``ready``, and press that."""
        file, out, err = self._files(command, "")
        with out.open("wb") as writes, err.open("wb") as complains:
            process = await asyncio.create_subprocess_exec(
                *("bash", str(file)),
                cwd=Path(f"/proc/{self._shell.pid}/cwd").resolve(),
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writes,
                stderr=complains,
                pass_fds=[self._server],
                start_new_session=True,
            )
        try:
            await until(
                lambda: "\nready" in f"\n{err.read_text()}" or process.returncode is not None, within_s
            )
            assert process.returncode is None, err.read_text()
            os.killpg(process.pid, signal.SIGINT)
            code = await asyncio.wait_for(process.wait(), within_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return Typed(code, out.read_text(), err.read_text())

    def _files(self, command: str, stdin: str) -> tuple[Path, Path, Path]:
        self._count += 1
        file = self.folder / f"typed{self._count}"
        file.write_text(self.here(command) + "\n")
        Path(f"{file}.in").write_text(stdin)
        return file, Path(f"{file}.out"), Path(f"{file}.err")


def write_program(path: Path, text: str) -> None:
    """Write a file that may be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
