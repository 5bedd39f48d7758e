-- What plugins keep for themselves. The sums stand beside the entries so that a write need not add up ten thousand
-- of them; `writes` never goes back, so that a key that was removed and made again has a version it never had.
CREATE TABLE plugin_scopes (
    id      INTEGER PRIMARY KEY,
    plugin  TEXT NOT NULL,
    run     TEXT NOT NULL,
    writes  INTEGER NOT NULL DEFAULT 0,
    keys    INTEGER NOT NULL DEFAULT 0,
    bytes   INTEGER NOT NULL DEFAULT 0,
    UNIQUE (plugin, run)
) STRICT;

CREATE TABLE plugin_state (
    id      INTEGER PRIMARY KEY,
    scope   INTEGER NOT NULL REFERENCES plugin_scopes (id) ON DELETE CASCADE,
    key     TEXT NOT NULL,
    version INTEGER NOT NULL,
    value   BLOB NOT NULL,
    UNIQUE (scope, key)
) STRICT;

-- What each judgement was based on: a turn that was judged again had other evidence each time, and whoever judges
-- the record anew must show exactly that.
CREATE TABLE judgements (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    turn        INTEGER NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
    next_state  INTEGER NOT NULL,
    feedback    INTEGER NOT NULL
) STRICT;
CREATE INDEX judgements_of_turn ON judgements (turn);

ALTER TABLE verdicts ADD COLUMN judgement INTEGER REFERENCES judgements (id) ON DELETE SET NULL;
CREATE INDEX verdicts_of_judgement ON verdicts (judgement);

-- Of what was judged before, only the sum is known: it counts as one judgement.
INSERT INTO judgements (turn, next_state, feedback)
    SELECT t.id, t.next_judged, (SELECT COUNT(*) FROM feedback f WHERE f.turn = t.id AND f.judged = 1)
    FROM turns t
    WHERE t.next_judged = 1 OR EXISTS (SELECT 1 FROM feedback f WHERE f.turn = t.id AND f.judged = 1)
    ORDER BY t.id;
UPDATE verdicts SET judgement = (SELECT j.id FROM judgements j WHERE j.turn = verdicts.turn);
