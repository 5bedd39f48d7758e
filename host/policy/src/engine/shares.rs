//! What was run for each user lately, in tokens: among equals the prompt of the user who got least goes next.
//!
//! This is fair queueing by virtual time (Sheng et al. 2024, "Fairness in serving large language models"): who comes
//! back after a pause begins where the least served of those present stands, so that nobody saves up.

use std::collections::{HashMap, HashSet};

use super::sequence::User;

/// Users that are remembered beside those present.
const REMEMBERED: usize = 4096;

/// Tokens run for each user.
#[derive(Debug, Default)]
pub(super) struct Shares {
    spent: HashMap<User, u64>,
    /// What the least served of those present got.
    floor: u64,
}

impl Shares {
    /// What this user got.
    pub(super) fn of(&self, user: &User) -> u64 {
        self.spent.get(user).copied().unwrap_or(0).max(self.floor)
    }

    /// Counts `tokens` for a user.
    pub(super) fn charge(&mut self, user: &User, tokens: usize) {
        let spent = self.of(user) + tokens as u64;
        self.spent.insert(user.clone(), spent);
    }

    /// Brings the floor up to those present and forgets who is not above it.
    pub(super) fn settle<'a>(&mut self, present: impl Iterator<Item = &'a User> + Clone) {
        match present.clone().map(|user| self.of(user)).min() {
            Some(floor) => self.floor = floor,
            None => *self = Self::default(),
        }
        let floor = self.floor;
        self.spent.retain(|_, spent| *spent > floor);
        if self.spent.len() > REMEMBERED {
            let present: HashSet<&User> = present.collect();
            self.spent.retain(|user, _| present.contains(user));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> User {
        Some(name.into())
    }

    #[test]
    fn nobody_saves_up_and_a_debt_is_remembered() {
        let (one, two, three) = (user("one"), user("two"), user("three"));
        let mut shares = Shares::default();
        shares.charge(&one, 100);
        shares.charge(&two, 30);
        shares.settle([&one, &two].into_iter());
        // Who comes anew stands where the least served one does.
        assert_eq!(
            [&one, &two, &three].map(|user| shares.of(user)),
            [100, 30, 30]
        );
        shares.settle([&two, &three].into_iter());
        shares.charge(&three, 10);
        shares.charge(&two, 20);
        shares.settle([&two, &three].into_iter());
        assert_eq!(
            [&one, &two, &three].map(|user| shares.of(user)),
            [100, 50, 40]
        );
        shares.settle(std::iter::empty());
        assert_eq!(shares.of(&one), 0);
    }

    #[test]
    fn only_so_many_users_are_remembered() {
        let mut shares = Shares::default();
        for number in 0..REMEMBERED + 10 {
            shares.charge(&user(&number.to_string()), 5);
        }
        let present = user("0");
        shares.charge(&present, 5);
        let fresh = user("fresh");
        shares.settle([&present, &fresh].into_iter());
        assert_eq!(shares.spent.len(), 1);
        assert_eq!(shares.of(&present), 10);
    }
}
