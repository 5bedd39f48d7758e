//! Plugin state: a key-value store per plugin scope that persists between calls.
//!
//! Writes are compare-and-swap: a write names the version that it read, so concurrent calls cannot overwrite each other
//! unnoticed. The quota is checked in the same transaction. Values are opaque bytes, so deleting a session does not
//! delete what a plugin stored about it; only the operator can remove that.

use rusqlite::{Connection, OptionalExtension, Transaction};

use crate::codec::{Unsigned, encode_u64};
use crate::error::{DbError, JournalError};
use crate::journal::Journal;
use crate::records::{PluginEntry, PluginKeyPage, PluginPutOutcome, PluginQuota, PluginScope};

/// The `plugin_scopes` row of a scope.
struct ScopeUsage {
    id: i64,
    writes: u64,
    keys: u64,
    bytes: u64,
}

impl Journal {
    /// Reads a key.
    ///
    /// # Errors
    /// Database errors.
    pub fn plugin_entry(
        &self,
        scope: &PluginScope,
        key: &str,
    ) -> Result<Option<PluginEntry>, JournalError> {
        self.read(|conn| {
            Ok(conn
                .prepare_cached(
                    "SELECT e.value, e.version FROM plugin_state e
                     JOIN plugin_scopes s ON s.id = e.scope
                     WHERE s.plugin = ?1 AND s.run = ?2 AND e.key = ?3",
                )?
                .query_row((&scope.plugin, &scope.run, key), |row| {
                    let Unsigned(version) = row.get(1)?;
                    Ok(PluginEntry {
                        value: row.get(0)?,
                        version,
                    })
                })
                .optional()?)
        })
    }

    /// Writes a key if its current version is `expected` (`None`: the key does not exist). A write that does not grow
    /// the scope is accepted even if the scope exceeds a lowered quota.
    ///
    /// # Errors
    /// Database errors.
    pub fn put_plugin_entry(
        &self,
        scope: &PluginScope,
        key: &str,
        value: &[u8],
        expected: Option<u64>,
        quota: PluginQuota,
    ) -> Result<PluginPutOutcome, JournalError> {
        self.write_silent(|tx| {
            let usage = scope_usage(tx, scope)?;
            let there = match &usage {
                Some(usage) => entry_size(tx, usage.id, key)?,
                None => None,
            };
            if there.map(|(version, _)| version) != expected {
                return Ok(PluginPutOutcome::Conflict);
            }
            let size = (key.len() + value.len()) as u64;
            let before = there.map_or(0, |(_, size)| size);
            let held = usage.as_ref().map_or(0, |usage| usage.bytes);
            let keys = usage.as_ref().map_or(0, |usage| usage.keys) + u64::from(there.is_none());
            let bytes = held.saturating_sub(before).saturating_add(size);
            let more = there.is_none() || size > before;
            if more && (bytes > quota.bytes || keys > quota.keys) {
                return Ok(PluginPutOutcome::Full);
            }
            let id = match &usage {
                Some(usage) => usage.id,
                None => tx
                    .prepare_cached("INSERT INTO plugin_scopes (plugin, run) VALUES (?1, ?2)")?
                    .insert((&scope.plugin, &scope.run))?,
            };
            let version = usage.map_or(0, |usage| usage.writes) + 1;
            let stored = encode_u64(version, "version")?;
            tx.prepare_cached(
                "INSERT INTO plugin_state (scope, key, version, value) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (scope, key) DO UPDATE SET version = ?3, value = ?4",
            )?
            .execute((id, key, stored, value))?;
            tx.prepare_cached(
                "UPDATE plugin_scopes SET writes = ?2, keys = ?3, bytes = ?4 WHERE id = ?1",
            )?
            .execute((
                id,
                stored,
                encode_u64(keys, "number of keys")?,
                encode_u64(bytes, "number of bytes")?,
            ))?;
            Ok(PluginPutOutcome::Written { version })
        })
    }

    /// Removes a key and returns whether it existed.
    ///
    /// # Errors
    /// Database errors.
    pub fn remove_plugin_entry(
        &self,
        scope: &PluginScope,
        key: &str,
    ) -> Result<bool, JournalError> {
        self.write_silent(|tx| {
            let Some(usage) = scope_usage(tx, scope)? else {
                return Ok(false);
            };
            let Some((_, size)) = entry_size(tx, usage.id, key)? else {
                return Ok(false);
            };
            tx.prepare_cached("DELETE FROM plugin_state WHERE scope = ?1 AND key = ?2")?
                .execute((usage.id, key))?;
            tx.prepare_cached(
                "UPDATE plugin_scopes SET keys = keys - 1, bytes = ?2 WHERE id = ?1",
            )?
            .execute((
                usage.id,
                encode_u64(usage.bytes.saturating_sub(size), "number of bytes")?,
            ))?;
            Ok(true)
        })
    }

    /// Keys that start with `prefix` and follow the key `after`, in byte order. At most `limit`, which is at least 1.
    ///
    /// # Errors
    /// Database errors.
    pub fn plugin_keys(
        &self,
        scope: &PluginScope,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<PluginKeyPage, JournalError> {
        let limit = limit.max(1);
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT e.key FROM plugin_state e JOIN plugin_scopes s ON s.id = e.scope
                 WHERE s.plugin = ?1 AND s.run = ?2 AND e.key >= ?3 AND e.key > ?4
                 ORDER BY e.key",
            )?;
            let mut rows =
                statement.query((&scope.plugin, &scope.run, prefix, after.unwrap_or("")))?;
            let mut found = PluginKeyPage::default();
            while let Some(row) = rows.next()? {
                let key: String = row.get(0)?;
                // Keys with the same prefix are adjacent.
                if !key.starts_with(prefix) {
                    break;
                }
                if found.keys.len() == limit {
                    found.next = found.keys.last().cloned();
                    break;
                }
                found.keys.push(key);
            }
            Ok(found)
        })
    }
}

fn scope_usage(tx: &Transaction<'_>, scope: &PluginScope) -> Result<Option<ScopeUsage>, DbError> {
    let found = tx
        .prepare_cached(
            "SELECT id, writes, keys, bytes FROM plugin_scopes WHERE plugin = ?1 AND run = ?2",
        )?
        .query_row((&scope.plugin, &scope.run), |row| {
            let (Unsigned(writes), Unsigned(keys), Unsigned(bytes)) =
                (row.get(1)?, row.get(2)?, row.get(3)?);
            Ok(ScopeUsage {
                id: row.get(0)?,
                writes,
                keys,
                bytes,
            })
        })
        .optional()?;
    Ok(found)
}

/// The version of an entry and its size in bytes, key plus value.
fn entry_size(conn: &Connection, scope: i64, key: &str) -> Result<Option<(u64, u64)>, DbError> {
    let found = conn
        .prepare_cached(
            "SELECT version, length(value) FROM plugin_state WHERE scope = ?1 AND key = ?2",
        )?
        .query_row((scope, key), |row| {
            let (Unsigned(version), Unsigned(value)) = (row.get(0)?, row.get(1)?);
            Ok((version, key.len() as u64 + value))
        })
        .optional()?;
    Ok(found)
}
