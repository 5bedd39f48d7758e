//! Generates conversation number `index` of a recipe: draws domain, length and noise.

use clawhost_evaluation::problems::{SeededRng, Split};

use crate::corpus::conversation::{Conversation, Message, Role, World};
use crate::corpus::noise::{add_client_noise, system_message};
use crate::corpus::recipe::Recipe;
use crate::corpus::{grading, homework, small_talk};

impl Recipe {
    /// Conversation `index` of the training split. Depends only on the recipe and the index, so any part of the corpus
    /// can be generated independently.
    pub fn conversation(&self, index: u64) -> Conversation {
        self.draw(Split::Train, index)
    }

    /// Conversation `index` of the held-out split, with other draws, names, things and number pairs.
    pub fn held_out(&self, index: u64) -> Conversation {
        self.draw(Split::HeldOut, index)
    }

    fn draw(&self, split: Split, index: u64) -> Conversation {
        let stream = (index << 1) | u64::from(split == Split::HeldOut);
        let mut rng = SeededRng::new(self.seed, stream);
        let rng = &mut rng;
        let world = rng.weighted(&[
            (self.mixture.homework, World::Homework),
            (self.mixture.grading, World::Grading),
            (self.mixture.small_talk, World::SmallTalk),
        ]);
        let turns = rng.weighted(&[(0.22, 1), (0.38, 2), (0.25, 3), (0.15, 4)]);
        let mut messages = match world {
            World::Homework => homework::talk(rng, split, &self.homework, turns),
            World::Grading => grading::talk(rng, split, &self.grading, turns),
            World::SmallTalk => small_talk::talk(rng, split, &self.homework, turns),
        };
        for message in messages.iter_mut().filter(|m| m.role == Role::User) {
            if rng.chance(self.noise.stamp) {
                message.content = add_client_noise(&message.content, rng);
            }
        }
        if rng.chance(self.noise.system) {
            messages.insert(0, Message::system(system_message(rng)));
        }
        Conversation { world, messages }
    }
}
