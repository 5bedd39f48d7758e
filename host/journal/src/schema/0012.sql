-- Experience: what the hints of a key's turns say, once each. The text of an entry is that of its oldest hint, unless it
-- was edited, so deleting conversations also deletes what only they said. A forgotten entry has no sources and no text.
CREATE TABLE experience (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    key         TEXT,
    edited      TEXT,
    state       TEXT NOT NULL CHECK (state IN ('active', 'retired', 'forgotten')),
    reason      TEXT,
    created_ms  INTEGER NOT NULL,
    last_ms     INTEGER NOT NULL
) STRICT;
CREATE INDEX experience_of_key ON experience (COALESCE(key, ''), state);

CREATE TABLE experience_sources (
    entry   INTEGER NOT NULL REFERENCES experience (id) ON DELETE CASCADE,
    turn    INTEGER NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
    hint    INTEGER NOT NULL REFERENCES hints (id) ON DELETE CASCADE,
    PRIMARY KEY (entry, turn)
) STRICT, WITHOUT ROWID;
CREATE INDEX experience_sources_of_turn ON experience_sources (turn);
CREATE INDEX experience_sources_of_hint ON experience_sources (hint);

-- Divergences of the policy, without an entry in its prompt, from the teacher with it; one for each time that a turn was
-- distilled.
CREATE TABLE experience_gaps (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    entry   INTEGER NOT NULL REFERENCES experience (id) ON DELETE CASCADE,
    turn    INTEGER NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
    step    INTEGER NOT NULL REFERENCES steps (id),
    gap     REAL NOT NULL,
    ms      INTEGER NOT NULL
) STRICT;
CREATE INDEX experience_gaps_of_entry ON experience_gaps (entry, id);
CREATE INDEX experience_gaps_of_turn ON experience_gaps (turn);

-- The experience that was part of the prompt: its text and the ids of its entries. NULL: none was.
ALTER TABLE requests ADD COLUMN experience TEXT;
