//! The questions that people with wishes ask: two parts, so that what is measured afterwards was never talked about.

use rand_chacha::ChaCha8Rng;

use super::spec::Topic;
use crate::seeds::choose;

/// Which questions are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// In the conversations.
    Talk,
    /// For measurement only.
    HeldOut,
}

/// The questions of a topic.
pub(super) fn questions(topic: Topic, part: Part) -> Vec<&'static str> {
    let lines = match (topic, part) {
        (Topic::Everyday, Part::Talk) => EVERYDAY,
        (Topic::Everyday, Part::HeldOut) => EVERYDAY_HELD_OUT,
        (Topic::Quantities, Part::Talk) => QUANTITIES,
        (Topic::Quantities, Part::HeldOut) => QUANTITIES_HELD_OUT,
        (Topic::Programs, Part::Talk) => PROGRAMS,
        (Topic::Programs, Part::HeldOut) => PROGRAMS_HELD_OUT,
    };
    lines.lines().filter(|line| !line.is_empty()).collect()
}

/// A greeting before a question, often none.
pub(super) fn greeting(rng: &mut ChaCha8Rng) -> &'static str {
    const GREETINGS: &[&str] = &[
        "",
        "",
        "",
        "Hi! ",
        "Hello. ",
        "Hey there, ",
        "Good evening. ",
        "One question: ",
        "Tell me, ",
        "I was wondering: ",
    ];
    choose::<&'static str>(rng, GREETINGS)
}

const EVERYDAY: &str = "
What can I make for dinner with rice and eggs?
Why do we have seasons?
How can I remember names better?
What is a nice name for a small dog?
How do I get candle wax out of a carpet?
What is the difference between a frog and a toad?
How can I wake up early without feeling tired?
What makes popcorn pop?
What is special about the planet Saturn?
How do I begin with yoga at home?
What is a good present for a ten-year-old?
Why do dogs wag their tails?
How does a kite stay in the air?
What should I take on a long train ride?
How do I keep basil alive in the kitchen?
What does the heart do?
How do I make a simple salad dressing?
Why is grass green?
What is a good way to learn to play the guitar?
How do I write a birthday card?
What is an earthquake?
How can I spend less on groceries?
Why do we laugh?
What is a thermometer for?
How do I stay calm before a speech?
What do ants do in winter?
How do I fix a dripping tap?
What is a bank loan?
How can I draw a simple face?
Why should I drink enough water?
What is a light snack for the afternoon?
How does a submarine go down?
What can children do at a picnic?
How do I get to know my neighbours?
What is a comet?
How do I teach my cat its name?
Why does metal feel cold?
What is a library good for?
How do I pick a ripe melon?
What causes fog?
How do I get grass stains out of jeans?
What is a fun hobby for two people?
Why do we sneeze?
How do I plan a small wedding?
What happens to old newspapers?
How does a fridge keep things cold?
What should I know before I adopt a rabbit?
How do I store fresh bread?
Why are clouds white?
What is a good habit for the evening?
How does a hot-air balloon rise?
What do I say when I forget someone's birthday?
How do I stop checking my phone all the time?
What is the sun made of?
How can I tidy a small room?
Why does chopped garlic smell so strong?
How do I grow strawberries on a balcony?
What should I check when I buy used shoes?
How do I learn to whistle?
Why do people keep diaries?
How do I make my coffee less bitter?
What is a glacier?
Why do birds fly south?
How can I help a friend who is sad?
What is the job of a judge?
How do I peel a boiled egg easily?
Why do stars twinkle?
What is a good first book for a child?
How do I wash a wool sweater?
What is a desert?
Why do we need sunscreen?
How does soap work?
What is a good rule for a family meeting?
How do I choose a bicycle helmet?
What do worms do for the garden?
Why is honey sticky?
How can I make my desk more comfortable?
What is a sundial?
How do I pack a suitcase well?
Why do some people snore?
What is a good question to ask at a job interview?
How do I make a paper boat?
What is the purpose of a passport?
Why do old books smell?
How can I save water at home?
What makes a good teacher?
";

