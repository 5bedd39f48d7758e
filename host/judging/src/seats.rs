//! Who judges now, and how one judge takes the place of another while turns are judged.
//!
//! A judgement holds the seats that it began with, so a call in progress ends on the component that it was
//! made to; exchanging a judge waits for nobody.

use std::sync::{Arc, PoisonError, RwLock};

use clawhost_plugins::Plugin;

use crate::health::Health;
use crate::judge::Judge;
use crate::status::JudgingStatus;

/// A judge and how it fares.
pub(crate) struct Seat {
    pub(crate) judge: Arc<dyn Judge>,
    pub(crate) health: Health,
}

/// The judges of a run. Clones share them.
#[derive(Clone)]
pub struct Judges {
    seats: Arc<RwLock<Arc<[Arc<Seat>]>>>,
    status: JudgingStatus,
}

impl Judges {
    pub(crate) fn new(judges: Vec<Arc<dyn Judge>>, status: JudgingStatus) -> Self {
        let seats: Arc<[Arc<Seat>]> = judges.into_iter().map(seat).collect();
        Self {
            seats: Arc::new(RwLock::new(seats)),
            status,
        }
    }

    /// Those who sit now, in the order in which they are asked.
    pub(crate) fn now(&self) -> Arc<[Arc<Seat>]> {
        self.seats
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether this one still sits.
    pub(crate) fn sits(&self, seat: &Arc<Seat>) -> bool {
        self.now().iter().any(|other| Arc::ptr_eq(other, seat))
    }

    /// Puts a component in the place of the one with its name. It judges from the next turn on, with a clean
    /// record; calls in progress end on the one before. False, and nothing changes, when nobody has its name.
    pub fn replace(&self, plugin: Plugin) -> bool {
        self.exchange(Arc::new(plugin))
    }

    pub(crate) fn exchange(&self, judge: Arc<dyn Judge>) -> bool {
        let name = judge.name().to_owned();
        let mut seats = self.seats.write().unwrap_or_else(PoisonError::into_inner);
        if seats.iter().all(|seat| seat.judge.name() != name) {
            return false;
        }
        let new = seat(judge);
        *seats = seats
            .iter()
            .map(|old| {
                if old.judge.name() == name {
                    Arc::clone(&new)
                } else {
                    Arc::clone(old)
                }
            })
            .collect();
        drop(seats);
        self.status
            .change(|s| s.quarantined.retain(|other| *other != name));
        true
    }

    /// Name and digest of each, in the order in which they are asked.
    pub fn digests(&self) -> Vec<(String, String)> {
        self.now()
            .iter()
            .map(|seat| (seat.judge.name().to_owned(), seat.judge.digest().to_owned()))
            .collect()
    }
}

fn seat(judge: Arc<dyn Judge>) -> Arc<Seat> {
    Arc::new(Seat {
        judge,
        health: Health::default(),
    })
}
