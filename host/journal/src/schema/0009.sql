-- A next state can turn out to be a side request's. It is retracted then: the row moves from `next_states` to
-- `retractions`, with the reason, and judgements that saw it refer to it. `source` is the turn whose request brought the
-- next state; nothing stands for those recorded before this.
ALTER TABLE next_states ADD COLUMN source INTEGER REFERENCES turns (id) ON DELETE SET NULL;
CREATE INDEX next_states_of_source ON next_states (source);

CREATE TABLE retractions (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    turn        INTEGER NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
    ms          INTEGER NOT NULL,
    reason      TEXT NOT NULL,
    source      INTEGER REFERENCES turns (id) ON DELETE SET NULL,
    came_ms     INTEGER NOT NULL,
    messages    TEXT NOT NULL,
    judged      INTEGER NOT NULL
) STRICT;
CREATE INDEX retractions_of_turn ON retractions (turn);
CREATE INDEX retractions_of_source ON retractions (source);

ALTER TABLE judgements ADD COLUMN retraction INTEGER REFERENCES retractions (id) ON DELETE SET NULL;
CREATE INDEX judgements_of_retraction ON judgements (retraction);
