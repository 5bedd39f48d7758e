//! Fair share between users, measured in tokens run: among requests of one priority, the prompt of the user with the
//! least usage goes next.
//!
//! This is fair queueing by virtual time (Sheng et al. 2024, "Fairness in Serving Large Language Models"): a user who
//! returns after idling starts at the usage of the least-served active user, so idle time earns no credit.

use std::collections::{HashMap, HashSet};

use super::sequence::User;

/// Number of inactive users whose usage is tracked.
const MAX_TRACKED_USERS: usize = 4096;

/// Tokens run per user.
#[derive(Debug, Default)]
pub(super) struct FairShare {
    used: HashMap<User, u64>,
    /// Usage of the least-served active user.
    floor: u64,
}

impl FairShare {
    /// Tokens charged to this user, at least the floor.
    pub(super) fn usage(&self, user: &User) -> u64 {
        self.used.get(user).copied().unwrap_or(0).max(self.floor)
    }

    /// Charges `tokens` to a user.
    pub(super) fn charge(&mut self, user: &User, tokens: usize) {
        let used = self.usage(user) + tokens as u64;
        self.used.insert(user.clone(), used);
    }

    /// Raises the floor to the least-served of the active users (`present`) and drops the users who are not above it.
    pub(super) fn advance<'a>(&mut self, present: impl Iterator<Item = &'a User> + Clone) {
        match present.clone().map(|user| self.usage(user)).min() {
            Some(floor) => self.floor = floor,
            None => *self = Self::default(),
        }
        let floor = self.floor;
        self.used.retain(|_, used| *used > floor);
        if self.used.len() > MAX_TRACKED_USERS {
            let present: HashSet<&User> = present.collect();
            self.used.retain(|user, _| present.contains(user));
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
    fn idle_users_earn_no_credit_and_usage_is_kept() {
        let (one, two, three) = (user("one"), user("two"), user("three"));
        let mut shares = FairShare::default();
        shares.charge(&one, 100);
        shares.charge(&two, 30);
        shares.advance([&one, &two].into_iter());
        // A new user starts at the usage of the least-served one.
        assert_eq!(
            [&one, &two, &three].map(|user| shares.usage(user)),
            [100, 30, 30]
        );
        shares.advance([&two, &three].into_iter());
        shares.charge(&three, 10);
        shares.charge(&two, 20);
        shares.advance([&two, &three].into_iter());
        assert_eq!(
            [&one, &two, &three].map(|user| shares.usage(user)),
            [100, 50, 40]
        );
        shares.advance(std::iter::empty());
        assert_eq!(shares.usage(&one), 0);
    }

    #[test]
    fn number_of_tracked_users_is_bounded() {
        let mut shares = FairShare::default();
        for number in 0..MAX_TRACKED_USERS + 10 {
            shares.charge(&user(&number.to_string()), 5);
        }
        let present = user("0");
        shares.charge(&present, 5);
        let fresh = user("fresh");
        shares.advance([&present, &fresh].into_iter());
        assert_eq!(shares.used.len(), 1);
        assert_eq!(shares.usage(&present), 10);
    }
}
