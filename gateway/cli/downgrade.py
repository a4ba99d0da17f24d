"""``downgrade``: the workspace as the version before knows it."""

from __future__ import annotations

import argparse

from gateway.app.daemons import others
from gateway.cli import output
from gateway.cli.config import settings_of
from gateway.errors import GatewayError
from gateway.form.downgrade import Downgrade
from gateway.form.downgrade import downgrade as go_back


def downgrade(args: argparse.Namespace) -> int:
    """Go one form back and say what that means for what came since."""
    workspace = settings_of(args, any_form=True).workspace
    try:
        done = go_back(workspace, beside=lambda: others(workspace), dry_run=args.dry_run)
    except OSError as error:
        name = error.filename or workspace
        raise GatewayError(
            f"{name}: {error.strerror or error}", hint="check the disk, then run this again"
        ) from error
    if args.json:
        output.document(_document(done, dry_run=args.dry_run))
        return 0
    verb = "would go" if args.dry_run else "went"
    output.words(f"the workspace {verb} from format {done.form} to {done.copy.form}")
    output.words(f"as of {done.copy.made_at:%Y-%m-%d %H:%M:%S %Z}, from {done.copy.name}:")
    for name in done.restored:
        output.words(f"  restored: {name}")
    for name in done.removed:
        output.words(f"  removed: {name}, which did not exist then")
    if not done.restored and not done.removed:
        output.words("  all files are the same")
    if done.aside is not None and done.aside.files:
        output.words(f"the replaced files are in {done.aside.name}")
    if done.since:
        output.words("added since then:")
    output.rows([_row(done, index) for index in range(len(done.since))], ("kind", "files", "then"))
    if not args.dry_run:
        output.words("now install the previous version; starting this one again repeats the upgrade")
    return 0


def _row(done: Downgrade, index: int) -> dict[str, object]:
    since = done.since[index]
    return {"kind": since.kind, "files": since.files, "then": since.then}


def _document(done: Downgrade, *, dry_run: bool) -> dict[str, object]:
    return {
        "from": done.form,
        "to": done.copy.form,
        "dry_run": dry_run,
        "copy": done.copy.name,
        "copied_at": done.copy.made_at.isoformat(),
        "put_back": list(done.restored),
        "removed": list(done.removed),
        "put_aside": done.aside.name if done.aside is not None and done.aside.files else None,
        "since": [_row(done, index) for index in range(len(done.since))],
    }
