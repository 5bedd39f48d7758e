//! The plain style: one or two sentences like a student's, with words and numbers only. No markup, also not in the lead
//! of a rewritten reply.

use clawhost_evaluation::problems::phrase::{Slots, render_one};
use clawhost_evaluation::problems::{Problem, SeededRng};

/// A plain reply to `problem`.
pub(crate) fn reply(problem: &Problem, rng: &mut SeededRng) -> String {
    let slots = problem.clauses(rng);
    render_one(FORMS, &slots, rng)
}

/// A few words before a rewritten reply, with a trailing space.
pub(crate) fn lead(rng: &mut SeededRng) -> String {
    render_one(LEADS, &Slots::new(), rng) + " "
}

const LEADS: &[&str] = &[
    "Sorry.",
    "Sorry about that.",
    "Okay.",
    "No problem.",
    "Fair enough.",
    "My mistake.",
    "Got it.",
    "All right.",
    "You are right.",
];

/// As in the other style, the calculation comes before the result.
pub(super) const FORMS: &[&str] = &[
    "{Given}, so {outcome}.",
    "{Spoken}, so {outcome}.",
    "{Spoken}, and that means {outcome}.",
    "I {operate} and get {answer}, so {outcome}.",
    "(So|Here) you {operate} and (that gives|that makes|you get) {unit}.",
    "If you {operate}, you get {answer}, so {outcome}.",
    "We {operate} here, and since {spoken}, {outcome}.",
    "(It is|You take|I take) {formula}, and that is {unit}.",
    "Since {given}, I just {operate}. That (gives|makes) {unit}.",
    "(Well|Okay|Right|Hmm), {spoken}. (So|That means) {outcome}.",
    "(You|We) can just {operate}: {spoken}. (So|That means) {outcome}.",
    "I (worked it out|did it) by {operating}. {Spoken}, so {outcome}.",
    "Just {operate}, then (you have|you see that it is) {unit}.",
    "{Given}. {Spoken}, (which means|so|and that means) {outcome}.",
    "When I {operate} I get {answer}, (and that means|so) {outcome}.",
    "My answer (comes from|is from) {operating}. {Spoken}, so {outcome}.",
    "The way I see it, {spoken}, and so {outcome}.",
    "Here {given}. (After|By) {operating} I get {answer}, so {outcome}.",
    "By {operating} (you get|I get|we get) {answer}, so {outcome}.",
    "Because {given}, we {operate}, and {outcome}.",
    "In this one {given}. That is {equation}, so {outcome}.",
    "(For this|Here) I {operate}. (It comes to|I get|That leads to) {unit}.",
];
