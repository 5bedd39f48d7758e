//! The slots that hold the loaded judges, and how a component is replaced or unloaded while turns are judged.
//!
//! A judgement holds the slots it started with, so a running call finishes on the component it was made to, and
//! replacing a component waits for nothing. An unloaded slot stays: it gives no verdict, with the reason, until a
//! component is put into it again.

use std::sync::{Arc, PoisonError, RwLock};

use clawhost_plugins::{Kind, Plugin};

use crate::health::Health;
use crate::judge::{Component, GroupJudge, HintExtractor, Judge, TurnFilter};
use crate::status::JudgingStatus;

/// A component and its health.
pub(crate) struct JudgeSlot<T: ?Sized> {
    pub(crate) component: Arc<T>,
    pub(crate) health: Health,
    /// Why the component is unloaded, if it is.
    pub(crate) unloaded: Option<UnloadReason>,
}

/// Why a component may not be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnloadReason {
    /// A short reason under which missing verdicts are counted.
    pub(crate) reason: String,
    /// The full message.
    pub(crate) detail: String,
}

/// The slots of one kind of component.
pub(crate) struct SlotList<T: ?Sized> {
    slots: RwLock<Arc<[Arc<JudgeSlot<T>>]>>,
}

impl<T: Component + ?Sized> SlotList<T> {
    fn new(components: Vec<Arc<T>>) -> Self {
        let slots = components.into_iter().map(|c| new_slot(c, None));
        Self {
            slots: RwLock::new(slots.collect()),
        }
    }

    /// The current slots, in call order.
    pub(crate) fn snapshot(&self) -> Arc<[Arc<JudgeSlot<T>>]> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&slots)
    }

    /// Whether this slot is still current.
    pub(crate) fn contains(&self, slot: &Arc<JudgeSlot<T>>) -> bool {
        self.snapshot().iter().any(|other| Arc::ptr_eq(other, slot))
    }

    /// Replaces each slot whose component is called `name` with `build(old)`; returns false when there is none.
    fn update(&self, name: &str, build: impl Fn(&JudgeSlot<T>) -> Arc<JudgeSlot<T>>) -> bool {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = false;
        *slots = slots
            .iter()
            .map(|old| {
                if old.component.name() == name {
                    changed = true;
                    build(old)
                } else {
                    Arc::clone(old)
                }
            })
            .collect();
        changed
    }

    fn replace(&self, component: Arc<T>) -> bool {
        self.update(component.name(), |_| new_slot(Arc::clone(&component), None))
    }

    fn unload(&self, name: &str, unloaded: &UnloadReason) -> bool {
        self.update(name, |old| {
            new_slot(Arc::clone(&old.component), Some(unloaded.clone()))
        })
    }

    fn digests(&self) -> Vec<(String, String)> {
        let slots = self.snapshot();
        let components = slots.iter().map(|slot| &slot.component);
        components
            .map(|component| (component.name().to_owned(), component.digest().to_owned()))
            .collect()
    }
}

/// All judges, hint extractors and filters of a run. Clones share them.
#[derive(Clone)]
pub struct JudgeSlots {
    lists: Arc<SlotLists>,
    status: JudgingStatus,
}

struct SlotLists {
    judges: SlotList<dyn Judge>,
    groups: SlotList<dyn GroupJudge>,
    hints: SlotList<dyn HintExtractor>,
    filters: SlotList<dyn TurnFilter>,
}

/// The components to load, in call order.
#[derive(Default)]
pub(crate) struct JudgeSet {
    pub(crate) judges: Vec<Arc<dyn Judge>>,
    pub(crate) groups: Vec<Arc<dyn GroupJudge>>,
    pub(crate) hints: Vec<Arc<dyn HintExtractor>>,
    pub(crate) filters: Vec<Arc<dyn TurnFilter>>,
}

