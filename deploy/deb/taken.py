"""Takes the packages of a lock out of an environment that has them: ``taken.py LOCK SITE_PACKAGES TARGET``.

For a build without a network, or a quick one: what is installed is what was locked, or it stops.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

READABLE = 0o444


def main(lock: Path, source: Path, target: Path) -> None:
    """Link each package's files, or copy them where that cannot be: everybody may read them then."""
    for line in re.findall(r"^[A-Za-z0-9].*==.*", lock.read_text(), re.MULTILINE):
        locked = Requirement(line.removesuffix("\\"))
        if locked.marker is not None and not locked.marker.evaluate():
            continue
        name, version = locked.name, str(locked.specifier).removeprefix("==")
        found = next(iter(metadata.distributions(name=name, path=[str(source)])), None)
        if found is None or found.version != version:
            sys.exit(f"{source} has no {name} {version}")
        for file in found.files or ():
            path = Path(str(found.locate_file(file)))
            # Programs lie beside the packages, and are of no use here.
            if ".." in file.parts or not path.exists():
                continue
            place = target / file
            place.parent.mkdir(parents=True, exist_ok=True)
            _take(path, place)


def _take(path: Path, place: Path) -> None:
    if path.stat().st_mode & READABLE == READABLE:
        with contextlib.suppress(OSError):
            os.link(path, place)
            return
    shutil.copy2(path, place)
    place.chmod(place.stat().st_mode | READABLE)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
