//! Names and things of the word problems, and which are held out.
//!
//! Some names are made up from syllables, in the training split too: a model that copies only a hundred names memorises
//! them; thousands teach it to copy.

use std::borrow::Cow;

use crate::rng::CorpusRng;

/// Training or held-out split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// Used for pretraining.
    Train,
    /// Used for measurement: other names, things and number pairs.
    HeldOut,
}

/// A countable thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Thing {
    pub(crate) one: Cow<'static, str>,
    pub(crate) many: Cow<'static, str>,
    pub(crate) food: bool,
}

const fn thing(one: &'static str, many: &'static str) -> Thing {
    Thing {
        one: Cow::Borrowed(one),
        many: Cow::Borrowed(many),
        food: false,
    }
}

const fn food(one: &'static str, many: &'static str) -> Thing {
    Thing {
        one: Cow::Borrowed(one),
        many: Cow::Borrowed(many),
        food: true,
    }
}

const TRAIN_NAMES: &[&str] = &[
    "Tom", "Ana", "Ben", "Mia", "Sam", "Lea", "Max", "Eva", "Leo", "Zoe", "Jon", "Ivy", "Anna",
    "Paul", "Lucy", "Jack", "Emma", "Omar", "Nina", "Carl", "Rosa", "Hugo", "Lily", "Adam", "Ruth",
    "Alex", "Sara", "Finn", "Maya", "Noah", "Clara", "David", "Elena", "Frank", "Grace", "Henry",
    "Irene", "James", "Karen", "Louis", "Maria", "Nadia", "Oscar", "Petra", "Ravi", "Sofia",
    "Tariq", "Vera", "Will", "Yara", "Aisha", "Bruno", "Chloe", "Diego", "Erik", "Fatima", "Gina",
    "Hana", "Igor", "Julia", "Kofi", "Laura", "Marco", "Nora", "Olga", "Priya", "Kim", "Simon",
    "Tina", "Uma", "Victor", "Wendy", "Amir", "Bella", "Cora", "Daniel", "Edith", "Felix", "Greta",
    "Ines", "Jonas", "Kira", "Linus", "Mona", "Nils", "Paula", "Rita", "Stefan", "Thea", "Ursula",
    "Viktor", "Yusuf", "Peter", "Mary", "John", "Lisa", "Mark", "Jane", "Kate", "Luke", "Amy",
    "Dan", "Sue", "Bob", "Joe", "Meg",
];

const HELD_OUT_NAMES: &[&str] = &[
    "Milo", "Freya", "Tobias", "Selma", "Arjun", "Odette", "Callum", "Zainab", "Rufus", "Leona",
    "Gareth", "Ingrid", "Pablo", "Marta", "Dario", "Nell",
];

