-- A session id that a client chooses is a name within its API key: two keys may use the same one. `id` stays the key of
-- the table and what other tables refer to.
ALTER TABLE sessions ADD COLUMN name TEXT NOT NULL DEFAULT '';
UPDATE sessions SET name = id;
CREATE UNIQUE INDEX sessions_of_key ON sessions (COALESCE(key, ''), name);

-- Before this, keys that used the same name shared one session. What one key reacted with is no reaction to a reply that
-- another key received; the message itself stays in the request that brought it.
DELETE FROM next_states WHERE EXISTS (
    SELECT 1 FROM turns t JOIN turns c ON c.parent = t.id
    WHERE t.id = next_states.turn AND c.key <> t.key AND c.received_ms = next_states.ms);
UPDATE turns SET judging = 'waiting'
    WHERE judging = 'ready' AND NOT EXISTS (SELECT 1 FROM next_states n WHERE n.turn = turns.id)
    AND NOT EXISTS (SELECT 1 FROM feedback f WHERE f.turn = turns.id AND f.judged = 0);

-- Each key gets its own turns in a session of its own, under the same name.
INSERT INTO sessions (id, name, origin, key, started_ms, last_ms, ended_ms, end_reason, settled_ms)
    SELECT 's-' || lower(hex(randomblob(10))), s.name, s.origin, t.key, MIN(t.received_ms),
        MAX(MAX(t.received_ms, COALESCE(p.ms, 0))), s.ended_ms, s.end_reason, s.settled_ms
    FROM turns t JOIN sessions s ON s.id = t.session LEFT JOIN replies p ON p.turn = t.id
    WHERE t.key IS NOT s.key GROUP BY s.id, t.key;
UPDATE turns SET session = (
        SELECT own.id FROM sessions old JOIN sessions own ON own.name = old.name AND own.key IS turns.key
        WHERE old.id = turns.session)
    WHERE EXISTS (SELECT 1 FROM sessions s WHERE s.id = turns.session AND s.key IS NOT turns.key);
UPDATE turns SET parent = NULL
    WHERE EXISTS (SELECT 1 FROM turns p WHERE p.id = turns.parent AND p.session <> turns.session);
UPDATE turns SET grp = session || '/' || grp
    WHERE EXISTS (SELECT 1 FROM turns o WHERE o.grp = turns.grp AND o.session <> turns.session);
UPDATE requests SET session = (SELECT t.session FROM turns t WHERE t.request = requests.id)
    WHERE EXISTS (SELECT 1 FROM turns t WHERE t.request = requests.id AND t.session <> requests.session);
