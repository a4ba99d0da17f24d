"""Other programs to measure against and to be read by, each in a virtual environment of its own.

Made at first use with pip under ``.venv/peers/<name>-<hash of its pins>`` and kept there; another pin makes
another folder. A peer is never a dependency of the product.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = ROOT / ".venv" / "peers"
SCRIPT = Path(__file__).with_name("nanobot_peer.py")
_INSTALL_S = 600
# How long a test may take: both steps of an installation, its own or that it waits for.
FIRST_USE_S = 2 * _INSTALL_S + 180


class PeerMissing(Exception):
    """A peer could not be installed; the text says what pip said and what to do."""


@dataclass(frozen=True)
class Peer:
    """A program at one version. ``alone`` is installed without its dependencies, ``needs`` with theirs."""

    name: str
    alone: tuple[str, ...]
    needs: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Where its environment lies: a new pin or another Python makes a new folder."""
        text = " ".join((*self.alone, *self.needs, sys.version))
        return CACHE / f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


# Only what their modules import that are used here: the classes are theirs, the chat platforms stay out.
NANOBOT_014 = Peer("nanobot-0.1.4.post3", ("nanobot-ai==0.1.4.post3",), ("loguru==0.7.3", "croniter==6.0.0"))
NANOBOT_022 = Peer(
    "nanobot-0.2.2",
    ("nanobot-ai==0.2.2",),
    (
        "croniter==6.0.0",
        "filelock==3.32.7",
        "loguru==0.7.3",
        "pydantic==2.14.3",
        "pydantic-settings==2.16.3",
        "tiktoken==0.14.0",
    ),
)
NANOBOT_014_LOOP = Peer(
    "nanobot-0.1.4.post3-loop",
    ("nanobot-ai==0.1.4.post3",),
    (
        "httpx==0.28.1",
        "json-repair==0.64.5",
        "litellm==1.106.2",
        "loguru==0.7.3",
        "oauth-cli-kit==0.1.6",
        "pydantic==2.14.3",
        "pydantic-settings==2.16.3",
    ),
)

# Its own start brings hundreds of packages: they are what it is.
NANOBOT_035_LOOP = Peer("nanobot-0.3.5-loop", (), ("nanobot-ai==0.3.5",))
FASTSTREAM = Peer("faststream-0.7.8", (), ("aio-pika==10.2.1", "faststream[rabbit]==0.7.8", "uvloop==0.23.0"))
DBOS = Peer("dbos-3.4.0", (), ("dbos==3.4.0", "uvloop==0.23.0"))


def _tokenizers() -> Path:
    """The tables of tiktoken that LiteLLM brings, found without importing it."""
    found = importlib.util.find_spec("litellm")
    assert found is not None and found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "litellm_core_utils" / "tokenizers"


def python(peer: Peer) -> Path:
    """Return the interpreter of a peer's environment, which is made first where there is none.

    Raises:
        PeerMissing: pip could not install it.
    """
    found = peer.folder / "bin" / "python"
    if found.exists():
        return found
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{peer.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            _make(peer)
    return found


def _make(peer: Peer) -> None:
    building = peer.folder.with_name(peer.folder.name + ".building")
    shutil.rmtree(building, ignore_errors=True)
    venv.create(building, symlinks=True, with_pip=False)
    _pip(peer, building, *peer.needs)
    if peer.alone:
        _pip(peer, building, "--no-deps", *peer.alone)
    building.rename(peer.folder)


def _pip(peer: Peer, folder: Path, *what: str) -> None:
    target = ["--python", str(folder / "bin" / "python"), "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", *target, "install", "--prefer-binary", *what]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise PeerMissing(f"{peer.name}: pip took over {_INSTALL_S} s; run this again") from None
    if done.returncode:
        said = "\n".join(line for line in done.stderr.splitlines() if "ERROR" in line) or done.stderr
        raise PeerMissing(
            f"{peer.name} is needed here and cannot be installed:\n{said[-2000:]}\n"
            f"see whether `{' '.join(command)}` works, then run this again"
        )


def ask(peer: Peer, home: Path, *, timeout_s: float = 120, **request: Any) -> Any:
    """Have a nanobot of that version do one thing (see ``nanobot_peer.py``) and return its JSON answer.

    Args:
        peer: which one.
        home: a folder that it takes for the home of its user, so that it finds nothing of ours.
        timeout_s: after which it is killed.
        request: ``do`` and its arguments; paths as strings.
    """
    done = subprocess.run(
        [python(peer), SCRIPT],
        input=json.dumps(request),
        env=_environment(home),
        cwd=home,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=timeout_s,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"{peer.name} failed at {request.get('do')}:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout)


def start(peer: Peer, home: Path) -> subprocess.Popen[bytes]:
    """Start a nanobot as ``ask`` does, for a test that ends it: its request is still to be written to it."""
    quiet = subprocess.DEVNULL
    command = [python(peer), SCRIPT]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, env=_environment(home), cwd=home
    )


def _environment(home: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
        # Newer ones count tokens, and would fetch the table for it again and again where no network is.
        "TIKTOKEN_CACHE_DIR": str(_tokenizers()),
    }
