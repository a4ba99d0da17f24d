"""``onboard``: from nothing to the first answer in a real chat, by questions; it goes on where it stopped."""

from __future__ import annotations

import contextlib
import difflib
import getpass
import os
import stat
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import durable
from gateway import systemd
from gateway.cli import output
from gateway.cli.root import FILE, FOLDER, GlobalOptions, Verb
from gateway.config import edit
from gateway.config.edit import amend, amended
from gateway.config.finding import MAX_BYTES, file_to_change
from gateway.config.toml_lines import KeyPath
from gateway.errors import GatewayError

if TYPE_CHECKING:
    from gateway.config.settings import Settings


class Questions:
    """Reads answers from stdin, one a line; questions go to stderr.

    Args:
        yes: nobody is asked: each question has its default for an answer.
    """

    def __init__(self, *, yes: bool) -> None:
        self.yes = yes

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Show nothing that is typed while nobody asks, and forget it: it may be a secret."""
        with _echo(on=False):
            yield

    def text(self, question: str, default: str = "") -> str:
        """Return a line; ``default`` for an empty one.

        Raises:
            GatewayError: stdin has ended.
        """
        if self.yes:
            return default
        return self._line(f"{question} [{default}]: " if default else f"{question}: ").strip() or default

    def secret(self, question: str) -> str:
        """Return a line that a terminal does not show; nothing where nobody is asked."""
        if self.yes:
            return ""
        if sys.stdin.isatty():
            try:
                return getpass.getpass(f"{question}: ", stream=sys.stderr).strip()
            except EOFError:
                raise _ended() from None
        return self._line(f"{question}: ").strip()

    def agreed(self, question: str) -> bool:
        """Return whether the answer is yes; an empty one is no."""
        return self.text(f"{question} [y/N]").lower() in ("y", "yes")

    def _line(self, prompt: str) -> str:
        with _echo(on=True):
            sys.stderr.write(output.plain(prompt))
            sys.stderr.flush()
            line = sys.stdin.readline() if sys.stdin is not None else ""
        if not sys.stdin.isatty():
            sys.stderr.write("\n")
        if not line:
            raise _ended()
        return line


@contextmanager
def _echo(*, on: bool) -> Iterator[None]:
    """Have the terminal show what is typed, or not; nothing where stdin is none."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    now = [*before]
    now[3] = now[3] | termios.ECHO if on else now[3] & ~termios.ECHO
    # What was typed before is dropped as the mode changes.
    termios.tcsetattr(fd, termios.TCSAFLUSH, now)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(fd, termios.TCSAFLUSH if not on else termios.TCSADRAIN, before)


def _ended() -> GatewayError:
    return GatewayError(
        "the input has ended; all settings written so far are kept",
        hint="run chat-gateway onboard to continue",
    )


PLATFORMS = ("telegram", "discord")
_WHERE = {
    "telegram": "send /newbot to @BotFather",
    "discord": "Developer Portal: your application, Bot, Reset Token",
}


@dataclass(frozen=True, slots=True)
class Provider:
    """One provider: its LiteLLM prefix, an example of a model, and what it has to be asked with.

    Args:
        api_base: the usual address of a server of one's own, which is asked for; empty: the provider has one.
        keyed: whether it takes a key.
    """

    title: str
    prefix: str
    example: str
    api_base: str = ""
    keyed: bool = True

    def model(self, name: str) -> str:
        """Return a model as LiteLLM names it; its prefix may be there already."""
        return name if name.startswith(f"{self.prefix}/") else f"{self.prefix}/{name}"


PROVIDERS = (
    Provider("OpenAI", "openai", "gpt-4.1-mini"),
    Provider("Anthropic", "anthropic", "claude-sonnet-4-5"),
    Provider("Gemini", "gemini", "gemini-2.5-flash"),
    Provider("OpenRouter", "openrouter", "openai/gpt-4.1-mini"),
    Provider("Ollama", "ollama_chat", "llama3.2", "http://127.0.0.1:11434", keyed=False),
    Provider("vLLM", "hosted_vllm", "Qwen/Qwen3-8B", "http://127.0.0.1:8000/v1"),
    Provider("LM Studio", "lm_studio", "qwen3-8b", "http://127.0.0.1:1234/v1", keyed=False),
    Provider("Azure", "azure", "my-deployment", "https://my-resource.openai.azure.com"),
    Provider("Groq", "groq", "llama-3.3-70b-versatile"),
    Provider("Mistral", "mistral", "mistral-small-latest"),
)
OTHER = str(len(PROVIDERS) + 1)
_WIDTH, _COLUMNS = 17, 4


