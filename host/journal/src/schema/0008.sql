-- Which version was served from when on, and by whose act: a step, or a person. `back` is the release that a rollback
-- returns to; nothing stands for the base model. `line` is the release by which this version came to be served: it stays
-- the same while a version is only held or let go, so that whoever began under it knows whether it still stands.
CREATE TABLE releases (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    ms      INTEGER NOT NULL,
    version INTEGER NOT NULL,
    act     TEXT NOT NULL CHECK (act IN ('step', 'promote', 'rollback', 'pin', 'unpin')),
    by      TEXT,
    pinned  INTEGER NOT NULL,
    line    INTEGER NOT NULL,
    back    INTEGER REFERENCES releases (id)
) STRICT;

-- The line that an adapter goes on from what is served in; nothing where somebody changed that while it was made.
ALTER TABLE adapters ADD COLUMN line INTEGER;
CREATE INDEX adapters_of_line ON adapters (line);

-- Before this, steps alone released versions, each after the one before it.
INSERT INTO releases (ms, version, act, pinned, line)
    SELECT created_ms, version, 'step', 0, 0 FROM adapters WHERE state <> 'candidate' ORDER BY version;
UPDATE releases SET line = id, back = (SELECT MAX(b.id) FROM releases b WHERE b.id < releases.id);
UPDATE adapters SET line = (SELECT r.id FROM releases r WHERE r.version = adapters.version);