const TRAIN_THINGS: &[Thing] = &[
    food("apple", "apples"),
    food("orange", "oranges"),
    food("cookie", "cookies"),
    food("egg", "eggs"),
    food("banana", "bananas"),
    food("pear", "pears"),
    food("plum", "plums"),
    food("cake", "cakes"),
    food("grape", "grapes"),
    food("carrot", "carrots"),
    food("muffin", "muffins"),
    food("peach", "peaches"),
    food("sweet", "sweets"),
    food("cherry", "cherries"),
    food("nut", "nuts"),
    food("tomato", "tomatoes"),
    food("sandwich", "sandwiches"),
    food("pancake", "pancakes"),
    food("lemon", "lemons"),
    food("potato", "potatoes"),
    food("berry", "berries"),
    food("biscuit", "biscuits"),
    thing("book", "books"),
    thing("coin", "coins"),
    thing("pen", "pens"),
    thing("card", "cards"),
    thing("shell", "shells"),
    thing("stamp", "stamps"),
    thing("ball", "balls"),
    thing("cup", "cups"),
    thing("pencil", "pencils"),
    thing("marble", "marbles"),
    thing("sticker", "stickers"),
    thing("button", "buttons"),
    thing("flower", "flowers"),
    thing("stone", "stones"),
    thing("toy", "toys"),
    thing("key", "keys"),
    thing("ticket", "tickets"),
    thing("balloon", "balloons"),
    thing("bead", "beads"),
    thing("leaf", "leaves"),
    thing("candle", "candles"),
    thing("photo", "photos"),
    thing("letter", "letters"),
    thing("ribbon", "ribbons"),
    thing("kite", "kites"),
    thing("plate", "plates"),
    thing("spoon", "spoons"),
    thing("brush", "brushes"),
    thing("crayon", "crayons"),
    thing("feather", "feathers"),
    thing("hat", "hats"),
    thing("sock", "socks"),
    thing("rock", "rocks"),
    thing("block", "blocks"),
    thing("comic", "comics"),
    thing("poster", "posters"),
    thing("plant", "plants"),
    thing("seed", "seeds"),
    thing("magnet", "magnets"),
    thing("puzzle", "puzzles"),
    thing("bottle", "bottles"),
    thing("badge", "badges"),
    thing("rose", "roses"),
    thing("tile", "tiles"),
    thing("nail", "nails"),
    thing("envelope", "envelopes"),
    thing("map", "maps"),
    thing("bell", "bells"),
    food("onion", "onions"),
    food("radish", "radishes"),
    food("pepper", "peppers"),
    food("mango", "mangoes"),
    food("fig", "figs"),
    food("date", "dates"),
    food("olive", "olives"),
    food("pickle", "pickles"),
    food("roll", "rolls"),
    food("bagel", "bagels"),
    food("bun", "buns"),
    food("cupcake", "cupcakes"),
    food("tart", "tarts"),
    food("sausage", "sausages"),
    food("dumpling", "dumplings"),
    food("pretzel", "pretzels"),
    food("donut", "donuts"),
    food("lollipop", "lollipops"),
    food("mint", "mints"),
    food("walnut", "walnuts"),
    food("almond", "almonds"),
    food("peanut", "peanuts"),
    food("coconut", "coconuts"),
    food("pumpkin", "pumpkins"),
    food("pie", "pies"),
    food("burger", "burgers"),
    food("pizza", "pizzas"),
    food("snack", "snacks"),
    food("cracker", "crackers"),
    thing("lamp", "lamps"),
    thing("chair", "chairs"),
    thing("door", "doors"),
    thing("window", "windows"),
    thing("clock", "clocks"),
    thing("phone", "phones"),
    thing("camera", "cameras"),
    thing("bike", "bikes"),
    thing("car", "cars"),
    thing("boat", "boats"),
    thing("train", "trains"),
    thing("truck", "trucks"),
    thing("plane", "planes"),
    thing("wheel", "wheels"),
    thing("rope", "ropes"),
    thing("chain", "chains"),
    thing("hook", "hooks"),
    thing("net", "nets"),
    thing("ring", "rings"),
    thing("crown", "crowns"),
    thing("bow", "bows"),
    thing("arrow", "arrows"),
    thing("sword", "swords"),
    thing("shield", "shields"),
    thing("flag", "flags"),
    thing("drum", "drums"),
    thing("flute", "flutes"),
    thing("guitar", "guitars"),
    thing("violin", "violins"),
    thing("piano", "pianos"),
    thing("song", "songs"),
    thing("story", "stories"),
    thing("poem", "poems"),
    thing("page", "pages"),
    thing("notebook", "notebooks"),
    thing("folder", "folders"),
    thing("file", "files"),
    thing("stapler", "staplers"),
    thing("ruler", "rulers"),
    thing("eraser", "erasers"),
    thing("marker", "markers"),
    thing("pin", "pins"),
    thing("clip", "clips"),
    thing("needle", "needles"),
    thing("thread", "threads"),
    thing("glove", "gloves"),
    thing("coat", "coats"),
    thing("shirt", "shirts"),
    thing("shoe", "shoes"),
    thing("boot", "boots"),
    thing("belt", "belts"),
    thing("cap", "caps"),
    thing("mask", "masks"),
    thing("doll", "dolls"),
    thing("robot", "robots"),
    thing("puppet", "puppets"),
    thing("teddy", "teddies"),
    thing("domino", "dominos"),
    thing("token", "tokens"),
    thing("trophy", "trophies"),
    thing("towel", "towels"),
    thing("pillow", "pillows"),
    thing("blanket", "blankets"),
    thing("sheet", "sheets"),
    thing("rug", "rugs"),
    thing("basketball", "basketballs"),
    thing("football", "footballs"),
    thing("racket", "rackets"),
    thing("bat", "bats"),
    thing("stick", "sticks"),
    thing("branch", "branches"),
    thing("log", "logs"),
    thing("twig", "twigs"),
    thing("pinecone", "pinecones"),
    thing("worm", "worms"),
    thing("beetle", "beetles"),
    thing("ant", "ants"),
    thing("bee", "bees"),
    thing("butterfly", "butterflies"),
    thing("bird", "birds"),
    thing("duck", "ducks"),
    thing("hen", "hens"),
    thing("chick", "chicks"),
    thing("cow", "cows"),
    thing("pig", "pigs"),
    thing("goat", "goats"),
    thing("horse", "horses"),
    thing("rabbit", "rabbits"),
    thing("hamster", "hamsters"),
    thing("cat", "cats"),
    thing("dog", "dogs"),
    thing("frog", "frogs"),
    thing("turtle", "turtles"),
    thing("snail", "snails"),
    thing("crab", "crabs"),
    thing("star", "stars"),
    thing("planet", "planets"),
    thing("rocket", "rockets"),
    thing("brick", "bricks"),
    thing("plank", "planks"),
    thing("screw", "screws"),
    thing("bolt", "bolts"),
    thing("hammer", "hammers"),
    thing("saw", "saws"),
    thing("shovel", "shovels"),
    thing("rake", "rakes"),
    thing("pot", "pots"),
    thing("pan", "pans"),
    thing("fork", "forks"),
    thing("bowl", "bowls"),
    thing("mug", "mugs"),
    thing("jug", "jugs"),
    thing("tin", "tins"),
    thing("can", "cans"),
    thing("barrel", "barrels"),
    thing("lid", "lids"),
    thing("spring", "springs"),
    thing("battery", "batteries"),
    thing("bulb", "bulbs"),
    thing("cable", "cables"),
    thing("plug", "plugs"),
    thing("switch", "switches"),
    thing("mirror", "mirrors"),
    thing("comb", "combs"),
    thing("soap", "soaps"),
    thing("sponge", "sponges"),
    thing("bubble", "bubbles"),
    thing("cloud", "clouds"),
    thing("raindrop", "raindrops"),
    thing("snowball", "snowballs"),
    thing("icicle", "icicles"),
    thing("painting", "paintings"),
    thing("drawing", "drawings"),
    thing("mosaic", "mosaics"),
    thing("statue", "statues"),
    thing("vase", "vases"),
    thing("candlestick", "candlesticks"),
    thing("ladder", "ladders"),
    thing("bridge", "bridges"),
    thing("tower", "towers"),
    thing("castle", "castles"),
    thing("tent", "tents"),
];

