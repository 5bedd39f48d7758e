//! Whether a plan fits, and what to lower if it does not.

use anyhow::{Result, bail};
use clawhost_cpu::HostMemory;

use super::{MemoryPlan, MemoryUse, Place, human_size};

impl MemoryPlan {
    /// Compares the plan with the available host memory, and with that of each GPU that runs the model; what is unknown is
    /// accepted.
    ///
    /// # Errors
    /// It does not fit: the error has the numbers, and the keys of the largest uses.
    pub(crate) fn check(&self, memory: Option<&HostMemory>) -> Result<()> {
        if let Some(memory) = memory {
            let limit = memory.limit.map_or(String::new(), |limit| {
                let limit = human_size(limit.limit);
                format!(" (of {limit} that the control group allows)")
            });
            self.check_place(Place::Host, memory.available, &limit)?;
        }
        self.gpus.iter().try_for_each(|gpu| {
            let limit = match self.gpus.len() {
                1 => gpu.limit.clone(),
                _ => format!(" on {}{}", gpu.device, gpu.limit),
            };
            self.check_place(Place::Device, gpu.available, &limit)
        })
    }

    fn check_place(&self, place: Place, available: u64, limit: &str) -> Result<()> {
        let (total, of) = match place {
            Place::Host => (self.total, "memory"),
            Place::Device => (self.device_total, "GPU memory"),
        };
        let bytes = usize::try_from(available).unwrap_or(usize::MAX);
        if total <= bytes {
            return Ok(());
        }
        let keys = self.keys_to_lower(place, total - bytes).join(", ");
        let lower = match keys.is_empty() {
            true => String::new(),
            false => format!("lower or change {keys}, or "),
        };
        bail!(
            "the model does not fit: it can take {} of {of}, and {} are available{limit}: {}; {lower}use a smaller model",
            human_size(total as u64),
            human_size(available),
            self.summary(place),
        );
    }

    /// The keys of the largest uses, as many as are needed to save this many bytes.
    fn keys_to_lower(&self, place: Place, mut bytes: usize) -> Vec<String> {
        let mut uses: Vec<&MemoryUse> = self.uses_of(place).collect();
        uses.retain(|one| !one.keys.is_empty());
        uses.sort_by_key(|one| std::cmp::Reverse(one.bytes));
        let mut keys = Vec::new();
        for one in uses {
            for key in &one.keys {
                if !keys.contains(key) {
                    keys.push(key.clone());
                }
            }
            bytes = bytes.saturating_sub(one.bytes);
            if bytes == 0 {
                break;
            }
        }
        keys
    }

    /// The uses of one memory.
    pub(crate) fn uses_of(&self, place: Place) -> impl Iterator<Item = &MemoryUse> {
        self.uses.iter().filter(move |one| one.place == place)
    }

    /// All uses of one memory on one line.
    pub(crate) fn summary(&self, place: Place) -> String {
        let uses = self.uses_of(place);
        let uses = uses.map(|one| format!("{} {}", one.name, human_size(one.bytes as u64)));
        uses.collect::<Vec<_>>().join(", ")
    }
}