def listed_providers() -> str:
    """Return the numbered list, in columns."""
    titles = [*(provider.title for provider in PROVIDERS), "other"]
    cells = [f"{number:>2} {title}".ljust(_WIDTH) for number, title in enumerate(titles, 1)]
    rows = [cells[at : at + _COLUMNS] for at in range(0, len(cells), _COLUMNS)]
    return "\n".join("".join(row).rstrip() for row in rows)


def chosen_provider(answer: str) -> Provider | None:
    """Return the provider that a number or a name means; None: the answer is neither."""
    said = answer.strip().lower()
    if said.isdigit() and 1 <= int(said) <= len(PROVIDERS):
        return PROVIDERS[int(said) - 1]
    return next((one for one in PROVIDERS if said in (one.title.lower(), one.prefix)), None)


def provider_of(name: str) -> Provider | None:
    """Return the provider of a model as LiteLLM names it."""
    return next((one for one in PROVIDERS if name.startswith(f"{one.prefix}/")), None)


@dataclass(frozen=True, kw_only=True)
class _Given:
    model: str | None
    api_base: str | None
    key_file: Path | None
    platform: str | None
    token_file: Path | None
    owner: str
    unit: Path | None
    yes: bool
    dry_run: bool


@dataclass
class _Plan:
    """What is to be written; nothing is before it was tried."""

    values: dict[KeyPath, str | bool | int] = field(default_factory=dict)
    gone: list[KeyPath] = field(default_factory=list)
    secrets: dict[Path, str] = field(default_factory=dict)

    def keep_secret(self, path: KeyPath, value: str, file: Path) -> None:
        """Put a secret into a file of its own, which the configuration names."""
        self.secrets[file] = value
        self.values[(*path[:-1], f"{path[-1]}_file")] = f"{file.parent.name}/{file.name}"
        self.gone.append(path)


@click.command(cls=Verb)
@click.option("--model", metavar="NAME", help="its LiteLLM name, such as openai/gpt-4.1-mini")
@click.option("--api-base", metavar="URL", help="address of the model server, if you run your own")
@click.option("--key-file", metavar="FILE", type=FILE, help="file with the API key of the model")
@click.option("--platform", type=click.Choice((*PLATFORMS, "none")), help="platform of the bot")
@click.option("--token-file", metavar="FILE", type=FILE, help="file with the bot token")
@click.option("--owner", metavar="ID", default="", help="your numeric user id, approved without asking")
@click.option(
    "--unit",
    metavar="DIR",
    type=FOLDER,
    help="write a systemd unit to DIR (your own units: ~/.config/systemd/user)",
)
@click.option("--yes", is_flag=True, help="ask no questions; use the defaults for options not given")
@click.option("--dry-run", is_flag=True, help="test everything, but only show what would be written")
def onboard(opts: GlobalOptions, **options: Any) -> int:
    """Set up a model and a bot, up to the first answer in your chat.

    Asks for a model, its API key, a platform and a bot token, tests each, writes the configuration and
    approves your account. Run again, it continues where it stopped.
    """
    given = _Given(**options)
    config = file_to_change(opts.config)
    settings = _load(config if config.exists() else None, opts)
    questions = Questions(yes=given.yes)
    output.words(f"configuration: {config}{'' if config.exists() else ' (will be created)'}")
    output.words(f"workspace: {settings.workspace}")
    _model(given, settings, questions, config)
    settings = _again(given, opts, config, settings)
    name = _platform(given, settings, questions, config)
    settings = _again(given, opts, config, settings)
    _port(given, settings, config)
    settings = _again(given, opts, config, settings)
    _unit(given, settings, questions, config)
    if given.dry_run:
        output.words("nothing was written (--dry-run)")
        return 0
    return _first_answer(given, settings, questions, config, name)


