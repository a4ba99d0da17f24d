-- The state database of a workspace: what the gateway needs and nobody is meant to read.
--
-- One file, `state/gateway.db`. One process opens it: the gateway that holds `state/lock`. It has one connection
-- and one writing thread, so no statement ever waits for another process and the file needs no shared memory.
-- All work of one pass of the event loop is one transaction with one sync (`durable/group_commit.py`). What a
-- commit reported survives a power cut; what it did not report is not in the file.
--
-- Conventions. Times are milliseconds since 1970, UTC, in columns that end in `_ms`. A `seq` is the order in which
-- rows were accepted, and no number is given out twice while a row above it exists. Each index beside a primary key
-- names the query it is for. A change of this file after release 0.1.0 is a numbered migration.

-- Messages that wait, or are being worked on. A row is removed in the transaction that stores what its message ended
-- in: no message is lost between the two.
CREATE TABLE queue (
    seq     INTEGER PRIMARY KEY,
    name    TEXT NOT NULL,      -- 'inbound' or 'outbound.<channel>'
    key     TEXT NOT NULL,      -- session key: rows of one key are handed out in the order of seq
    id      TEXT NOT NULL,      -- message id; empty for a foreign message that has none
    body    BLOB NOT NULL,      -- JSON
    headers BLOB,               -- JSON object with the trace context of the sender; NULL for none
    put_ms  INTEGER NOT NULL
);
-- A message that is published twice while the first one waits is stored once.
CREATE UNIQUE INDEX queue_once ON queue (name, key, id) WHERE id <> '';
-- The next rows of one queue.
CREATE INDEX queue_in_order ON queue (name, seq);

-- Messages that no further try can answer, until a person retries or drops them.
CREATE TABLE parked (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    id        TEXT NOT NULL,    -- message id, else a ULID given when it was parked
    name      TEXT NOT NULL,    -- the queue that a retry puts it back into
    key       TEXT,             -- session key, where the message could be read as far as that
    line      TEXT NOT NULL,    -- the key under which it waited in the queue
    reason    TEXT NOT NULL,
    origin    TEXT NOT NULL,    -- the queue that it was parked from
    attempts  INTEGER NOT NULL,
    parked_ms INTEGER NOT NULL,
    body      BLOB NOT NULL
);
-- `parked retry ID`.
CREATE INDEX parked_by_id ON parked (id);


-- ============================================= state/channels.db =============================================
-- The database of the channels side: what adapters have to know while no session runs.
--
-- One file, `state/channels.db`. Any process of the workspace may open it: the one that runs an adapter, the gateway,
-- a command. Whoever writes locks the file `state/channels.lock` from BEGIN IMMEDIATE to COMMIT and for every
-- checkpoint (`durable/channels_database.py`), so no checkpoint ever runs beside another process's commit. Readers
-- take no lock. An adapter commits in groups, like the gateway. The conventions above hold here, too.

-- The send log has two tables: `sends` and `chunks`. A message to a platform is sent as one or more chunks. Each one
-- is recorded before the call to the platform and after it, so that a restart sends only the missing ones.

-- A message that was delivered, or that has a live preview. One that is under way without a preview has only chunks.
-- Removed a week after `done_ms`; a preview without an answer after 30 days.
CREATE TABLE sends (
    key        TEXT NOT NULL,   -- session key
    id         TEXT NOT NULL,   -- message id of what is sent: '<inbound id>#reply', '<inbound id>#notice.…'
    queued_ms  INTEGER,         -- when it was put into its queue; NULL where nothing says so
    done_ms    INTEGER,         -- when the platform accepted the last chunk; NULL: not yet
    preview    TEXT,            -- the platform's id of its live preview; '': being sent, outcome unknown; NULL: none
    preview_ms INTEGER,
    PRIMARY KEY (key, id)
) WITHOUT ROWID;
-- Removal of the oldest.
CREATE INDEX sends_by_age ON sends (done_ms) WHERE done_ms IS NOT NULL;

