-- Receipts of calls that judged nobody: of losses and advantages, which see a step and not a turn.
CREATE TABLE all_receipts (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    turn        INTEGER REFERENCES turns (id) ON DELETE CASCADE,
    body        TEXT NOT NULL,
    ms          INTEGER NOT NULL
) STRICT;
INSERT INTO all_receipts (id, turn, body, ms) SELECT id, turn, body, ms FROM receipts;
DROP TABLE receipts;
ALTER TABLE all_receipts RENAME TO receipts;
CREATE INDEX receipts_of_turn ON receipts (turn);
