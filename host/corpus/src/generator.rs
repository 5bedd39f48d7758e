//! From a recipe and an index to a conversation: the draw of world, length and surroundings.

use crate::conversation::{Conversation, Message, Role, World};
use crate::dice::Dice;
use crate::noise::{stamped, system_message};
use crate::recipe::Recipe;
use crate::words::Split;
use crate::{grading, homework, small_talk};

impl Recipe {
    /// Conversation `index` of the training split: a function of the recipe and the index alone,
    /// so any part of the corpus can be made on its own and in any order.
    pub fn conversation(&self, index: u64) -> Conversation {
        self.draw(Split::Train, index)
    }

    /// Conversation `index` of the held-out split: other draws, names, things and number pairs.
    pub fn held_out(&self, index: u64) -> Conversation {
        self.draw(Split::HeldOut, index)
    }

    fn draw(&self, split: Split, index: u64) -> Conversation {
        let stream = (index << 1) | u64::from(split == Split::HeldOut);
        let mut dice = Dice::new(self.seed, stream);
        let dice = &mut dice;
        let world = dice
            .weighted(&[
                (self.mixture.homework, World::Homework),
                (self.mixture.grading, World::Grading),
                (self.mixture.small_talk, World::SmallTalk),
            ])
            .unwrap_or(World::Homework);
        let turns = dice
            .weighted(&[(0.22, 1), (0.38, 2), (0.25, 3), (0.15, 4)])
            .unwrap_or(2);
        let mut messages = match world {
            World::Homework => homework::talk(dice, split, &self.homework, turns),
            World::Grading => grading::talk(dice, split, &self.grading, turns),
            World::SmallTalk => small_talk::talk(dice, split, &self.homework, turns),
        };
        for message in messages.iter_mut().filter(|m| m.role == Role::User) {
            if dice.chance(self.noise.stamp) {
                message.content = stamped(&message.content, dice);
            }
        }
        if dice.chance(self.noise.system) {
            messages.insert(0, Message::system(system_message(dice)));
        }
        Conversation { world, messages }
    }
}