const EVERYDAY_HELD_OUT: &str = "
What can I bake with three ripe bananas?
Why is the sea blue?
How do I become a better listener?
What is a good name for a boat?
How do I clean a burnt pot?
What is the difference between a hill and a mountain?
How can I fall asleep faster?
What makes bubbles in lemonade?
What is interesting about the planet Mars?
How do I start swimming again after years?
What is a good gift for a new neighbour?
Why do cats sleep so much?
How does a boomerang come back?
What should I pack for a weekend in the mountains?
How do I care for a cactus?
What do lungs do?
How do I cook soft rice?
Why do apples turn brown?
How can I learn ten new words a day?
How do I write a note to a teacher?
What is a tornado?
How can I save electricity?
Why do we blush?
What is a map legend?
How do I prepare for a driving test?
What do squirrels eat?
How do I hang a picture straight?
What is a budget?
How can I sing in tune?
Why is breakfast important?
What is a quick lunch for work?
How does a bridge carry so much weight?
What can I do with old jars?
How do I say no politely?
What is an eclipse?
How do I stop my dog from barking?
Why does wood float?
What is a lighthouse for?
How do I choose a pillow?
What causes wind?
How do I remove ink from a shirt?
What is a relaxing hobby?
Why do we get hiccups?
How do I organise a game night?
What is compost?
How does a microwave heat food?
What should I ask before I rent a flat?
How do I keep lettuce crisp?
Why is snow white?
What is a good way to end the day?
How do elevators work?
How do I apologise to a colleague?
How can I read more books?
What are rainbows made of?
How do I arrange flowers in a vase?
Why does pepper make us sneeze?
How do I plant a tree?
What is a fair way to share chores?
How do I learn to juggle?
Why do we shake hands?
How do I make tea for a guest?
What is an island?
Why do leaves fall in autumn?
What is a good way to thank a nurse?
";

const QUANTITIES: &str = "
How tall is a giraffe?
How far is the moon from the earth?
How hot should the oven be for bread?
How much does an elephant weigh?
How long is a blue whale?
How fast can a cheetah run?
How much water should I drink a day?
How deep is the deepest ocean?
How high is Mount Everest?
How warm should a bedroom be at night?
How much flour do I need for pancakes for four?
How long is a marathon?
How heavy is a bowling ball?
How big is a football field?
How cold is it at the North Pole in winter?
How wide is a usual door?
How far can a person walk in a day?
How much does a newborn baby weigh?
How tall is the Eiffel Tower?
How hot is the water in a bath?
How long is the Nile?
How fast does a passenger plane fly?
How much does a cat weigh?
How deep should I plant tulip bulbs?
How far apart should tomato plants be?
How much sugar goes into a jar of jam?
How high can a kangaroo jump?
How hot is a cup of coffee?
How long is a school bus?
How thick is the ice on a safe frozen lake?
How heavy is a full suitcase on a flight?
How far is it around the earth?
How much butter goes into a pound cake?
How tall is a grown man on average?
How large is a sheet of writing paper?
How fast does sound travel?
How much milk does a cow give a day?
How warm is the sea in summer?
How long is a snake such as a python?
How heavy is a bicycle?
";

const QUANTITIES_HELD_OUT: &str = "
How tall is an ostrich?
How far is the sun from the earth?
How hot should the oven be for a pizza?
How much does a horse weigh?
How long is a crocodile?
How fast can a dog run?
How deep is a swimming pool?
How high do airplanes fly?
How warm is a human body?
How much rice do I need for two people?
How long is a swimming race?
How heavy is a car?
How big is a tennis court?
How cold is a freezer?
How high is a kitchen table?
How far can a bicycle tour go in a day?
How much does a loaf of bread weigh?
How tall is the Statue of Liberty?
How hot is boiling water?
How long is the Amazon river?
How fast does a train go?
How much does a chicken weigh?
How deep is a well?
How long is a guitar?
";