-- Removed together with a delivered message, else after 30 days.
CREATE TABLE chunks (
    key         TEXT NOT NULL,
    id          TEXT NOT NULL,
    number      INTEGER NOT NULL,   -- 0, 1, …: the same chunk of the same message whenever it is sent again
    unknown     INTEGER NOT NULL,   -- how many calls were begun whose outcome was not recorded
    platform_id TEXT,               -- what the platform accepted it as; NULL: not accepted, or nobody knows
    at_ms       INTEGER NOT NULL,   -- last change
    PRIMARY KEY (key, id, number)
) WITHOUT ROWID;

-- Chats that continue under another id, such as a Telegram group that became a supergroup. At most 10,000 a channel.
CREATE TABLE moved_chats (
    channel TEXT NOT NULL,
    old     TEXT NOT NULL,
    new     TEXT NOT NULL,
    at_ms   INTEGER NOT NULL,
    PRIMARY KEY (channel, old)
) WITHOUT ROWID;

-- Strangers and groups that asked for access, and those that the operator let in (`chat-gateway pairing`).
CREATE TABLE access (
    channel TEXT NOT NULL,
    kind    TEXT NOT NULL,   -- 'person' or 'group'
    id      TEXT NOT NULL,   -- the id on the platform
    name    TEXT NOT NULL,
    code    TEXT NOT NULL,   -- waits for approval, for an hour; '': let in
    chat    TEXT NOT NULL,   -- the chat in which it was asked for
    greet   TEXT NOT NULL,   -- id of the message that says there that it was granted, until that is queued; else ''
    at_ms   INTEGER NOT NULL,
    PRIMARY KEY (channel, kind, id)
) WITHOUT ROWID;

-- Who was told a code, for a day: everyone is answered once a day.
CREATE TABLE access_answers (
    channel    TEXT NOT NULL,
    kind       TEXT NOT NULL,
    id         TEXT NOT NULL,
    code       TEXT NOT NULL,   -- '': it gave way to the code of somebody else
    message_id TEXT NOT NULL,   -- the message that was answered; if it is received again, it gets the same code
    at_ms      INTEGER NOT NULL,
    PRIMARY KEY (channel, kind, id)
) WITHOUT ROWID;

-- The accounts that ran here as bots. What was written before the first start is not answered.
CREATE TABLE bots (
    channel        TEXT NOT NULL,
    bot            TEXT NOT NULL,   -- its id on the platform
    first_start_ms INTEGER NOT NULL,
    swept_ms       INTEGER,         -- Discord: all that was written before was received; NULL: no sweep has ended
    PRIMARY KEY (channel, bot)
) WITHOUT ROWID;

-- How far a bot has read each channel of Discord. A cursor may be behind, and never ahead of what was accepted.
CREATE TABLE cursors (
    bot     TEXT NOT NULL,
    chat    TEXT NOT NULL,      -- a channel, a thread or a direct channel
    read_to INTEGER NOT NULL,   -- id of a message
    person  TEXT,               -- whose direct channel it is; NULL: it is none
    PRIMARY KEY (bot, chat)
) WITHOUT ROWID;

-- What the adapter of a channel says of itself, for the other processes.
CREATE TABLE adapters (
    channel  TEXT PRIMARY KEY,
    menu     TEXT,   -- digest of the menu of commands that the platform was shown last; NULL: none
    standing TEXT    -- JSON object: up, since, error, last_round_trip; current while the adapter's lease is held
) WITHOUT ROWID;

-- For how long a platform wants no call (Retry-After); what was sent within the last minute stands in `chunks`.
CREATE TABLE pauses (
    channel TEXT NOT NULL,
    chat    TEXT NOT NULL,      -- '': every chat
    at_ms   INTEGER NOT NULL,   -- when the platform asked for it
    for_s   REAL NOT NULL,
    PRIMARY KEY (channel, chat)
) WITHOUT ROWID;

-- The channels to which replies went: RabbitMQ does not say which queues it has.
CREATE TABLE replied (
    channel TEXT PRIMARY KEY
) WITHOUT ROWID;
