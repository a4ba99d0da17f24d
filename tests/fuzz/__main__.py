"""``python -m tests.fuzz``: searches each target for inputs that crash or hang it, and keeps them."""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.targets import MODULES, Target, target_of

MEMORY_MB = 3000
ROOT = Path(__file__).resolve().parent.parent.parent


def main() -> int:
    """Run what the command line says; 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--target", action="append", choices=sorted(MODULES), help="only this target; may be repeated"
    )
    parser.add_argument(
        "--seconds", type=int, default=600, help="duration of each search (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of an earlier search; 0: a new one")
    parser.add_argument("--input", type=Path, help="replay this file instead of searching")
    args = parser.parse_args()
    targets = [target_of(name) for name in args.target or MODULES]
    if args.input is not None:
        return _replay(targets[0], args.input)
    seed = args.seed or random.SystemRandom().randrange(1, 2**31)
    found = [target.name for target in targets if not _search(target, args.seconds, seed)]
    print(f"failures in: {', '.join(found)}" if found else "no failures")
    return 1 if found else 0


def _replay(target: Target, file: Path) -> int:
    with target.opened() as once:
        faulthandler.dump_traceback_later(target.limit_s, exit=True)
        once(file.read_bytes())
        faulthandler.cancel_dump_traceback_later()
    print(f"{target.name}: {file} passes")
    return 0


def _search(target: Target, seconds: int, seed: int) -> bool:
    """Search for so long; say whether nothing was found."""
    print(
        f"── {target.name}: {seconds} s, replay with: make fuzz TARGET={target.name} SEED={seed}", flush=True
    )
    target.corpus.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        grown, finds = Path(name, "grown"), Path(name, "finds")
        for folder in (grown, finds):
            folder.mkdir()
        options = {
            "timeout": target.limit_s,
            "seed": seed,
            "max_len": target.max_bytes,
            "rss_limit_mb": MEMORY_MB,
            "verbosity": 0,
        }
        done = subprocess.run(
            [
                *(sys.executable, "-m", "tests.fuzz.engine", target.name, str(seconds), str(finds)),
                *(f"-{key}={value}" for key, value in options.items()),
                f"-artifact_prefix={finds}/",
                *(str(grown), str(target.corpus)),
            ],
            cwd=ROOT,
            check=False,
        )
        for find in sorted(finds.iterdir()):
            _keep(target, find)
    return done.returncode == 0


def _keep(target: Target, find: Path) -> None:
    """Add what was found to the corpus, and say how it is replayed."""
    kind = find.name.partition("-")[0]
    kept = target.corpus / f"{kind}-{hashlib.sha256(find.read_bytes()).hexdigest()[:12]}"
    kept.write_bytes(find.read_bytes())
    print(f"replay: make fuzz TARGET={target.name} INPUT={kept.relative_to(ROOT)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
