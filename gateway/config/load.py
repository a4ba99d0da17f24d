"""Reads the configuration once, from file, environment and credentials; names all problems at once."""

from __future__ import annotations

import copy
import difflib
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from pydantic import ValidationError, create_model

import durable
from channels import plugins
from channels.tables import ConfigTable
from gateway.config.agents import faults
from gateway.config.finding import (
    PREFIX,
    contents,
    credential,
    default_workspace,
    expand,
    find_file,
)
from gateway.config.schema import Schema, expected, got, parse_text
from gateway.config.settings import Channels, Settings
from gateway.config.toml_lines import KeyPath, lines_of
from gateway.errors import ConfigError
from session.disk.local_files import overlap

# Yields a key and what is wrong with it.
Faults = Callable[[Settings], Iterable[tuple[KeyPath, str]]]
# These stand for no key of the file, or not for one alone.
OWN_VARIABLES = ("CONFIG", "WORKSPACE", "DEBUG")
# Keys that once were, with what to do about them.
_GONE: Mapping[KeyPath, str] = {
    (
        "tools",
        "shell",
        "sandbox",
    ): "remove it: commands always run in bubblewrap"
}
MAX_SECRET_BYTES = 64 * 1024
CURE = "make extras, or pip install 'chat-gateway[postgres]'"
# In place of a secret that cannot be had, so that it is not called missing or too short as well.
STAND_IN = "not-to-be-had-secret"
STAND_INS: Mapping[KeyPath, str] = {("broker", "url"): "embedded", ("state", "url"): ""}


def load(
    config_file: Path | None = None,
    workspace: Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    tables: Mapping[str, type[ConfigTable]] | None = None,
    at: Callable[[Path], None] = lambda _: None,
    also: Faults = lambda _: (),
) -> Settings:
    """Read the configuration; what the caller names goes before the environment, that before the file.

    Args:
        config_file: the file, which must exist; else ``find_file`` looks for one, and none is fine.
        workspace: the folder, whatever the configuration says.
        environ: the environment; None is that of the process.
        tables: the tables of channels from other packages, by their name below ``[channels]``; None: of
            those that are installed.
        at: is told each file before it is read, which may take for ever on a network's disk.
        also: yields further problems, as key and words.

    Raises:
        ConfigError: with one line for each problem, ``file:line: key: what is wrong``.
    """
    return load_values(config_file, workspace, environ, tables=tables, at=at, also=also)[0]


def load_values(
    config_file: Path | None = None,
    workspace: Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    tables: Mapping[str, type[ConfigTable]] | None = None,
    at: Callable[[Path], None] = lambda _: None,
    also: Faults = lambda _: (),
) -> tuple[Settings, Mapping[str, object]]:
    """Read it as ``load``; return the values as well, with secrets, from which it can be had again."""
    environ = os.environ if environ is None else environ
    tables = plugins.installed().tables() if tables is None else tables
    reading = _Reading(with_tables(tables), environ, at)
    reading.read_file(find_file(config_file, environ))
    reading.read_environment()
    reading.read_secrets()
    reading.set_workspace(workspace)
    return reading.settings(also), reading.values


def of_values(values: Mapping[str, object]) -> Settings:
    """Return the configuration that another process read, by its values as they are after JSON."""
    return with_tables(plugins.installed().tables()).model_validate(
        {**values, "workspace": Path(str(values["workspace"]))}
    )


def with_tables(tables: Mapping[str, type[ConfigTable]]) -> type[Settings]:
    """Return the Settings class in which ``[channels]`` has these tables, too."""
    if not tables:
        return Settings
    extra = {name: (table, table()) for name, table in tables.items()}
    channels = create_model("Channels", __base__=Channels, **extra)  # type: ignore[call-overload]
    return cast(
        "type[Settings]", create_model("Settings", __base__=Settings, channels=(channels, channels()))
    )


