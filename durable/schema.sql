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

-- Lines of transcripts that are not yet known to be on disk in their file. A row is written in the commit that makes
-- its lines valid; then the lines are appended to the file without a sync. Every 30 s, or for 16 MB, the files are
-- synced and the rows deleted. After a crash a start brings each line of a row into its file that is not there.
-- A new file in the place of the old one, or none, takes the rows with it in its own commit.
CREATE TABLE file_ops (
    seq     INTEGER PRIMARY KEY,
    path    BLOB NOT NULL,      -- the file below the workspace, when the row was written
    at      INTEGER NOT NULL,   -- offset of the lines in it; 0: they begin with the header of a new file
    session TEXT NOT NULL,      -- ULID of the session: the lines of one that is no longer in the file are dropped
    data    BLOB NOT NULL       -- whole lines
);

-- What the gateway remembers of a session key beside its transcript: starts of turns, replies to commands, notices,
-- the number of replies. Loaded with the conversation.
CREATE TABLE journal (
    key   BLOB NOT NULL,        -- session key, UTF-8; a foreign one may hold lone surrogates
    n     INTEGER NOT NULL,     -- position among the entries of the key: an entry is never put twice
    entry BLOB NOT NULL,        -- JSON object, see session/transcript/journal.py
    PRIMARY KEY (key, n)
) WITHOUT ROWID;

-- What models cost: one row for each turn that ended, and one for each call that is no turn's own (memory, titles,
-- summaries, vectors). It is handed over right behind the turn's last lines and shares their commit, so it costs no
-- sync. Removed after 35 days. An erasure takes the names out of the rows of a chat or a person; the cost stays.
CREATE TABLE usage (
    at_ms         INTEGER NOT NULL,   -- when it ended
    n             INTEGER NOT NULL,   -- at random, for those of one millisecond
    turn          INTEGER NOT NULL,   -- 1: a turn; 0: another call
    key           TEXT NOT NULL,      -- session key; '-' once it was erased
    person        TEXT NOT NULL,      -- who asked: 'people/<name>' or a sender; '' for nobody
    job           TEXT NOT NULL,      -- id of the scheduled job that it was for; '' for none
    id            TEXT NOT NULL,      -- id of the message that was answered; '' for another call
    model         TEXT NOT NULL,
    prompt        INTEGER NOT NULL,   -- tokens, those of the two caches among them
    completion    INTEGER NOT NULL,
    cached        INTEGER NOT NULL,   -- read from the provider's cache
    cache_written INTEGER NOT NULL,
    unpriced      INTEGER NOT NULL,   -- tokens whose price nobody knows
    cost_nano     INTEGER NOT NULL,   -- billionths of a dollar, so that sums are exact
    PRIMARY KEY (at_ms, n)
) WITHOUT ROWID;

-- What is spent and reserved on a day (UTC), for each subject that may have a cap. Kept in the commits that change
-- `usage` and `reservations`, whether there is a cap or not. Before a request is made its highest cost is reserved by
-- one UPDATE that fails where it would go over the cap: no two processes overspend together.
CREATE TABLE totals (
    day             INTEGER NOT NULL,   -- days since 1970
    kind            TEXT NOT NULL,      -- 'day', 'chat', 'person' or 'job'
    who             TEXT NOT NULL,      -- '' for 'day'
    cost_nano       INTEGER NOT NULL,   -- spent, by turns that still run too
    tokens          INTEGER NOT NULL,
    reserved_nano   INTEGER NOT NULL,   -- what requests under way may cost at most
    reserved_tokens INTEGER NOT NULL,
    PRIMARY KEY (day, kind, who)
) WITHOUT ROWID;

-- The part in `totals` of a turn or call that has not ended. When its process dies, what it has reserved is free
-- again; what it has spent counts until the turn is done again and settles it.
CREATE TABLE reservations (
    key             TEXT NOT NULL,
    id              TEXT NOT NULL,      -- id of the message; of a call that is no turn's another one
    day             INTEGER NOT NULL,   -- whose totals have it; 0: settled, removed with the next day
    owner           INTEGER NOT NULL,   -- process id
    person          TEXT NOT NULL,
    job             TEXT NOT NULL,
    cost_nano       INTEGER NOT NULL,
    tokens          INTEGER NOT NULL,
    reserved_nano   INTEGER NOT NULL,
    reserved_tokens INTEGER NOT NULL,
    PRIMARY KEY (key, id)
) WITHOUT ROWID;

-- How many calls the background has begun, for its limits of an hour and of a day. Removed after a day.
CREATE TABLE background_calls (
    minute INTEGER PRIMARY KEY,   -- since 1970
    calls  INTEGER NOT NULL
);

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

-- =========================================== PostgreSQL alone ================================================
-- With `state.url` the tables of `state/gateway.db` are in a PostgreSQL database, where INTEGER is BIGINT and BLOB is
-- BYTEA, together with these (`durable/postgres.py`).

-- The server's clock.
CREATE FUNCTION now_ms() RETURNS BIGINT VOLATILE LANGUAGE sql
    AS 'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint';

-- As in SQLite, whether the second is part of the first.
CREATE FUNCTION instr(BYTEA, BYTEA) RETURNS BOOLEAN IMMUTABLE LANGUAGE sql AS 'SELECT position($2 IN $1) > 0';

-- The transactions of the last hour. A gateway that lost the answer to a commit looks here whether it happened.
CREATE TABLE guards (
    id    TEXT PRIMARY KEY,     -- ULID
    at_ms INTEGER NOT NULL
);

-- One row: which gateway writes. One that lost its connection, and finds another epoch, writes nothing any more.
CREATE TABLE state (
    version        INTEGER NOT NULL,    -- of the tables
    epoch          INTEGER NOT NULL,    -- raised by each gateway that takes the database over
    lives_until_ms INTEGER NOT NULL     -- renewed while it lives, by the server's clock; 0: it ended in good order
);

-- Gateways that wait to take the database over.
CREATE TABLE standbys (
    id             TEXT PRIMARY KEY,    -- a ULID for each start
    lives_until_ms INTEGER NOT NULL
);
