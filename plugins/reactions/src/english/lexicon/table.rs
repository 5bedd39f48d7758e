//! All words of the classes and of praise and blame in one hash table, built at compile time: a word is looked up once,
//! however many lists contain it.

use super::classes::{Class, LISTS};
use super::words::{BLAME, PRAISE};
use crate::words::{Classes, hash};

/// The table entry of a word.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    word: &'static str,
    classes: Classes,
    /// The number of its list of praise, from 1; 0 for none.
    praise: u8,
    /// The number of its list of blame, likewise.
    blame: u8,
}

impl Entry {
    const NONE: Entry = Entry {
        word: "",
        classes: 0,
        praise: 0,
        blame: 0,
    };

    pub(super) fn classes(&self) -> Classes {
        self.classes
    }

    /// The list of praise that contains it.
    pub(super) fn praise(&self) -> Option<usize> {
        usize::from(self.praise).checked_sub(1)
    }

    /// The list of blame that contains it.
    pub(super) fn blame(&self) -> Option<usize> {
        usize::from(self.blame).checked_sub(1)
    }
}

/// Slots of the table: twice the number of words, so that a lookup is short.
const PLACES: usize = 2048;
/// Maximum number of words.
const WORDS: usize = 1024;

struct Table {
    /// For each slot, the index in `entries` of the word whose hash leads to it, from 1; 0 for none. Collisions use the next
    /// slot.
    places: [u16; PLACES],
    entries: [Entry; WORDS],
}

#[allow(long_running_const_eval, reason = "the lists are long, and they end")]
static TABLE: Table = read();

const fn read() -> Table {
    let mut table = Table {
        places: [0; PLACES],
        entries: [Entry::NONE; WORDS],
    };
    let mut used = 0;
    let mut list = 0;
    while list < LISTS.len() {
        let (class, words) = LISTS[list];
        let mark = Entry {
            classes: class.bit(),
            ..Entry::NONE
        };
        used = add(&mut table, used, words, mark);
        list += 1;
    }
    let mut list = 0;
    while list < PRAISE.len() {
        let mark = Entry {
            classes: Class::Good.bit(),
            praise: list as u8 + 1,
            ..Entry::NONE
        };
        used = add(&mut table, used, PRAISE[list].1, mark);
        list += 1;
    }
    let mut list = 0;
    while list < BLAME.len() {
        let mark = Entry {
            classes: Class::Bad.bit(),
            blame: list as u8 + 1,
            ..Entry::NONE
        };
        used = add(&mut table, used, BLAME[list].1, mark);
        list += 1;
    }
    table
}

/// Applies `mark` to the entry of each word and returns the number of entries.
const fn add(table: &mut Table, used: usize, words: &'static str, mark: Entry) -> usize {
    let mut used = used;
    let mut rest = words;
    while !rest.is_empty() {
        let (word, after) = first_word(rest);
        rest = after;
        let mut place = hash(word) as usize % PLACES;
        while table.places[place] != 0
            && !same(table.entries[table.places[place] as usize - 1].word, word)
        {
            place = (place + 1) % PLACES;
        }
        if table.places[place] == 0 {
            table.entries[used].word = word;
            used += 1;
            table.places[place] = used as u16;
        }
        let entry = &mut table.entries[table.places[place] as usize - 1];
        entry.classes |= mark.classes;
        // If a word is in several lists, the first one applies.
        if entry.praise == 0 {
            entry.praise = mark.praise;
        }
        if entry.blame == 0 {
            entry.blame = mark.blame;
        }
    }
    used
}

/// Splits off the first word, which ends at a space.
const fn first_word(text: &str) -> (&str, &str) {
    let bytes = text.as_bytes();
    let mut end = 0;
    while end < bytes.len() && bytes[end] != b' ' {
        end += 1;
    }
    let (word, rest) = text.split_at(end);
    (
        word,
        if rest.is_empty() {
            rest
        } else {
            rest.split_at(1).1
        },
    )
}

const fn same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// Looks up a word; none if it is in no list.
pub(super) fn entry(word: &str) -> Option<&'static Entry> {
    let start = hash(word) as usize % PLACES;
    (start..PLACES)
        .chain(0..start)
        .map_while(|place| usize::from(*TABLE.places.get(place)?).checked_sub(1))
        .filter_map(|at| TABLE.entries.get(at))
        .find(|entry| entry.word == word)
}
