//! Who is asked now, and how one component takes the place of another, or leaves its place, while turns are judged.
//!
//! A judgement holds the seats that it began with, so a call in progress ends on the component that it was
//! made to; exchanging a component waits for nobody. A seat that was vacated is still a seat: who would have sat there
//! gives no verdict, with the reason, until a component is put into it again.

use std::sync::{Arc, PoisonError, RwLock};

use clawhost_plugins::{Kind, Plugin};

use crate::health::Health;
use crate::judge::{Asked, GroupJudge, HintExtractor, Judge};
use crate::status::JudgingStatus;

/// A component and how it fares.
pub(crate) struct Seat<T: ?Sized> {
    pub(crate) asked: Arc<T>,
    pub(crate) health: Health,
    /// Why nobody sits here, if nobody does.
    pub(crate) vacant: Option<Vacant>,
}

/// Why a component may not be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Vacant {
    /// In a word or two, under which it is counted.
    pub(crate) reason: String,
    /// In a sentence.
    pub(crate) said: String,
}

/// The seats of one kind.
pub(crate) struct Bank<T: ?Sized> {
    seats: RwLock<Arc<[Arc<Seat<T>>]>>,
}

impl<T: Asked + ?Sized> Bank<T> {
    fn new(asked: Vec<Arc<T>>) -> Self {
        let seats = asked.into_iter().map(|asked| seat(asked, None)).collect();
        Self {
            seats: RwLock::new(seats),
        }
    }

    /// Those who sit now, in the order in which they are asked.
    pub(crate) fn now(&self) -> Arc<[Arc<Seat<T>>]> {
        self.seats
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether this one still sits.
    pub(crate) fn sits(&self, seat: &Arc<Seat<T>>) -> bool {
        self.now().iter().any(|other| Arc::ptr_eq(other, seat))
    }

    /// Puts `made` from the old seat into the place of whoever has this name; false when nobody has.
    fn change(&self, name: &str, made: impl Fn(&Seat<T>) -> Arc<Seat<T>>) -> bool {
        let mut seats = self.seats.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = false;
        *seats = seats
            .iter()
            .map(|old| {
                if old.asked.name() == name {
                    changed = true;
                    made(old)
                } else {
                    Arc::clone(old)
                }
            })
            .collect();
        changed
    }

    fn exchange(&self, asked: &Arc<T>) -> bool {
        self.change(asked.name(), |_| seat(Arc::clone(asked), None))
    }

    fn vacate(&self, name: &str, vacant: &Vacant) -> bool {
        self.change(name, |old| {
            seat(Arc::clone(&old.asked), Some(vacant.clone()))
        })
    }

    fn digests(&self) -> impl Iterator<Item = (String, String)> {
        let now = self.now();
        let digests: Vec<(String, String)> = now
            .iter()
            .map(|seat| (seat.asked.name().to_owned(), seat.asked.digest().to_owned()))
            .collect();
        digests.into_iter()
    }
}

/// Everybody that is asked in a run. Clones share them.
#[derive(Clone)]
pub struct Seats {
    banks: Arc<Banks>,
    status: JudgingStatus,
}

struct Banks {
    judges: Bank<dyn Judge>,
    groups: Bank<dyn GroupJudge>,
    hints: Bank<dyn HintExtractor>,
}

/// Who is to be seated, in the order in which they are asked.
#[derive(Default)]
pub(crate) struct Seated {
    pub(crate) judges: Vec<Arc<dyn Judge>>,
    pub(crate) groups: Vec<Arc<dyn GroupJudge>>,
    pub(crate) hints: Vec<Arc<dyn HintExtractor>>,
}

impl Seated {
    /// Judges, group judges and hint extractors among components; others have no seat here.
    pub(crate) fn of(plugins: Vec<Plugin>) -> Self {
        let mut seated = Self::default();
        for plugin in plugins {
            match plugin.kind() {
                Kind::Judge => seated.judges.push(Arc::new(plugin)),
                Kind::GroupJudge => seated.groups.push(Arc::new(plugin)),
                Kind::Hint => seated.hints.push(Arc::new(plugin)),
                Kind::Loss | Kind::Advantage | Kind::Environment => {}
            }
        }
        seated
    }
}

impl Seats {
    pub(crate) fn new(seated: Seated, status: JudgingStatus) -> Self {
        Self {
            banks: Arc::new(Banks {
                judges: Bank::new(seated.judges),
                groups: Bank::new(seated.groups),
                hints: Bank::new(seated.hints),
            }),
            status,
        }
    }

    pub(crate) fn judges(&self) -> &Bank<dyn Judge> {
        &self.banks.judges
    }

    pub(crate) fn groups(&self) -> &Bank<dyn GroupJudge> {
        &self.banks.groups
    }

    pub(crate) fn hints(&self) -> &Bank<dyn HintExtractor> {
        &self.banks.hints
    }

    /// Whether the choices of a request are judged together. It stays so while a group judge's seat is vacant.
    pub fn judge_together(&self) -> bool {
        !self.banks.groups.now().is_empty()
    }

    /// Puts a component in the place of the one with its name and kind. It is asked from the next turn on, with a clean
    /// record; calls in progress end on the one before. False, and nothing changes, when nobody has its name.
    pub fn replace(&self, plugin: Plugin) -> bool {
        let name = plugin.name().to_owned();
        let replaced = match plugin.kind() {
            Kind::Judge => self
                .banks
                .judges
                .exchange(&(Arc::new(plugin) as Arc<dyn Judge>)),
            Kind::GroupJudge => self
                .banks
                .groups
                .exchange(&(Arc::new(plugin) as Arc<dyn GroupJudge>)),
            Kind::Hint => self
                .banks
                .hints
                .exchange(&(Arc::new(plugin) as Arc<dyn HintExtractor>)),
            Kind::Loss | Kind::Advantage | Kind::Environment => false,
        };
        self.cleared(&name, replaced)
    }

    #[cfg(test)]
    pub(crate) fn exchange(&self, judge: Arc<dyn Judge>) -> bool {
        let name = judge.name().to_owned();
        self.cleared(&name, self.banks.judges.exchange(&judge))
    }

    /// A new component has a clean record.
    fn cleared(&self, name: &str, replaced: bool) -> bool {
        if replaced {
            self.status
                .change(|s| s.quarantined.retain(|other| other != name));
        }
        replaced
    }

    /// Takes the component of this name out of its seat. From the next turn on it is not asked, and gives no verdict
    /// for `reason` (a word or two), which `said` explains; calls in progress end within their limits. The seat stays
    /// for [`Seats::replace`]. False when nobody has that name.
    pub fn vacate(&self, name: &str, reason: &str, said: &str) -> bool {
        let vacant = Vacant {
            reason: reason.to_owned(),
            said: said.to_owned(),
        };
        let Banks {
            judges,
            groups,
            hints,
        } = &*self.banks;
        let vacated = judges.vacate(name, &vacant)
            | groups.vacate(name, &vacant)
            | hints.vacate(name, &vacant);
        self.cleared(name, vacated)
    }

    /// Name and digest of each, in the order in which they are asked: judges, group judges, hint extractors.
    pub fn digests(&self) -> Vec<(String, String)> {
        let Banks {
            judges,
            groups,
            hints,
        } = &*self.banks;
        judges
            .digests()
            .chain(groups.digests())
            .chain(hints.digests())
            .collect()
    }
}

fn seat<T: ?Sized>(asked: Arc<T>, vacant: Option<Vacant>) -> Arc<Seat<T>> {
    Arc::new(Seat {
        asked,
        health: Health::default(),
        vacant,
    })
}
