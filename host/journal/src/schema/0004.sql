-- Requests of which several choices came, and how they are judged: one by one, together, or nobody has yet. Apart from
-- the requests, because a prompt is written once. What came before is left as it was judged.
CREATE TABLE choices (
    request     INTEGER PRIMARY KEY NOT NULL REFERENCES requests (id) ON DELETE CASCADE,
    judged      TEXT NOT NULL CHECK (judged IN ('not', 'apart', 'together'))
) STRICT;
CREATE INDEX choices_open ON choices (request) WHERE judged = 'not';
INSERT INTO choices SELECT request, 'apart' FROM turns GROUP BY request HAVING COUNT(*) > 1;

-- Whether a judgement was one of all choices of a request.
ALTER TABLE judgements ADD COLUMN together INTEGER NOT NULL DEFAULT 0;

-- What followed a reply, as advice that was not there when it was made: one row for each time that an extractor was
-- asked.
CREATE TABLE hints (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    turn        INTEGER NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
    judgement   INTEGER REFERENCES judgements (id) ON DELETE SET NULL,
    source      TEXT NOT NULL,
    digest      TEXT NOT NULL,
    text        TEXT,
    placement   TEXT CHECK (placement IN ('last-user', 'system')),
    confidence  REAL,
    reason      TEXT,
    said        TEXT NOT NULL,
    metrics     TEXT NOT NULL,
    ms          INTEGER NOT NULL,
    CHECK ((text IS NULL) = (placement IS NULL) AND (text IS NULL) = (confidence IS NULL)
        AND (text IS NULL) <> (reason IS NULL))
) STRICT;
CREATE INDEX hints_of_turn ON hints (turn);
CREATE INDEX hints_of_judgement ON hints (judgement);
