//! Rounds of the environments that a server runs, and the state of each of their episodes.
//!
//! A round is a set of groups of episodes. Its samples are recorded as the episodes end, and a training step may take them
//! once the round is closed. A process that starts again continues the round that was open: episodes that have ended are not
//! run again, those that were running are.

use std::collections::BTreeSet;

use crate::clock::now_ms;
use crate::codec::{Unsigned, encode_u64};
use crate::error::JournalError;
use crate::ids::SessionId;
use crate::journal::Journal;
use crate::records::EnvironmentStats;

/// Time over which the rate of episodes is measured.
const RATE_WINDOW_MS: i64 = 60_000;

impl Journal {
    /// The round of an environment that is to be run: the one that was open, or else the next. Rounds count from 1.
    ///
    /// # Errors
    /// Database errors.
    pub fn open_round(&self, environment: &str) -> Result<u64, JournalError> {
        self.write(|tx| {
            let Unsigned(round) = tx
                .prepare_cached(
                    "INSERT INTO environments VALUES (?1, 1, 1)
                     ON CONFLICT (name) DO UPDATE SET open = 1 RETURNING round",
                )?
                .query_row([environment], |row| row.get(0))?;
            Ok(round)
        })
    }

    /// Closes a round: its samples may be trained on, and the next round can be opened. Does nothing if another round is
    /// open.
    ///
    /// # Errors
    /// Database errors.
    pub fn close_round(&self, environment: &str, round: u64) -> Result<(), JournalError> {
        self.write(|tx| {
            tx.prepare_cached(
                "UPDATE environments SET round = round + 1, open = 0 WHERE name = ?1 AND round = ?2",
            )?
            .execute((environment, encode_u64(round, "round")?))?;
            Ok(())
        })
    }

    /// Forgets the episodes that were running when the last process ended, and lets the samples of environments that are
    /// not in `environments` be trained on, although their rounds were not finished.
    ///
    /// # Errors
    /// Database errors.
    pub fn release_rounds_except(&self, environments: &[&str]) -> Result<(), JournalError> {
        self.write(|tx| {
            tx.execute("DELETE FROM episodes WHERE state = 'running'", [])?;
            let mut statement = tx.prepare("SELECT name FROM environments WHERE open = 1")?;
            let names: Vec<String> = statement
                .query_map([], |row| row.get(0))?
                .collect::<Result<_, _>>()?;
            for name in names {
                if !environments.contains(&name.as_str()) {
                    tx.execute("UPDATE environments SET open = 0 WHERE name = ?1", [name])?;
                }
            }
            Ok(())
        })
    }

    /// The episodes of a round that have ended, with or without a verdict.
    ///
    /// # Errors
    /// Database errors.
    pub fn ended_episodes(
        &self,
        environment: &str,
        round: u64,
    ) -> Result<BTreeSet<SessionId>, JournalError> {
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT session FROM episodes WHERE environment = ?1 AND round = ?2 AND state <> 'running'",
            )?;
            let round = encode_u64(round, "round")?;
            let sessions = statement.query_map((environment, round), |row| {
                Ok(SessionId(row.get::<_, String>(0)?))
            })?;
            Ok(sessions.collect::<Result<_, _>>()?)
        })
    }

    /// Records that episodes of a round have started. [`Journal::record_episode`] records that one of them is done.
    ///
    /// # Errors
    /// Database errors, also for an environment without a round.
    pub fn start_episodes(
        &self,
        environment: &str,
        round: u64,
        sessions: &[SessionId],
    ) -> Result<(), JournalError> {
        self.write(|tx| {
            let mut insert = tx.prepare_cached(
                "INSERT INTO episodes (session, environment, round, state, started_ms)
                 VALUES (?1, ?2, ?3, 'running', ?4)
                 ON CONFLICT (session) DO UPDATE SET started_ms = ?4 WHERE state = 'running'",
            )?;
            let round = encode_u64(round, "round")?;
            for session in sessions {
                insert.execute((session.as_str(), environment, round, now_ms()))?;
            }
            Ok(())
        })
    }

    /// Records that a running episode has ended without a verdict.
    ///
    /// # Errors
    /// Database errors.
    pub fn fail_episode(&self, session: &SessionId, reason: &str) -> Result<(), JournalError> {
        self.write(|tx| {
            tx.prepare_cached(
                "UPDATE episodes SET state = 'failed', reason = ?2, ended_ms = ?3
                 WHERE session = ?1 AND state = 'running'",
            )?
            .execute((session.as_str(), reason, now_ms()))?;
            Ok(())
        })
    }

    /// What each environment of a server has done, by name.
    ///
    /// # Errors
    /// Database errors.
    pub fn environment_stats(&self) -> Result<Vec<EnvironmentStats>, JournalError> {
        self.read(|conn| {
            let mut statement =
                conn.prepare_cached("SELECT name, round, open FROM environments ORDER BY name")?;
            let found = statement.query_map([], |row| {
                let Unsigned(round) = row.get(1)?;
                Ok(EnvironmentStats {
                    name: row.get(0)?,
                    round,
                    open: row.get(2)?,
                    ..EnvironmentStats::default()
                })
            })?;
            let mut found: Vec<EnvironmentStats> = found.collect::<Result<_, _>>()?;
            for stats in &mut found {
                let (running, done, mean, last) = conn
                    .prepare_cached(
                        "SELECT COUNT(*) FILTER (WHERE state = 'running'), COUNT(*) FILTER (WHERE state = 'done'),
                            AVG(reward), MAX(ended_ms) FROM episodes WHERE environment = ?1",
                    )?
                    .query_row([&stats.name], |row| {
                        let (Unsigned(running), Unsigned(done)) = (row.get(0)?, row.get(1)?);
                        Ok((running, done, row.get(2)?, row.get(3)?))
                    })?;
                (stats.running, stats.done) = (running, done);
                (stats.reward_mean, stats.last_ms) = (mean, last);
                let (recent, mean) = conn
                    .prepare_cached(
                        "SELECT COUNT(*), AVG(reward) FROM episodes WHERE environment = ?1 AND ended_ms > ?2",
                    )?
                    .query_row((&stats.name, now_ms() - RATE_WINDOW_MS), |row| {
                        Ok((row.get::<_, u32>(0)?, row.get(1)?))
                    })?;
                stats.per_second = f64::from(recent) * 1e3 / RATE_WINDOW_MS as f64;
                stats.recent_reward_mean = mean;
                let mut statement = conn.prepare_cached(
                    "SELECT reason, COUNT(*) FROM episodes WHERE environment = ?1 AND state = 'failed'
                     GROUP BY reason ORDER BY COUNT(*) DESC, reason",
                )?;
                let failed = statement.query_map([&stats.name], |row| {
                    let Unsigned(count) = row.get(1)?;
                    Ok((row.get(0)?, count))
                })?;
                stats.failed = failed.collect::<Result<_, _>>()?;
                let mut statement = conn.prepare_cached(
                    "SELECT s.state, COUNT(*) FROM episodes e JOIN turns t ON t.session = e.session
                     JOIN samples s ON s.turn = t.id WHERE e.environment = ?1 GROUP BY s.state",
                )?;
                let samples = statement.query_map([&stats.name], |row| {
                    let Unsigned(count) = row.get(1)?;
                    Ok((row.get(0)?, count))
                })?;
                stats.samples = samples.collect::<Result<_, _>>()?;
            }
            Ok(found)
        })
    }
}