const PROGRAMS: &str = "
Write a Python function that adds two numbers.
Write a Python function that reverses a string.
Write a Python function that finds the largest number of a list.
Write a Python function that counts the vowels of a word.
Write a Python function that tells whether a number is even.
Write a Python function that squares every number of a list.
Write a Python function that joins words with spaces.
Write a Python function that converts hours to minutes.
Write a Python function that removes duplicates from a list.
Write a Python function that computes the average of a list.
Write a Python function that reads a file and counts its lines.
Write a Python function that returns the first letter of each word.
Write a Python function that multiplies all numbers of a list.
Write a Python function that checks whether a word is a palindrome.
Write a Python function that sorts names by length.
Write a Python function that returns the last element of a list.
Write a Python function that counts how often a letter occurs.
Write a Python function that prints the numbers from one to ten.
Write a Python function that turns text into upper case.
Write a Python function that computes the area of a circle.
Write a Python function that merges two dictionaries.
Write a Python function that returns today's date as text.
Write a Python function that swaps two values.
Write a Python function that finds the shortest word.
Write a Python function that sums the digits of a number.
Write a Python function that returns the keys of a dictionary.
Write a Python function that rounds a price to two digits.
Write a Python function that filters out negative numbers.
Write a Python function that repeats a word several times.
Write a Python function that splits a sentence into words.
Write a Python function that computes a factorial.
Write a Python function that returns the absolute value.
Write a Python function that inserts a value at the start of a list.
Write a Python function that checks whether a list is empty.
Write a Python function that picks a random element.
Write a Python function that computes the length of a line of text.
";

const PROGRAMS_HELD_OUT: &str = "
Write a Python function that subtracts two numbers.
Write a Python function that reverses a list.
Write a Python function that finds the smallest number of a list.
Write a Python function that counts the words of a sentence.
Write a Python function that tells whether a number is odd.
Write a Python function that doubles every number of a list.
Write a Python function that joins two lists.
Write a Python function that converts minutes to seconds.
Write a Python function that removes spaces from a text.
Write a Python function that computes the median of a list.
Write a Python function that writes a text to a file.
Write a Python function that returns the last letter of each word.
Write a Python function that sums all numbers of a list.
Write a Python function that checks whether a year is a leap year.
Write a Python function that sorts numbers in descending order.
Write a Python function that returns the first element of a list.
Write a Python function that counts the elements of a list.
Write a Python function that prints a greeting.
Write a Python function that turns text into lower case.
Write a Python function that computes the area of a rectangle.
";

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const TOPICS: [Topic; 3] = [Topic::Everyday, Topic::Quantities, Topic::Programs];

    #[test]
    fn questions_are_distinct_and_their_parts_disjoint() {
        let mut seen = HashSet::new();
        for topic in TOPICS {
            for part in [Part::Talk, Part::HeldOut] {
                for question in questions(topic, part) {
                    assert!(question.ends_with(['?', '.']), "{question:?}");
                    assert!(seen.insert(question), "{question:?}");
                }
            }
        }
        let everyday = |part| questions(Topic::Everyday, part).len();
        assert!(everyday(Part::Talk) + everyday(Part::HeldOut) >= 120);
        assert!(everyday(Part::HeldOut) >= 64);
    }

    #[test]
    fn no_question_states_a_wish() {
        for topic in TOPICS {
            for part in [Part::Talk, Part::HeldOut] {
                for question in questions(topic, part) {
                    let question = question.to_lowercase();
                    for word in [
                        "short answer",
                        "one sentence",
                        "bullet",
                        "french",
                        "spanish",
                        "formal",
                        "metric",
                        "captain",
                        "robin",
                        "explain",
                    ] {
                        assert!(!question.contains(word), "{question:?}: {word}");
                    }
                }
            }
        }
    }
}