def _load(config: Path | None, opts: GlobalOptions) -> Settings:
    from gateway.config.load import load

    return load(config, opts.workspace)


def _again(given: _Given, opts: GlobalOptions, config: Path, settings: Settings) -> Settings:
    return settings if given.dry_run or not config.exists() else _load(config, opts)


def _model(given: _Given, settings: Settings, questions: Questions, config: Path) -> None:
    """Find a model that answers, and write it down; what was wrong alone is asked for again."""
    from gateway.cli import first_chat

    if given.api_base:
        # No question asks for it: whoever answers them could not correct it.
        _with_model(settings, {"api_base": given.api_base})
    name, base, key = given.model or "", given.api_base or "", _read(given.key_file)
    ask_base = False
    while True:
        name = name or _name(settings, questions)
        if name == "echo":
            if settings.model.name != "echo":
                _write(_Plan({("model", "name"): "echo"}), config, dry=given.dry_run)
            output.words("echo only repeats each message; run onboard again to set up a real model")
            return
        try:
            with questions.quiet():
                first_chat.check_provider(name)
            if not given.api_base:
                base = _address(settings, questions, name, base, again=ask_base)
            key = key or _key(settings, questions, name)
            changes = {"name": name, "api_base": base, "api_key": key}
            tried = _with_model(settings, changes)
            output.words("Testing the model …")
            with questions.quiet():
                output.words(first_chat.ask_model(tried))
        except GatewayError as error:
            if questions.yes:
                if first_chat.at_fault(error) == "key":
                    raise GatewayError(str(error), hint="pass another key with --key-file FILE") from error
                raise
            match first_chat.at_fault(error):
                case "key":
                    output.error(str(error), "paste the key again")
                    key = ""
                case "address" if base and not given.api_base:
                    output.error(str(error), "start the server, or correct its address")
                    ask_base = True
                case _:
                    output.error(str(error), "choose another model, or check the error above")
                    name, base, key = "", given.api_base or "", ""
            continue
        plan = _Plan()
        for part, value in (("name", name), ("api_base", base)):
            if value and value != getattr(settings.model, part):
                plan.values["model", part] = value
        if key:
            file = first_chat.secret_file(config, "model.api_key")
            plan.keep_secret(("model", "api_key"), key, file)
        _write(plan, config, dry=given.dry_run)
        return


def _name(settings: Settings, questions: Questions) -> str:
    """Ask for a model: a provider by its number and then its model, or the whole name."""
    known = settings.model.name if settings.model.name != "echo" else ""
    if not questions.yes:
        output.words(listed_providers())
    question = "number of a provider, LiteLLM model name, or echo"
    answer = questions.text(question, known or ("echo" if questions.yes else "1"))
    if answer == OTHER:
        return questions.text("LiteLLM model name (PROVIDER/MODEL)")
    provider = chosen_provider(answer)
    if provider is None:
        return answer
    return provider.model(questions.text(f"{provider.title} model", provider.example))


def _address(settings: Settings, questions: Questions, name: str, base: str, *, again: bool) -> str:
    """Ask where the server is, of a provider that is a server of one's own; else return ``base``."""
    provider = provider_of(name)
    own = base or settings.model.api_base
    if not again and (provider is None or not provider.api_base or (own and name == settings.model.name)):
        return base
    title = provider.title if provider is not None else "the server"
    return questions.text(f"address of {title}", own or (provider.api_base if provider else ""))


def _key(settings: Settings, questions: Questions, name: str) -> str:
    provider = provider_of(name)
    if questions.yes or (provider is not None and not provider.keyed):
        return ""
    kept = settings.model.api_key.get_secret_value()
    variable = f"${provider.prefix.upper()}_API_KEY" if provider is not None else "the environment"
    return questions.secret(f"API key (Enter to {'keep the stored one' if kept else f'use {variable}'})")


