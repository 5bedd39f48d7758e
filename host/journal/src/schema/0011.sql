-- How many rows the tables of the record hold and how many transactions were committed, counted as they come. A start
-- compares the counts with the tables, and the commits with the mark that is kept beside the journal (`mark.rs`), so that
-- a journal that lost its end or a part of a table is not served as if it were whole. One row, so that a commit rewrites
-- one page for it. A migration that rebuilds one of these tables creates its two triggers again.
CREATE TABLE tally (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    -- Which journal this is: a copy has the same, a new one has another.
    journal     TEXT NOT NULL,
    commits     INTEGER NOT NULL,
    sessions    INTEGER NOT NULL,
    requests    INTEGER NOT NULL,
    turns       INTEGER NOT NULL,
    replies     INTEGER NOT NULL,
    next_states INTEGER NOT NULL,
    feedback    INTEGER NOT NULL,
    verdicts    INTEGER NOT NULL,
    hints       INTEGER NOT NULL,
    samples     INTEGER NOT NULL,
    steps       INTEGER NOT NULL,
    adapters    INTEGER NOT NULL
) STRICT;
INSERT INTO tally SELECT 1, lower(hex(randomblob(16))), 0,
    (SELECT COUNT(*) FROM sessions),
    (SELECT COUNT(*) FROM requests),
    (SELECT COUNT(*) FROM turns),
    (SELECT COUNT(*) FROM replies),
    (SELECT COUNT(*) FROM next_states),
    (SELECT COUNT(*) FROM feedback),
    (SELECT COUNT(*) FROM verdicts),
    (SELECT COUNT(*) FROM hints),
    (SELECT COUNT(*) FROM samples),
    (SELECT COUNT(*) FROM steps),
    (SELECT COUNT(*) FROM adapters);

CREATE TRIGGER tally_sessions_added AFTER INSERT ON sessions BEGIN UPDATE tally SET sessions = sessions + 1; END;
CREATE TRIGGER tally_sessions_removed AFTER DELETE ON sessions BEGIN UPDATE tally SET sessions = sessions - 1; END;
CREATE TRIGGER tally_requests_added AFTER INSERT ON requests BEGIN UPDATE tally SET requests = requests + 1; END;
CREATE TRIGGER tally_requests_removed AFTER DELETE ON requests BEGIN UPDATE tally SET requests = requests - 1; END;
CREATE TRIGGER tally_turns_added AFTER INSERT ON turns BEGIN UPDATE tally SET turns = turns + 1; END;
CREATE TRIGGER tally_turns_removed AFTER DELETE ON turns BEGIN UPDATE tally SET turns = turns - 1; END;
CREATE TRIGGER tally_replies_added AFTER INSERT ON replies BEGIN UPDATE tally SET replies = replies + 1; END;
CREATE TRIGGER tally_replies_removed AFTER DELETE ON replies BEGIN UPDATE tally SET replies = replies - 1; END;
CREATE TRIGGER tally_next_states_added AFTER INSERT ON next_states BEGIN UPDATE tally SET next_states = next_states + 1; END;
CREATE TRIGGER tally_next_states_removed AFTER DELETE ON next_states BEGIN UPDATE tally SET next_states = next_states - 1; END;
CREATE TRIGGER tally_feedback_added AFTER INSERT ON feedback BEGIN UPDATE tally SET feedback = feedback + 1; END;
CREATE TRIGGER tally_feedback_removed AFTER DELETE ON feedback BEGIN UPDATE tally SET feedback = feedback - 1; END;
CREATE TRIGGER tally_verdicts_added AFTER INSERT ON verdicts BEGIN UPDATE tally SET verdicts = verdicts + 1; END;
CREATE TRIGGER tally_verdicts_removed AFTER DELETE ON verdicts BEGIN UPDATE tally SET verdicts = verdicts - 1; END;
CREATE TRIGGER tally_hints_added AFTER INSERT ON hints BEGIN UPDATE tally SET hints = hints + 1; END;
CREATE TRIGGER tally_hints_removed AFTER DELETE ON hints BEGIN UPDATE tally SET hints = hints - 1; END;
CREATE TRIGGER tally_samples_added AFTER INSERT ON samples BEGIN UPDATE tally SET samples = samples + 1; END;
CREATE TRIGGER tally_samples_removed AFTER DELETE ON samples BEGIN UPDATE tally SET samples = samples - 1; END;
CREATE TRIGGER tally_steps_added AFTER INSERT ON steps BEGIN UPDATE tally SET steps = steps + 1; END;
CREATE TRIGGER tally_steps_removed AFTER DELETE ON steps BEGIN UPDATE tally SET steps = steps - 1; END;
CREATE TRIGGER tally_adapters_added AFTER INSERT ON adapters BEGIN UPDATE tally SET adapters = adapters + 1; END;
CREATE TRIGGER tally_adapters_removed AFTER DELETE ON adapters BEGIN UPDATE tally SET adapters = adapters - 1; END;
