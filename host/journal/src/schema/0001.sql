-- Rows that are written once (requests, replies, next_states, verdicts, receipts) are apart from
-- the small rows whose state moves (sessions, turns, samples, adapters): SQLite rewrites a whole row on
-- update, and a prompt of 13,000 tokens must be written once.

CREATE TABLE sessions (
    id          TEXT PRIMARY KEY NOT NULL,
    origin      TEXT NOT NULL,
    key         TEXT,
    user        TEXT,
    started_ms  INTEGER NOT NULL,
    last_ms     INTEGER NOT NULL,
    ended_ms    INTEGER,
    end_reason  TEXT
) STRICT;
CREATE INDEX sessions_by_time ON sessions (last_ms);
CREATE INDEX sessions_open ON sessions (last_ms) WHERE ended_ms IS NULL;

CREATE TABLE requests (
    id          INTEGER PRIMARY KEY,
    session     TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    digest      TEXT NOT NULL,
    messages    TEXT NOT NULL,
    tools       TEXT NOT NULL,
    prompt_ids  BLOB NOT NULL
) STRICT;
CREATE INDEX requests_of_session ON requests (session);
CREATE INDEX requests_by_digest ON requests (digest);

CREATE TABLE turns (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    session         TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    seq             INTEGER NOT NULL,
    request         INTEGER NOT NULL REFERENCES requests (id) ON DELETE CASCADE,
    response_id     TEXT NOT NULL,
    choice          INTEGER NOT NULL,
    grp             TEXT NOT NULL,
    kind            TEXT NOT NULL CHECK (kind IN ('main', 'side', 'unknown')),
    parent          INTEGER REFERENCES turns (id) ON DELETE SET NULL,
    received_ms     INTEGER NOT NULL,
    key             TEXT,
    temperature     REAL NOT NULL,
    adapter_version INTEGER NOT NULL,
    adapter_digest  TEXT NOT NULL,
    model           TEXT NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('generating', 'complete', 'aborted', 'failed')),
    judging         TEXT NOT NULL CHECK (judging IN ('waiting', 'ready', 'done', 'skipped')),
    next_judged     INTEGER NOT NULL DEFAULT 0,
    reason          TEXT,
    sampling        TEXT NOT NULL,
    matched         TEXT NOT NULL,
    UNIQUE (session, seq)
) STRICT;
CREATE INDEX turns_of_request ON turns (request);
CREATE INDEX turns_of_response ON turns (response_id, choice);
CREATE INDEX turns_of_group ON turns (grp);
CREATE INDEX turns_of_parent ON turns (parent);
CREATE INDEX turns_by_state ON turns (state);
CREATE INDEX turns_by_judging ON turns (judging);
CREATE INDEX turns_skipped ON turns (reason) WHERE judging = 'skipped';

CREATE TABLE replies (
    turn            INTEGER PRIMARY KEY REFERENCES turns (id) ON DELETE CASCADE,
    ms              INTEGER NOT NULL,
    finish          TEXT NOT NULL CHECK (finish IN ('stop', 'length', 'tool_calls', 'aborted')),
    anchor          TEXT,
    body            TEXT NOT NULL,
    token_ids       BLOB NOT NULL,
    logprobs        BLOB NOT NULL,
    full_logprobs   BLOB NOT NULL
) STRICT;
CREATE INDEX replies_by_anchor ON replies (anchor) WHERE anchor IS NOT NULL;

CREATE TABLE next_states (
    turn        INTEGER PRIMARY KEY REFERENCES turns (id) ON DELETE CASCADE,
    ms          INTEGER NOT NULL,
    messages    TEXT NOT NULL
) STRICT;

CREATE TABLE feedback (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    turn        INTEGER NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
    score       REAL,
    text        TEXT,
    ms          INTEGER NOT NULL,
    judged      INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX feedback_of_turn ON feedback (turn, id, judged);

CREATE TABLE verdicts (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    turn        INTEGER NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
    source      TEXT NOT NULL,
    digest      TEXT,
    reward      REAL,
    accept      INTEGER,
    reason      TEXT,
    votes       TEXT NOT NULL,
    rationale   TEXT NOT NULL,
    metrics     TEXT NOT NULL,
    ms          INTEGER NOT NULL,
    CHECK ((reward IS NULL) = (accept IS NULL) AND (reward IS NULL) <> (reason IS NULL))
) STRICT;
CREATE INDEX verdicts_of_turn ON verdicts (turn);
CREATE INDEX verdicts_by_reason ON verdicts (reason);

CREATE TABLE receipts (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    turn        INTEGER NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
    body        TEXT NOT NULL,
    ms          INTEGER NOT NULL
) STRICT;
CREATE INDEX receipts_of_turn ON receipts (turn);

CREATE TABLE steps (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    started_ms      INTEGER NOT NULL,
    ended_ms        INTEGER NOT NULL,
    outcome         TEXT NOT NULL CHECK (outcome IN ('published', 'no_signal', 'failed')),
    reason          TEXT,
    metrics         TEXT NOT NULL,
    trained_count   INTEGER NOT NULL,
    dropped_count   INTEGER NOT NULL
) STRICT;

CREATE TABLE samples (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    turn            INTEGER NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
    reward          REAL NOT NULL,
    baseline_key    TEXT NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('queued', 'trained', 'dropped')),
    reason          TEXT,
    step            INTEGER REFERENCES steps (id),
    advantage       REAL,
    created_ms      INTEGER NOT NULL,
    provenance      TEXT NOT NULL
) STRICT;
CREATE INDEX samples_of_turn ON samples (turn);
CREATE INDEX samples_of_step ON samples (step);
CREATE INDEX samples_by_state ON samples (state);
CREATE INDEX samples_dropped ON samples (reason) WHERE state = 'dropped';
CREATE UNIQUE INDEX one_queued_sample ON samples (turn) WHERE state = 'queued';

CREATE TABLE adapters (
    version     INTEGER PRIMARY KEY NOT NULL,
    parent      INTEGER NOT NULL,
    digest      TEXT NOT NULL,
    path        TEXT NOT NULL,
    provenance  TEXT NOT NULL,
    created_ms  INTEGER NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('active', 'retired', 'candidate')),
    step        INTEGER REFERENCES steps (id)
) STRICT;
CREATE INDEX adapters_of_step ON adapters (step);
CREATE INDEX adapters_of_parent ON adapters (parent);
CREATE UNIQUE INDEX one_active_adapter ON adapters (state) WHERE state = 'active';

CREATE TABLE meta (
    key     TEXT PRIMARY KEY NOT NULL,
    value   TEXT NOT NULL
) STRICT;

CREATE TABLE forgotten (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    session     TEXT NOT NULL,
    ms          INTEGER NOT NULL,
    dropped     TEXT NOT NULL
) STRICT;