def _with_model(settings: Settings, changes: dict[str, str]) -> Settings:
    from pydantic import SecretStr, ValidationError

    fields = {
        name: SecretStr(value) if name == "api_key" else value for name, value in changes.items() if value
    }
    try:
        model = type(settings.model).model_validate(settings.model.model_dump() | fields)
    except ValidationError as error:
        fault = error.errors()[0]
        name, words = str(fault["loc"][-1]), fault["msg"].removeprefix("Value error, ")
        hint = f"pass another --{name.replace('_', '-')}" if name == "api_base" else "give another answer"
        raise GatewayError(f"model.{name}: {words}", hint=hint) from None
    return settings.model_copy(update={"model": model})


def _platform(given: _Given, settings: Settings, questions: Questions, config: Path) -> str:
    """Find a platform that takes its token, and write it down; return its name, or nothing."""
    from pydantic import SecretStr, ValidationError

    from gateway.cli import first_chat

    enabled = [name for name in PLATFORMS if getattr(settings.channels, name).enabled]
    name = given.platform or (enabled[0] if enabled else "")
    while not name:
        name = questions.text("platform (telegram, discord or none)", "none" if questions.yes else "telegram")
        if name not in (*PLATFORMS, "none"):
            output.error(f"unknown platform {name!r}", "answer telegram, discord or none")
            name = ""
    if name == "none":
        return ""
    table, token_given = getattr(settings.channels, name), _read(given.token_file)
    while True:
        token = token_given or ("" if name in enabled else questions.secret(f"bot token ({_WHERE[name]})"))
        if questions.yes and not (token or table.token.get_secret_value()):
            raise GatewayError(
                f"no bot token for {name}", hint="pass the file that contains it: --token-file FILE"
            )
        try:
            fields = {"enabled": True} | ({"token": SecretStr(token)} if token else {})
            tried = type(table).model_validate(table.model_dump() | fields)
            output.words("Testing the bot token …")
            with questions.quiet():
                output.words(f"{name}: logged in as {first_chat.ask_platform(name, tried)}")
        except (GatewayError, ValidationError) as error:
            shown = error if isinstance(error, GatewayError) else _bad_token()
            if questions.yes:
                raise shown from None
            output.error(str(shown), shown.hint)
            token_given, enabled = "", []
            continue
        plan = _Plan()
        if not table.enabled:
            plan.values["channels", name, "enabled"] = True
        if token:
            file = first_chat.secret_file(config, f"channels.{name}.token")
            plan.keep_secret(("channels", name, "token"), token, file)
        _write(plan, config, dry=given.dry_run)
        return name


def _bad_token() -> GatewayError:
    return GatewayError(
        "this is not a bot token: it contains spaces or special characters", hint="copy it again"
    )


def _port(given: _Given, settings: Settings, config: Path) -> None:
    """Take another port for the page where another program has the usual one: a second gateway, perhaps."""
    from gateway.app.daemons import DaemonRegistry
    from gateway.cli import first_chat

    if DaemonRegistry(settings.workspace).running():
        return
    port = first_chat.other_port(settings.http.host, settings.http.port)
    if port:
        output.words(f"port {settings.http.port} is taken by another program; the web console gets {port}")
        _write(_Plan({("http", "port"): port}), config, dry=given.dry_run)


def _unit(given: _Given, settings: Settings, questions: Questions, config: Path) -> None:
    folder: Path | None = given.unit
    if folder is None:
        if not questions.agreed("Write a systemd unit, so that it runs whenever you are logged in?"):
            return
        folder = systemd.USER_FOLDER
    unit = systemd.user_text(systemd.program(), config, settings.workspace)
    if given.dry_run:
        output.data(f"# {folder.expanduser() / systemd.USER_NAME}\n{unit}")
        return
    if not config.exists():
        # It names its configuration, and would not start without.
        _write_file(config, "# Every key with its default: docs/configuration.md\n")
    output.words(
        f"wrote {systemd.install_user(folder, unit, settings.workspace)}; "
        "load it with: systemctl --user daemon-reload"
    )
    output.words(
        "then start it: systemctl --user enable --now chat-gateway; loginctl enable-linger keeps it running"
    )
    if settings.model.name != "echo" and not settings.model.api_key.get_secret_value():
        output.words(
            f"the unit does not see this terminal's environment: put a key such as OPENAI_API_KEY=… into "
            f"{config.with_name('environment')}"
        )


