"""Builds the servers of ``[mcp]``: each by its table, those on their stdio confined as commands are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from gateway.config.settings import McpServer, Settings
from session.context.scopes import Scopes
from session.mcp.servers import McpServers
from session.mcp.spec import ServerFailed, ServerSpec
from session.tools.sandbox import NoSandbox, Rules, SandboxOfDaemon, Wrapped


def build_servers(settings: Settings, scopes: Scopes) -> McpServers:
    """Know all servers of the configuration; none is started yet.

    Raises:
        NewerFormat: a newer version recorded what a server listed.
    """
    specs = [_spec(settings.workspace, name, table) for name, table in settings.mcp.items()]
    return McpServers(specs, settings.state, scopes, launch=Confined(settings.workspace).launch)


class Confined:
    """Runs servers in the sandbox of this machine; where there is none, it refuses."""

    def __init__(self, workspace: Path) -> None:
        """Let no server read ``workspace`` but its own folder there."""
        self._workspace = workspace
        self._sandbox = SandboxOfDaemon()

    async def launch(self, spec: ServerSpec, argv: Sequence[str], folder: Path) -> Wrapped:
        """Return what runs a server: it writes to its folder alone, and reads programs.

        Raises:
            ServerFailed: it cannot be confined.
        """
        try:
            sandbox = await self._sandbox.get()
            program, needed = await asyncio.to_thread(_programs_of, argv[0])
            rules = Rules(
                folder,
                network=spec.network,
                readable=[*spec.readable, *needed],
                private=[self._workspace],
                env=spec.env,
            )
            return sandbox.wrap([str(program), *argv[1:]], rules)
        except NoSandbox as error:
            raise ServerFailed(f"not started: {error}", hint=error.hint) from error


def _programs_of(named: str) -> tuple[Path, list[Path]]:
    """Return where a program really lies, and, of one of Python's environments, what it needs to run."""
    for program in (Path(named), Path(named).resolve()):
        root = program.parent.parent
        try:
            known = (root / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        pairs = (line.partition("=") for line in known.splitlines())
        homes = [Path(value.strip()).parent for name, _, value in pairs if name.strip() == "home"]
        return program, [path for path in (root, *homes) if path.is_dir() and path != Path(path.anchor)]
    return Path(named), []


def _spec(workspace: Path, name: str, table: McpServer) -> ServerSpec:
    return ServerSpec(
        name,
        command=table.command,
        url=table.url,
        headers_file=workspace / Path(table.headers_file).expanduser() if table.headers_file else None,
        env={key: value.get_secret_value() for key, value in table.env.items()},
        network=table.network,
        readable=[Path(each) for each in table.readable],
        channels=table.channels,
        people=table.people,
        repeatable=table.repeatable,
        trusted=table.trusted,
        timeout_s=table.timeout_s,
    )
