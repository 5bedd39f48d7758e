-- By what a turn was asked, a request that goes on from it is known among any number of equal replies. The digests
-- are apart from the turns because a turn has several: clients replace or drop single messages.
CREATE TABLE histories (
    digest  TEXT NOT NULL,
    turn    INTEGER NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
    PRIMARY KEY (digest, turn)
) STRICT, WITHOUT ROWID;
CREATE INDEX histories_of_turn ON histories (turn);

-- When it was decided what an ended session contributes as a whole. Sessions that ended before this was asked are
-- left as they are.
ALTER TABLE sessions ADD COLUMN settled_ms INTEGER;
UPDATE sessions SET settled_ms = ended_ms WHERE ended_ms IS NOT NULL;
CREATE INDEX sessions_unsettled ON sessions (ended_ms) WHERE ended_ms IS NOT NULL AND settled_ms IS NULL;
