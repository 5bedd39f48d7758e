-- A sample may have no reward: then only what its hints say can teach, and nothing takes it for a zero. SQLite cannot
-- take a NOT NULL away, so the table is built anew. Ids that were given out stay given out, also those of samples that
-- were forgotten since.
CREATE TABLE all_samples (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    turn            INTEGER NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
    reward          REAL,
    baseline_key    TEXT NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('queued', 'trained', 'dropped')),
    reason          TEXT,
    step            INTEGER REFERENCES steps (id),
    advantage       REAL,
    created_ms      INTEGER NOT NULL,
    provenance      TEXT NOT NULL
) STRICT;
INSERT INTO all_samples (id, turn, reward, baseline_key, state, reason, step, advantage, created_ms, provenance)
    SELECT id, turn, reward, baseline_key, state, reason, step, advantage, created_ms, provenance FROM samples;
DELETE FROM sqlite_sequence WHERE name = 'all_samples';
INSERT INTO sqlite_sequence (name, seq) SELECT 'all_samples', seq FROM sqlite_sequence WHERE name = 'samples';
DROP TABLE samples;
ALTER TABLE all_samples RENAME TO samples;
CREATE INDEX samples_of_turn ON samples (turn);
CREATE INDEX samples_of_step ON samples (step);
CREATE INDEX samples_by_state ON samples (state);
CREATE INDEX samples_dropped ON samples (reason) WHERE state = 'dropped';
CREATE INDEX samples_by_hint ON samples (state) WHERE reward IS NULL;
CREATE UNIQUE INDEX one_queued_sample ON samples (turn) WHERE state = 'queued';

-- What the chat template was rendered with beside messages and tools (`enable_thinking`, …), so that the same prompt
-- can be rendered again with a hint in it. Of what came before it is not known; it was nothing in most cases.
ALTER TABLE requests ADD COLUMN template TEXT NOT NULL DEFAULT '{}';