def _first_answer(given: _Given, settings: Settings, questions: Questions, config: Path, name: str) -> int:
    from gateway.app.daemons import DaemonRegistry
    from gateway.cli import first_chat

    if not name or (given.yes and not given.owner):
        if not first_chat.restart_needed(settings, config):
            started = DaemonRegistry(settings.workspace).running()
            run = "" if started else f"{first_chat.program()} run, and in another terminal: "
            output.words(f"Next: {run}{first_chat.program()} chat")
        elif not first_chat.restarted(settings):
            output.words(f"The new settings take effect after a restart. {first_chat.restart_cure(settings)}")
        return 0
    if first_chat.restart_needed(settings, config) and not first_chat.restarted(settings):
        output.words(
            f"A gateway is running with the old settings. {first_chat.restart_cure(settings)}\n"
            "Waiting for the restart …"
        )
        with questions.quiet():
            first_chat.wait_for_restart(settings)
    chat = f"{name}:"
    ran = bool(DaemonRegistry(settings.workspace).running())
    with questions.quiet(), first_chat.gateway(config, settings):
        first_chat.until_up(settings, name)
        table = getattr(settings.channels, name)
        who = first_chat.paired(settings, name)
        if table.direct == "pairing" and not who:
            output.words(
                "Now write to the bot from your own account. (Ctrl-C exits; run onboard again to continue.)"
            )
            chat += first_chat.pair_owner(settings, name, questions, given.owner).chat
        elif who:
            output.words(f"{who} is already approved")
        output.words("Write to it once more: this message will be answered.")
        key, text = first_chat.first_answer(settings, chat)
    output.words(f"Answer in {key}: {text[:200]}")
    output.words("Done." if ran else f"Done. Start it with: {first_chat.program()} run")
    return 0


def _write(plan: _Plan, config: Path, *, dry: bool) -> None:
    """Write secrets, each for its owner alone, then the configuration: nothing names what is not there."""
    if not plan.values:
        return
    if dry:
        old = edit.read(config, MAX_BYTES).decode() if config.exists() else ""
        new = amended(old, plan.values, plan.gone)
        lines = difflib.unified_diff(
            old.splitlines(), new.splitlines(), str(config), str(config), lineterm=""
        )
        output.data("\n".join([*lines, *(f"# {file}: the secret, mode 0600" for file in plan.secrets)]))
        return
    for file, secret in plan.secrets.items():
        _write_file(file, f"{secret}\n", readers=_readers(config))
    amend(config, plan.values, plan.gone)
    output.words(f"wrote {', '.join('.'.join(path) for path in plan.values)} to {config}")


def _write_file(file: Path, text: str, *, readers: int | None = None) -> None:
    """Write a file whole, for its owner alone, or for a group that may read it, too."""
    try:
        durable.make_folder(file.parent)
        if readers is not None:
            os.chown(file.parent, -1, readers)
            file.parent.chmod(0o750)
        with durable.replacing(file, temp=file.with_name(f".{file.name}.tmp")) as fd:
            os.fchmod(fd, 0o600)
            if readers is not None:
                os.fchown(fd, -1, readers)
                os.fchmod(fd, 0o640)
            durable.write_all(fd, text.encode())
    except OSError as error:
        raise GatewayError(
            f"{file} cannot be written: {error.strerror}", hint="check the permissions of its folder"
        ) from error


def _readers(config: Path) -> int | None:
    """Say which group reads what root writes for a service: the one that reads its configuration."""
    if os.geteuid() != 0 or not config.exists():
        return None
    found = config.stat()
    return found.st_gid if found.st_gid != 0 and found.st_mode & stat.S_IRGRP else None


def _read(file: Path | None) -> str:
    if file is None:
        return ""
    from gateway.config.load import MAX_SECRET_BYTES

    return edit.read(file, MAX_SECRET_BYTES).decode("utf-8", "replace").strip()
