"""What must survive a crash, written once: files, folders, locks, small states, a database in batches.

``BoundedDict``, ``first_of``, ``is_blank``, ``plain_value`` and ``whole_text`` lie here because all packages
use them and this one imports none.
"""

from durable.append import append_whole, begin_sync
from durable.aside import replace, replace_below, replacing, settle
from durable.beside import beside_file, sweep
from durable.bounded_dict import BoundedDict
from durable.channels_database import (
    CHANNELS_FILE,
    ChannelsDatabase,
    open_channels,
    reading_channels,
)
from durable.clock import (
    World,
    choose,
    monotonic,
    new_id,
    now,
    pause,
    random_below,
    token_hex,
    token_urlsafe,
    uniform,
    use_world,
    wall_ns,
    wall_s,
)
from durable.database import Database, Job, Schema, copy_database, in_memory, reading, settle_copy
from durable.errors import (
    Damaged,
    EarlierVersion,
    HintedError,
    LockHeld,
    NewerVersion,
    StateUnavailable,
    causes,
)
from durable.files import discard, new_file, open_private, touch, write_all, write_lines
from durable.folders import make_below, make_folder, make_private, opened_below, sync_folder
from durable.group_commit import Asked, GroupCommit
from durable.locks import is_at, is_free, locked, take_lock, try_lock, unlock
from durable.owner import Owner, keep_owner, like, owner_of
from durable.plain import is_blank, plain_value, whole_text
from durable.processes import NOTHING, PIPE, spawn, spawn_async
from durable.snapshot import snapshot
from durable.state import check_version, decode_state
from durable.state_database import (
    STATE_FILE,
    STATE_LOCK,
    STATE_VERSION,
    Append,
    Change,
    Commit,
    Conflict,
    FileChange,
    Put,
    Remove,
    Seen,
    StateDatabase,
    Unflushed,
    look,
    state_schema,
)
from durable.state_line import Changed, RemoteState, connect, listening, serve
from durable.state_writer import OpenableState, State, StateWriter, state_of, use_state, use_url
from durable.sync_times import SYNC_BOUNDS_S, sync_counts, sync_data, sync_file, timed_sync
from durable.waits import first_of

__all__ = [
    "CHANNELS_FILE",
    "NOTHING",
    "PIPE",
    "STATE_FILE",
    "STATE_LOCK",
    "STATE_VERSION",
    "SYNC_BOUNDS_S",
    "Append",
    "Asked",
    "BoundedDict",
    "Change",
    "Changed",
    "ChannelsDatabase",
    "Commit",
    "Conflict",
    "Damaged",
    "Database",
    "EarlierVersion",
    "FileChange",
    "GroupCommit",
    "HintedError",
    "Job",
    "LockHeld",
    "NewerVersion",
    "OpenableState",
    "Owner",
    "Put",
    "RemoteState",
    "Remove",
    "Schema",
    "Seen",
    "State",
    "StateDatabase",
    "StateUnavailable",
    "StateWriter",
    "Unflushed",
    "World",
    "append_whole",
    "begin_sync",
    "beside_file",
    "causes",
    "check_version",
    "choose",
    "connect",
    "copy_database",
    "decode_state",
    "discard",
    "first_of",
    "in_memory",
    "is_at",
    "is_blank",
    "is_free",
    "keep_owner",
    "like",
    "listening",
    "locked",
    "look",
    "make_below",
    "make_folder",
    "make_private",
    "monotonic",
    "new_file",
    "new_id",
    "now",
    "open_channels",
    "open_private",
    "opened_below",
    "owner_of",
    "pause",
    "plain_value",
    "random_below",
    "reading",
    "reading_channels",
    "replace",
    "replace_below",
    "replacing",
    "serve",
    "settle",
    "settle_copy",
    "snapshot",
    "spawn",
    "spawn_async",
    "state_of",
    "state_schema",
    "sweep",
    "sync_counts",
    "sync_data",
    "sync_file",
    "sync_folder",
    "take_lock",
    "timed_sync",
    "token_hex",
    "token_urlsafe",
    "touch",
    "try_lock",
    "uniform",
    "unlock",
    "use_state",
    "use_url",
    "use_world",
    "wall_ns",
    "wall_s",
    "whole_text",
    "write_all",
    "write_lines",
]