impl JudgeSet {
    /// Selects the judges, group judges, hint extractors and filters among `plugins` and ignores the others.
    pub(crate) fn from_plugins(plugins: Vec<Plugin>) -> Self {
        let mut set = Self::default();
        for plugin in plugins {
            match plugin.kind() {
                Kind::Judge => set.judges.push(Arc::new(plugin)),
                Kind::GroupJudge => set.groups.push(Arc::new(plugin)),
                Kind::Hint => set.hints.push(Arc::new(plugin)),
                Kind::Filter => set.filters.push(Arc::new(plugin)),
                Kind::Loss | Kind::PairLoss | Kind::Advantage | Kind::Gate | Kind::Environment => {}
            }
        }
        set
    }
}

impl JudgeSlots {
    pub(crate) fn new(set: JudgeSet, status: JudgingStatus) -> Self {
        Self {
            lists: Arc::new(SlotLists {
                judges: SlotList::new(set.judges),
                groups: SlotList::new(set.groups),
                hints: SlotList::new(set.hints),
                filters: SlotList::new(set.filters),
            }),
            status,
        }
    }

    pub(crate) fn judges(&self) -> &SlotList<dyn Judge> {
        &self.lists.judges
    }

    pub(crate) fn groups(&self) -> &SlotList<dyn GroupJudge> {
        &self.lists.groups
    }

    pub(crate) fn hints(&self) -> &SlotList<dyn HintExtractor> {
        &self.lists.hints
    }

    pub(crate) fn filters(&self) -> &SlotList<dyn TurnFilter> {
        &self.lists.filters
    }

    /// Whether choices of a request are judged together. Stays true while the only group judge is unloaded.
    pub fn has_group_judges(&self) -> bool {
        !self.lists.groups.snapshot().is_empty()
    }

    /// Replaces the component with the same name and kind. It is called from the next turn on, with its failure count
    /// reset; running calls finish on the old one. Returns false and changes nothing when no component has its name.
    pub fn replace(&self, plugin: Plugin) -> bool {
        let name = plugin.name().to_owned();
        let replaced = match plugin.kind() {
            Kind::Judge => self.lists.judges.replace(Arc::new(plugin)),
            Kind::GroupJudge => self.lists.groups.replace(Arc::new(plugin)),
            Kind::Hint => self.lists.hints.replace(Arc::new(plugin)),
            Kind::Filter => self.lists.filters.replace(Arc::new(plugin)),
            Kind::Loss | Kind::PairLoss | Kind::Advantage | Kind::Gate | Kind::Environment => false,
        };
        self.clear_quarantine(&name, replaced)
    }

    #[cfg(test)]
    pub(crate) fn replace_judge(&self, judge: Arc<dyn Judge>) -> bool {
        let name = judge.name().to_owned();
        self.clear_quarantine(&name, self.lists.judges.replace(judge))
    }

    /// Takes a replaced or unloaded component off the quarantine list.
    fn clear_quarantine(&self, name: &str, replaced: bool) -> bool {
        if replaced {
            self.status
                .update(|s| s.quarantined.retain(|other| other != name));
        }
        replaced
    }

    /// Unloads the component with this name. From the next turn on it is not called and gives no verdict for `reason`
    /// (a word or two), which `detail` explains; running calls finish within their limits. The slot stays for
    /// [`JudgeSlots::replace`]. Returns false when no component has that name.
    pub fn unload(&self, name: &str, reason: &str, detail: &str) -> bool {
        let unloaded = UnloadReason {
            reason: reason.to_owned(),
            detail: detail.to_owned(),
        };
        let SlotLists {
            judges,
            groups,
            hints,
            filters,
        } = &*self.lists;
        let changed = judges.unload(name, &unloaded)
            | groups.unload(name, &unloaded)
            | hints.unload(name, &unloaded)
            | filters.unload(name, &unloaded);
        self.clear_quarantine(name, changed)
    }

    /// Name and digest of each component, in call order: judges, group judges, hint extractors, filters.
    pub fn digests(&self) -> Vec<(String, String)> {
        let SlotLists {
            judges,
            groups,
            hints,
            filters,
        } = &*self.lists;
        [
            judges.digests(),
            groups.digests(),
            hints.digests(),
            filters.digests(),
        ]
        .concat()
    }
}

fn new_slot<T: ?Sized>(component: Arc<T>, unloaded: Option<UnloadReason>) -> Arc<JudgeSlot<T>> {
    Arc::new(JudgeSlot {
        component,
        health: Health::default(),
        unloaded,
    })
}
