"""Takes each sync out of the product in turn, and looks who notices: ``python -m tests.disk.mutants``.

A mutant is a module in which one line does nothing. ``promises.py`` and ``test_mounted.py`` are asked.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.disk.mount import ROOT, why_not
from tests.mutants import finder

PACKAGES = ("durable", "session", "channels", "gateway")
# A line that syncs and does nothing else. The definition of ``sync_folder`` is left to its callers.
SYNC = re.compile(
    r"^ +((durable\.)?(sync_folder|sync_file|sync_data|sync_or_cut)|os\.(fsync|fdatasync|sync))\("
    r"|^ +settle_files\("
)
PRAGMA = 'execute("PRAGMA synchronous=FULL")'
# What is measured or copied for a look, and not kept.
NOT_KEPT = ("gateway/doctor/machine.py",)
# Not to be seen here, each for a reason; by the file and what stands in the line.
EXCUSED = {
    ("durable/folders.py", "sync_folder(path)"): "only below a parent that we may not read, which root may",
    ("gateway/backup/restoring.py", "os.sync()"): "a kernel does not tell a FUSE file system of it",
    ("gateway/backup/restoring.py", "sync_folder(workspace.parent)"): "as what it names is not synced here",
    ("session/store/writer.py", "sync_folder(copy.parent)"): "keeps an order: a cut before a rename",
}


@dataclass(frozen=True)
class Site:
    path: str
    number: int
    line: str

    def has(self, path: str, text: str) -> bool:
        return self.path == path and self.line.strip().endswith(text)

    def __str__(self) -> str:
        return f"{self.path}:{self.number} {self.line.strip()}"


def sites() -> list[Site]:
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if name not in NOT_KEPT and (SYNC.match(line) or PRAGMA in line):
                    found.append(Site(name, number, line))
    return found


def without(site: Site) -> str:
    lines = (ROOT / site.path).read_text().splitlines()
    indent = site.line[: len(site.line) - len(site.line.lstrip())]
    lines[site.number - 1] = site.line.replace("FULL", "OFF") if PRAGMA in site.line else f"{indent}pass"
    return "\n".join(lines) + "\n"


def noticed(site: Site | None) -> str:
    """Say who notices that a sync is missing, or that something is though none is; empty: nobody."""
    runs = {
        "promises": [sys.executable, "-m", "tests.disk.promises"],
        "test_mounted": [sys.executable, "-m", "pytest", "-q", "tests/disk/test_mounted.py"],
    }
    with tempfile.TemporaryDirectory(prefix="chat-gateway-mutant-") as folder:
        env = finder.for_processes(Path(folder), site.path, without(site)) if site else None
        for name, words in runs.items():
            done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, timeout=600, check=False)
            if done.returncode:
                told = done.stdout.decode().splitlines() or done.stderr.decode().splitlines()
                return f"{name}: " + next((one for one in told if one.startswith("E  ")), told[-1])
    return ""


def main() -> int:
    """Try each mutant; 1 where nobody noticed one, 2 where nothing can be said."""
    parser = argparse.ArgumentParser(prog="mutants")
    parser.add_argument("--only", default="", help="those whose line holds this")
    given = parser.parse_args()
    if why := why_not():
        print(f"mutants of the syncs: not run: {why}")
        return 2
    all_sites = [site for site in sites() if given.only in str(site)]
    # What fails without a fault would notice every one.
    if by := noticed(None):
        print(f"mutants of the syncs: refused: with all syncs in place {by}")
        return 2
    unseen: list[Site] = []
    excused: list[Site] = []
    for site in all_sites:
        began = time.monotonic()
        by = noticed(site)
        if not by:
            by = next(
                (f"excused: {why}" for (path, text), why in EXCUSED.items() if site.has(path, text)), ""
            )
            (excused if by else unseen).append(site)
        print(f"  {site}: {by or 'NOT NOTICED'} ({time.monotonic() - began:.0f} s)", flush=True)
    noticed_count = len(all_sites) - len(unseen) - len(excused)
    print(f"{noticed_count} of {len(all_sites)} noticed, {len(excused)} excused, {len(unseen)} not")
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