class _Reading:
    """The values found so far, where each came from, and what was wrong with them."""

    def __init__(
        self, settings: type[Settings], environ: Mapping[str, str], at: Callable[[Path], None]
    ) -> None:
        self._model = settings
        self._at = at
        self._schema = Schema(settings)
        self._environ = environ
        self._file: Path | None = None
        self._values: dict[str, object] = {}
        self.values: Mapping[str, object] = self._values
        self._lines: Mapping[KeyPath, int] = {}
        # Environment variable or credential, by key.
        self._sources: dict[KeyPath, str] = {}
        # The line, 0 where there is none, and the words.
        self._problems: list[tuple[int, str]] = []
        # The file could not be parsed: nothing can be said of what it holds.
        self._broken = False

    def read_file(self, file: Path | None) -> None:
        """Read the TOML file, if there is one."""
        self._file = file
        if file is None:
            return
        self._at(file)
        try:
            text = contents(file).decode("utf-8-sig")
            self._values.update(tomllib.loads(text))
            self._lines = lines_of(text)
        except OSError as error:
            self._break(0, f"{file}: cannot be read: {error.strerror or error}")
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            self._break(line, f"{file}:{line}: not UTF-8 text")
        except tomllib.TOMLDecodeError as error:
            self._break_syntax(text, str(error))
        except (ValueError, RecursionError):
            self._break(0, f"{file}: not TOML: a number is too long, or values are nested too deeply")

    def _break(self, line: int, problem: str) -> None:
        self._problems.append((line, problem))
        self._broken = True

    def _break_syntax(self, text: str, words: str) -> None:
        at = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", words)
        line = int(at[1]) if at and at[1] else text.count("\n") + 1
        column = f", column {at[2]}" if at and at[2] else ""
        # The words that stay quote keys and single characters, never a value.
        words = words[: at.start()] if at else words
        self._break(line, f"{self._file}:{line}: not TOML{column}: {words}")

    def read_environment(self) -> None:
        """Let ``CHAT_GATEWAY_SECTION__KEY`` override the file, whole tables first, then their keys."""
        found = [(name.removeprefix(PREFIX), name) for name in self._environ if name.startswith(PREFIX)]
        for rest, name in sorted(found, key=lambda each: (each[0].count("__"), each[0])):
            if rest in OWN_VARIABLES:
                continue
            path = tuple(part.lower() for part in rest.split("__"))
            if self._schema.knows(path):
                self._put(path, parse_text(self._environ[name], self._schema.field(path)), name)
                continue
            near = self._schema.nearest(path, whole=len(path) > 1) or self._schema.misspelt(rest)
            # One without "__" that resembles no key, or holds this, is Kubernetes' or another program's.
            if len(path) == 1 and (near is None or self._environ[name].startswith("tcp://")):
                continue
            words = f"; nearest: {PREFIX}{'__'.join(near).upper()}" if near else ""
            words = f"; {_GONE[path]}" if path in _GONE else words
            self._problems.append((0, f"{name}: unknown key {'.'.join(path)}{words}"))

    def read_secrets(self) -> None:
        """Fetch each secret from the place that the highest layer names: value, file or credential."""
        for path in (*self._schema.secrets, *self._of_agents()):
            file_path = (*path[:-1], f"{path[-1]}_file")
            value, named = self._get(path), self._take(file_path)
            from_environ = path in self._sources, file_path in self._sources
            given = credential(".".join(path), self._file, self._environ)
            if True not in from_environ and given is not None:
                self._fetch(path, given, f"credential {given}")
            elif named in (None, "") or (from_environ == (True, False)):
                continue
            elif value not in (None, "") and from_environ[0] == from_environ[1]:
                self._fault(path, f"given twice; keep one of {path[-1]} and {path[-1]}_file")
            elif isinstance(named, str):
                source = self._sources.get(file_path, "")
                self._fetch(path, self._beside(named, in_file=not source), source)
            else:
                self._fault(file_path, f"expected a file name, got {got(named)}")
                self._put(path, _stand_in(path), "")

    def _of_agents(self) -> list[KeyPath]:
        named = self._values.get("agents")
        return [("agents", name, "model", "api_key") for name in (named if isinstance(named, dict) else ())]

    def _fetch(self, path: KeyPath, file: Path, source: str) -> None:
        text = _stand_in(path)
        # Only a key of this name says where the file is; that of a credential is the secret's own.
        file_path = (*path[:-1], f"{path[-1]}_file") if not source.startswith("credential ") else path
        self._at(file)
        try:
            # What a name leads to may have no end, as devices have none.
            with file.open("rb") as opened:
                data = opened.read(MAX_SECRET_BYTES + 1)
            if len(data) > MAX_SECRET_BYTES:
                self._fault(file_path, f"{file} is over {MAX_SECRET_BYTES} bytes, too large for a secret")
            else:
                text = data.decode("utf-8-sig").rstrip()
                if not text:
                    self._fault(file_path, f"{file} is empty")
                    text = _stand_in(path)
        except OSError as error:
            self._fault(file_path, f"{file}: {error.strerror or error}")
        except UnicodeDecodeError:
            self._fault(file_path, f"{file} is not UTF-8 text")
        # A null byte, which no name of a file holds.
        except ValueError:
            self._fault(file_path, "expected a file name")
        self._put(path, text, source)

    def set_workspace(self, workspace: Path | None) -> None:
        """Make the workspace an absolute path; one in the file is relative to the file's folder."""
        given = self._values.get("workspace", default_workspace(self._file))
        named = str(workspace) if workspace is not None else self._environ.get(f"{PREFIX}WORKSPACE")
        if named:
            self._values["workspace"] = Path(os.path.abspath(expand(named, self._environ)))  # noqa: PTH100
        elif isinstance(given, str) and given and "\0" not in given:
            self._values["workspace"] = self._beside(given, in_file="workspace" in self._values)
        else:
            self._fault(("workspace",), "expected a folder name in quotes")
            self._values["workspace"] = Path.cwd()

    def _beside(self, name: str, *, in_file: bool) -> Path:
        base = self._file.parent if in_file and self._file is not None else Path()
        return Path(os.path.abspath(base / expand(name, self._environ)))  # noqa: PTH100

    def settings(self, also: Faults) -> Settings:
        """Check everything and return the settings, or raise all the problems."""
        settings = sound = None
        try:
            settings = sound = self._model.model_validate(self._values)
            settings.read_from(self._file)
        except ValidationError as error:
            for fault in error.errors(include_url=False):
                path = tuple(str(part) for part in fault["loc"])
                self._fault(path, self._words(path, fault["type"], fault["msg"], fault["input"]))
            sound = self._without(error)
        for path, words in (*faults(sound), *_of_state(sound), *also(sound)) if sound is not None else ():
            self._fault(path, words)
        wanted = settings.local_dir if settings is not None else None
        if settings is not None and wanted is not None and (words := overlap(settings.workspace, wanted)):
            self._fault(("state", "local_dir"), words)
        if self._problems or settings is None:
            in_order = sorted(self._problems, key=lambda problem: problem[0] or sys.maxsize)
            raise ConfigError([words for _, words in in_order]) from None
        durable.use_url(settings.state, settings.state_table.url)
        return settings

    def _without(self, error: ValidationError) -> Settings | None:
        """Return the settings without the keys, or tables, that are wrong: others may be as well."""
        values = copy.deepcopy(self._values)
        for size in (None, 2, 1):
            for fault in error.errors(include_url=False):
                *above, last = [part for part in fault["loc"] if isinstance(part, str)][:size]
                table: object = values
                for part in above:
                    table = table.get(part) if isinstance(table, dict) else None
                if isinstance(table, dict):
                    table.pop(last, None)
            try:
                return self._model.model_validate(values)
            except ValidationError as more:
                error = more
        return None

    def _words(self, path: KeyPath, kind: str, message: str, value: object) -> str:
        """Say what is wrong without showing a text that may be a secret at the wrong place."""
        if kind == "extra_forbidden":
            if len(path) == 2 and path[0] == "channels" and isinstance(value, Mapping):
                return self._unknown_channel(path[1])
            if path in _GONE:
                return f"unknown key; {_GONE[path]}"
            near = self._schema.nearest(path, whole=True)
            return f"unknown key; nearest: {'.'.join(near)}" if near else "unknown key"
        if kind == "value_error":
            return message.removeprefix("Value error, ")
        return expected(self._schema, path, value, kind)

    def _unknown_channel(self, name: str) -> str:
        channels = list(self._model.model_fields["channels"].annotation.model_fields)  # type: ignore[union-attr]
        near = difflib.get_close_matches(name, channels, 1, 0.7)
        meant = f"nearest: channels.{near[0]}" if near else "docs/write-a-channel.md adds one"
        return f"no adapter of this name is installed; available: {', '.join(channels)}; {meant}"

    def _fault(self, path: KeyPath, words: str) -> None:
        key = re.sub(r"\.(\d+)(?=\.|$)", lambda found: f"[{found[1]}]", ".".join(path))
        because = re.match(r"missing, though (\w+) = ", words)
        source, line = self._place((*path[:-1], because[1]) if because else path)
        # Of a file that cannot be read nothing is known to be missing.
        if not self._broken or source:
            where = source or (f"{self._file}:{line}" if line else "")
            self._problems.append((line, f"{where}: {key}: {words}" if where else f"{key}: {words}"))

    def _place(self, path: KeyPath) -> tuple[str, int]:
        for size in range(len(path), 0, -1):
            if path[:size] in self._sources:
                return self._sources[path[:size]], 0
            if path[:size] in self._lines:
                return "", self._lines[path[:size]]
        return "", 0

    def _put(self, path: KeyPath, value: object, source: str) -> None:
        table = self._values
        for part in path[:-1]:
            inner = table.setdefault(part, {})
            # The file has a value where a table belongs: reported below.
            if not isinstance(inner, dict):
                return
            table = inner
        old = table.get(path[-1])
        if isinstance(old, dict) and not isinstance(value, dict):
            # The table stays, so that its own problems are told, too.
            self._problems.append((0, f"{source}: {'.'.join(path)}: expected a JSON object"))
            return
        if source:
            self._note(path, value, source)
        table[path[-1]] = old | value if isinstance(old, dict) and isinstance(value, dict) else value

    def _note(self, path: KeyPath, value: object, source: str) -> None:
        """Note where a value comes from, of a table each key as well: it is looked for by that alone."""
        self._sources[path] = source
        for name, inner in value.items() if isinstance(value, dict) else ():
            self._note((*path, name), inner, source)

    def _get(self, path: KeyPath) -> object:
        table: object = self._values
        for part in path:
            table = table.get(part) if isinstance(table, dict) else None
        return table

    def _take(self, path: KeyPath) -> object:
        table = self._get(path[:-1])
        return table.pop(path[-1], None) if isinstance(table, dict) else None


def _of_state(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    if settings.state_table.url and settings.broker.embedded:
        yield ("state", "url"), 'needs RabbitMQ: set broker.url = "amqp://…", or remove state.url'
    if settings.state_table.url and find_spec("psycopg") is None:
        yield ("state", "url"), f"the package psycopg is not installed; {CURE}"


def _stand_in(path: KeyPath) -> str:
    return STAND_INS.get(path, STAND_IN)
