"""What must survive a crash, written once: files, folders, locks, small states, a database in batches."""

from durable.append import append_whole, begin_sync
from durable.aside import replace, replace_below, replacing, settle
from durable.beside import sweep
from durable.database import Database, Job, Schema
from durable.errors import Damaged, HintedError, LockHeld, NewerVersion
from durable.files import discard, new_file, open_private, touch, write_all, write_lines
from durable.folders import make_below, make_folder, make_private, sync_folder
from durable.group_commit import Asked, GroupCommit
from durable.locks import locked, take_lock, try_lock, unlock
from durable.owner import Owner, keep_owner, like, owner_of
from durable.state import check_version, decode_state

__all__ = [
    "Asked",
    "Damaged",
    "Database",
    "GroupCommit",
    "HintedError",
    "Job",
    "LockHeld",
    "NewerVersion",
    "Owner",
    "Schema",
    "append_whole",
    "begin_sync",
    "check_version",
    "decode_state",
    "discard",
    "keep_owner",
    "like",
    "locked",
    "make_below",
    "make_folder",
    "make_private",
    "new_file",
    "open_private",
    "owner_of",
    "replace",
    "replace_below",
    "replacing",
    "settle",
    "sweep",
    "sync_folder",
    "take_lock",
    "touch",
    "try_lock",
    "unlock",
    "write_all",
    "write_lines",
]