const HELD_OUT_THINGS: &[Thing] = &[
    food("acorn", "acorns"),
    food("waffle", "waffles"),
    food("melon", "melons"),
    food("turnip", "turnips"),
    thing("lantern", "lanterns"),
    thing("pebble", "pebbles"),
    thing("medal", "medals"),
    thing("whistle", "whistles"),
    thing("postcard", "postcards"),
    thing("scarf", "scarves"),
];

/// Containers, singular and plural.
pub(crate) const CONTAINERS: &[(&str, &str)] = &[
    ("box", "boxes"),
    ("bag", "bags"),
    ("jar", "jars"),
    ("basket", "baskets"),
    ("tray", "trays"),
    ("shelf", "shelves"),
    ("packet", "packets"),
    ("bucket", "buckets"),
    ("drawer", "drawers"),
    ("crate", "crates"),
];

/// Places.
pub(crate) const PLACES: &[&str] = &[
    "on the table",
    "in the basket",
    "on the shelf",
    "in the box",
    "in the kitchen",
    "in the bag",
    "in the drawer",
    "on the desk",
    "in the garden",
    "in the classroom",
    "on the bench",
    "in the shop",
];

/// Days and times of a story.
pub(crate) const DAYS: &[&str] = &[
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

const ONSETS: &[&str] = &[
    "B", "D", "F", "G", "H", "J", "K", "L", "M", "N", "P", "R", "S", "T", "V", "Z", "Br", "Kr",
    "Tr", "St", "Sh",
];
const VOWELS: &[&str] = &["a", "e", "i", "o", "u", "ai", "ea"];
const MIDDLES: &[&str] = &[
    "l", "r", "n", "m", "v", "d", "t", "k", "s", "b", "nd", "rl", "lm", "st",
];
const ENDS: &[&str] = &["", "", "n", "s", "l", "r", "x", "ck", "th"];

/// Share of made-up names in training.
const MADE_UP_NAMES: f64 = 0.3;
/// Share of made-up things in training.
const MADE_UP_THINGS: f64 = 0.35;

/// A name of the split; in training sometimes made up.
pub(crate) fn name(rng: &mut CorpusRng, split: Split) -> String {
    match split {
        Split::HeldOut => rng.word(HELD_OUT_NAMES).to_owned(),
        Split::Train if rng.chance(MADE_UP_NAMES) => loop {
            let made = made_up(rng);
            if !HELD_OUT_NAMES.contains(&made.as_str()) {
                break made;
            }
        },
        Split::Train => rng.word(TRAIN_NAMES).to_owned(),
    }
}

/// A word of two syllables with a capital.
fn made_up(rng: &mut CorpusRng) -> String {
    [ONSETS, VOWELS, MIDDLES, VOWELS, ENDS]
        .map(|part| rng.word(part))
        .concat()
}

/// A name other than `other`.
pub(crate) fn another_name(rng: &mut CorpusRng, split: Split, other: &str) -> String {
    loop {
        let name = name(rng, split);
        if name != other {
            return name;
        }
    }
}

/// A thing of the split; in training sometimes made up.
pub(crate) fn draw_thing(rng: &mut CorpusRng, split: Split) -> Thing {
    let things = match split {
        Split::HeldOut => HELD_OUT_THINGS,
        Split::Train if rng.chance(MADE_UP_THINGS) => return made_up_thing(rng),
        Split::Train => TRAIN_THINGS,
    };
    rng.pick(things)
        .cloned()
        .unwrap_or(thing("thing", "things"))
}

/// Syllables, or two things in one word, such as "lampstone".
fn made_up_thing(rng: &mut CorpusRng) -> Thing {
    loop {
        let one = if rng.chance(0.4) {
            let half = |rng: &mut CorpusRng| rng.pick(TRAIN_THINGS).map_or("", |t| &*t.one);
            half(rng).to_owned() + half(rng)
        } else {
            made_up(rng).to_lowercase()
        };
        let many = match one.ends_with(['s', 'x', 'h', 'y']) {
            true => format!("{}es", one.trim_end_matches('y')),
            false => format!("{one}s"),
        };
        if !HELD_OUT_THINGS.iter().any(|held| held.many == many) {
            return Thing {
                one: one.into(),
                many: many.into(),
                food: rng.chance(0.3),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_splits_share_no_word() {
        let draws = |split| {
            let mut rng = CorpusRng::new(3, 0);
            (0..20_000)
                .map(|_| (name(&mut rng, split), draw_thing(&mut rng, split).many))
                .unzip::<_, _, HashSet<_>, HashSet<_>>()
        };
        let (train_names, train_things) = draws(Split::Train);
        let (held_names, held_things) = draws(Split::HeldOut);
        assert!(train_names.is_disjoint(&held_names));
        assert!(train_things.is_disjoint(&held_things));
        assert_eq!(held_names.len(), HELD_OUT_NAMES.len());
        assert!(
            train_things.len() > 1000,
            "made-up things are many: {}",
            train_things.len()
        );
        assert!(
            train_names.len() > 1000,
            "made-up names are many: {}",
            train_names.len()
        );
    }
}
