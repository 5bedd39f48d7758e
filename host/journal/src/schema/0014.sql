-- The environments that a server runs, each with the number of its round in progress. While a round is open, its samples are
-- not offered to a training step, because groups of episodes are compared as a whole.
CREATE TABLE environments (
    name    TEXT PRIMARY KEY NOT NULL,
    round   INTEGER NOT NULL,
    open    INTEGER NOT NULL
) STRICT;

-- The episodes of those rounds. An episode that was running when its process ended is run again.
CREATE TABLE episodes (
    session     TEXT PRIMARY KEY NOT NULL,
    environment TEXT NOT NULL REFERENCES environments (name),
    round       INTEGER NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('running', 'done', 'failed')),
    -- Of a failed one: why it has no verdict.
    reason      TEXT,
    -- Of a done one.
    reward      REAL,
    started_ms  INTEGER NOT NULL,
    ended_ms    INTEGER
) STRICT;
CREATE INDEX episodes_of_round ON episodes (environment, round);
CREATE INDEX episodes_by_end ON episodes (environment, ended_ms);
