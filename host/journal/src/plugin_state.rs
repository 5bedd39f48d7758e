//! What plugins keep for themselves between calls: small values by key, each scope apart from every other.
//!
//! A write names the version that it read, so that two calls at once cannot undo each other's work without noticing.
//! The quota is looked at in the transaction that writes. It refuses to know what the bytes mean; so forgetting a
//! session does not reach what a plugin remembers of it, which only its operator can remove.

use rusqlite::{Connection, OptionalExtension, Transaction};

use crate::codec::{Natural, encode_u64};
use crate::error::{Fault, JournalError};
use crate::journal::Journal;
use crate::records::{PluginEntry, PluginKeys, PluginPut, PluginQuota, PluginScope};

/// A scope's row.
struct Account {
    id: i64,
    writes: u64,
    keys: u64,
    bytes: u64,
}

impl Journal {
    /// Reads a key.
    ///
    /// # Errors
    /// The faults of the database.
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
                    let Natural(version) = row.get(1)?;
                    Ok(PluginEntry {
                        value: row.get(0)?,
                        version,
                    })
                })
                .optional()?)
        })
    }

    /// Writes a key if it is as `expected` says: the version that was read, or none where there was nothing.
    /// A write that makes nothing larger is taken even where the quota was lowered below what is there.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn put_plugin_entry(
        &self,
        scope: &PluginScope,
        key: &str,
        value: &[u8],
        expected: Option<u64>,
        quota: PluginQuota,
    ) -> Result<PluginPut, JournalError> {
        self.write_aside(|tx| {
            let account = account(tx, scope)?;
            let there = match &account {
                Some(account) => entry_size(tx, account.id, key)?,
                None => None,
            };
            if there.map(|(version, _)| version) != expected {
                return Ok(PluginPut::Conflict);
            }
            let size = (key.len() + value.len()) as u64;
            let before = there.map_or(0, |(_, size)| size);
            let held = account.as_ref().map_or(0, |account| account.bytes);
            let keys =
                account.as_ref().map_or(0, |account| account.keys) + u64::from(there.is_none());
            let bytes = held.saturating_sub(before).saturating_add(size);
            let more = there.is_none() || size > before;
            if more && (bytes > quota.bytes || keys > quota.keys) {
                return Ok(PluginPut::Full);
            }
            let id = match &account {
                Some(account) => account.id,
                None => tx
                    .prepare_cached("INSERT INTO plugin_scopes (plugin, run) VALUES (?1, ?2)")?
                    .insert((&scope.plugin, &scope.run))?,
            };
            let version = account.map_or(0, |account| account.writes) + 1;
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
            Ok(PluginPut::Written { version })
        })
    }

    /// Removes a key; a missing one is no error. Answers whether there was one.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn remove_plugin_entry(
        &self,
        scope: &PluginScope,
        key: &str,
    ) -> Result<bool, JournalError> {
        self.write_aside(|tx| {
            let Some(account) = account(tx, scope)? else {
                return Ok(false);
            };
            let Some((_, size)) = entry_size(tx, account.id, key)? else {
                return Ok(false);
            };
            tx.prepare_cached("DELETE FROM plugin_state WHERE scope = ?1 AND key = ?2")?
                .execute((account.id, key))?;
            tx.prepare_cached(
                "UPDATE plugin_scopes SET keys = keys - 1, bytes = ?2 WHERE id = ?1",
            )?
            .execute((
                account.id,
                encode_u64(account.bytes.saturating_sub(size), "number of bytes")?,
            ))?;
            Ok(true)
        })
    }

    /// Keys that begin with `prefix`, in the order of their bytes, after the key `after`. At most `limit`,
    /// of which there is at least one.
    ///
    /// # Errors
    /// The faults of the database.
    pub fn plugin_keys(
        &self,
        scope: &PluginScope,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<PluginKeys, JournalError> {
        let limit = limit.max(1);
        self.read(|conn| {
            let mut statement = conn.prepare_cached(
                "SELECT e.key FROM plugin_state e JOIN plugin_scopes s ON s.id = e.scope
                 WHERE s.plugin = ?1 AND s.run = ?2 AND e.key >= ?3 AND e.key > ?4
                 ORDER BY e.key",
            )?;
            let mut rows =
                statement.query((&scope.plugin, &scope.run, prefix, after.unwrap_or("")))?;
            let mut found = PluginKeys::default();
            while let Some(row) = rows.next()? {
                let key: String = row.get(0)?;
                // Keys with a prefix stand together.
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

fn account(tx: &Transaction<'_>, scope: &PluginScope) -> Result<Option<Account>, Fault> {
    let found = tx
        .prepare_cached(
            "SELECT id, writes, keys, bytes FROM plugin_scopes WHERE plugin = ?1 AND run = ?2",
        )?
        .query_row((&scope.plugin, &scope.run), |row| {
            let (Natural(writes), Natural(keys), Natural(bytes)) =
                (row.get(1)?, row.get(2)?, row.get(3)?);
            Ok(Account {
                id: row.get(0)?,
                writes,
                keys,
                bytes,
            })
        })
        .optional()?;
    Ok(found)
}

/// Version of an entry and the bytes that it counts for: its key and its value.
fn entry_size(conn: &Connection, scope: i64, key: &str) -> Result<Option<(u64, u64)>, Fault> {
    let found = conn
        .prepare_cached(
            "SELECT version, length(value) FROM plugin_state WHERE scope = ?1 AND key = ?2",
        )?
        .query_row((scope, key), |row| {
            let (Natural(version), Natural(value)) = (row.get(0)?, row.get(1)?);
            Ok((version, key.len() as u64 + value))
        })
        .optional()?;
    Ok(found)
}
