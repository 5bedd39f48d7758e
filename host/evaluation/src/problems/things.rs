//! Things, containers and places of the problems, and which things are held out.

use std::borrow::Cow;

use super::names::made_up;
use super::rng::SeededRng;
use super::split::Split;

/// A countable thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Thing {
    pub(super) one: Cow<'static, str>,
    pub(super) many: Cow<'static, str>,
    pub(super) food: bool,
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
pub(super) const CONTAINERS: &[(&str, &str)] = &[
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
pub(super) const PLACES: &[&str] = &[
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
pub(super) const DAYS: &[&str] = &[
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

/// Share of made-up things in training.
const MADE_UP_THINGS: f64 = 0.35;

/// A thing of the split; in training sometimes made up.
pub(super) fn draw_thing(rng: &mut SeededRng, split: Split) -> Thing {
    let things = match split {
        Split::HeldOut => HELD_OUT_THINGS,
        Split::Train if rng.chance(MADE_UP_THINGS) => return made_up_thing(rng),
        Split::Train => TRAIN_THINGS,
    };
    rng.pick(things).clone()
}

/// Syllables, or two things in one word, such as "lampstone".
fn made_up_thing(rng: &mut SeededRng) -> Thing {
    loop {
        let one = if rng.chance(0.4) {
            let half = |rng: &mut SeededRng| &*rng.pick(TRAIN_THINGS).one;
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
    fn the_splits_share_no_thing() {
        let draws = |split| {
            let mut rng = SeededRng::new(3, 0);
            (0..20_000)
                .map(|_| draw_thing(&mut rng, split).many)
                .collect::<HashSet<_>>()
        };
        let (train, held) = (draws(Split::Train), draws(Split::HeldOut));
        assert!(train.is_disjoint(&held));
        assert!(
            train.len() > 1000,
            "made-up things are many: {}",
            train.len()
        );
    }
}
