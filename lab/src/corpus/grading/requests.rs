//! Messages of a teacher: requests for a comment, and redo requests.

use clawhost_evaluation::problems::phrase::{Slots, render_one};
use clawhost_evaluation::problems::{SeededRng, Submission};

use super::comments::Manner;

/// A first message that asks for a comment on `grading`.
pub(crate) fn ask(grading: &Submission, rng: &mut SeededRng) -> String {
    let layouts = match grading {
        Submission { is_check: true, .. } => CHECKS,
        Submission { student, .. } if student.is_empty() => UNNAMED_LAYOUTS,
        _ => LAYOUTS,
    };
    render_layout(layouts, grading, rng)
}

/// Asks for the next comment in an ongoing conversation.
pub(crate) fn ask_next(grading: &Submission, rng: &mut SeededRng) -> String {
    let layouts = match grading {
        Submission { is_check: true, .. } => NEXT_CHECKS,
        Submission { student, .. } if student.is_empty() => UNNAMED_NEXT_LAYOUTS,
        _ => NEXT_LAYOUTS,
    };
    render_layout(layouts, grading, rng)
}

fn render_layout(layouts: &[&str], grading: &Submission, rng: &mut SeededRng) -> String {
    let mut slots = Slots::new()
        .with("problem", grading.problem.text())
        .with("work", grading.work())
        .with("student", &*grading.student);
    let please = render_one(PLEASES, &slots, rng);
    slots.set("please", please);
    render_one(layouts, &slots, rng)
}

/// A request for a manner, as a hint or an instruction.
pub(crate) fn want(manner: Manner, rng: &mut SeededRng) -> String {
    let phrases = match manner {
        Manner::Cold => WANT_COLD,
        Manner::Kind => WANT_KIND,
        Manner::Thorough => WANT_THOROUGH,
    };
    render_one(phrases, &warm_slots(rng), rng)
}

/// A request to redo the last comment in another manner.
pub(crate) fn redo(manner: Manner, rng: &mut SeededRng) -> String {
    let phrases = match manner {
        Manner::Cold => REDO_COLD,
        Manner::Kind => REDO_KIND,
        Manner::Thorough => REDO_THOROUGH,
    };
    render_one(phrases, &warm_slots(rng), rng)
}

fn warm_slots(rng: &mut SeededRng) -> Slots {
    let none = Slots::new();
    Slots::new()
        .with("warm", render_one(WARM, &none, rng))
        .with("precise", render_one(PRECISE, &none, rng))
}

const WARM: &[&str] = &[
    "kind",
    "friendly",
    "nice",
    "warm",
    "encouraging",
    "gentle",
    "positive",
    "supportive",
    "cheerful",
    "patient",
    "caring",
];
const PRECISE: &[&str] = &[
    "name the step that went wrong",
    "say which step is wrong",
    "say exactly what went wrong",
    "be specific",
    "point to the step",
    "tell the student where the mistake is",
    "say what was done well",
    "name the step",
    "mention what the student did",
    "talk about the calculation",
    "tell which part is good",
    "say what happened in the sum",
    "explain the slip",
    "praise the effort",
];

const PLEASES: &[&str] = &[
    "Please (grade|check|mark) this (answer|homework)(.| and write a comment.)",
    "(Write|Give) a comment (on|for) this (answer|homework|student's answer).",
    "(Can|Could) you (grade|check|comment on|mark) this?",
    "(Comment on|Grade|Check|Mark) this (answer|homework|solution)(.|, please.)",
    "What (comment|feedback) should I write (for this|here)?",
    "I am (grading|marking) homework. (Please write the comment.|What do I write?)",
    "(Is this right? Write a comment.|Is this answer right?)",
    "Feedback for the student please.",
    "Please comment(.| on this one.)",
    "What do I (put|say|tell the child) (here|below it|at the end)?",
    "(A|I want a|Give me a|I have to give a) (remark|note|few words) (on|for|about) (this|the sheet below|one of my pupils).",
    "(Have a look|Take a look)(.|, please.) (What do you say to it?|How would you comment on it?|What should I tell the pupil?)",
    "(My pupil|One of my pupils|A child in my class|Somebody in my class) (gave me this|did this|solved this)(.|:)",
    "(Assist|Support) me with (a comment|the marking|my comments)(.|, please.)",
    "Comment (needed|wanted)(.|!|:)",
    "(How|What) would you (reply|answer) (as the teacher|to this pupil)?",
    "From my (class|stack|pile) today(.|:)",
];
const LAYOUTS: &[&str] = &[
    "{please}\n\nProblem: {problem}\n{student}'s answer: {work}",
    "{please}\n\nQuestion: {problem}\n{student}'s answer: {work}",
    "{please}\nProblem: {problem}\n{student} wrote: {work}",
    "Problem: {problem}\n{student}'s answer: {work}\n\n{please}",
    "{please} The problem was: {problem} The student ({student}) wrote: {work}",
    "(Student|Name): {student}\nProblem: {problem}\nAnswer: {work}\n{please}",
    "{please} (Task|Exercise|Question): {problem} {student} (gave|has|got|put down): {work}",
    "{please}\n(Task|Exercise): {problem}\n{student} (solved it like this|gave|has|got): {work}",
    "(Task|Exercise|Problem): {problem} (Work of|From|By|Solution by) {student}: {work} {please}",
    "(Task|Exercise): {problem}\n(Work of|From|By|Solution by) {student}: {work}\n{please}",
    "{student} (gave|wrote|sent|returned) {work} (for|to) this: {problem} {please}",
];
const CHECKS: &[&str] = &[
    "Is {work} (right|correct|true)?",
    "(Check|Grade|Comment on|Mark) this: {work}",
    "{work} (Right or wrong?|Is that right?|True or false?)",
    "The student wrote {work}. {please}",
    "{please}\n{work}",
];
const NEXT_CHECKS: &[&str] = &[
    "(And|Now|Next:) {work}",
    "{work}?",
    "And is {work} (right|correct)?",
];
const UNNAMED_LAYOUTS: &[&str] = &[
    "{please}\n\nProblem: {problem}\n(Student's answer|Answer|Answer of the student): {work}",
    "{please}\nQuestion: {problem}\nThe student wrote: {work}",
    "Problem: {problem}\n(Student's answer|Answer): {work}\n\n{please}",
    "{please} The problem was: {problem} The student wrote: {work}",
    "{please} (Task|Exercise|Question): {problem} (Result|Solution|Pupil's work): {work}",
    "(Task|Exercise|Problem): {problem} (Result|Solution|The pupil gave): {work} {please}",
];
const NEXT_LAYOUTS: &[&str] = &[
    "(Next|Another) (one|student|answer).\nProblem: {problem}\n{student}'s answer: {work}",
    "(And|Now) this(:| one:)\nProblem: {problem}\n{student}'s answer: {work}",
    "Next student is {student}.\nProblem: {problem}\nAnswer: {work}",
];
const UNNAMED_NEXT_LAYOUTS: &[&str] = &[
    "(Next|Another) (one|student|answer).\nProblem: {problem}\n(Answer|Student's answer): {work}",
    "(And|Now) this(:| one:)\nProblem: {problem}\nStudent's answer: {work}",
];

const REDO_KIND: &[&str] = &[
    "(That is|That's|This is) too (harsh|cold|short|strict|rude|blunt)(.| for a child.) (Be more specific and kinder.|Please be {warm}.|Make it {warm} and {precise}.)",
    "(Can|Could) you (be|make it|make the comment) (more specific and kinder|kinder|friendlier|warmer)(?| and {precise}?)",
    "(Please |)(rewrite|redo) it, be {warm} and {precise}.",
    "Be {warm} and {precise}(.|, please.)",
    "(Make it|I want it) (kinder|friendlier|warmer|more friendly|more personal)( and more specific|)(.|, please.)",
    "(The student|A child|The child) will be (sad|hurt|upset)(.| if I write that.) (Be kinder.|Please {precise} and be {warm}.|Write something {warm}.)",
    "(I want|I need|Give me) a {warm} comment(.| that helps.|, and {precise}.)",
    "(Say|Write) something {warm} (too|as well|first)(.| and {precise}.)",
    "That does not help the student. (Be more specific.|{Precise}.|Please {precise}.)",
    "Too (cold|harsh|short)(.|!) (Again, but {warm}.|{Precise}.|Try again.)",
    "(What|Which step) went wrong? (Tell the student kindly.|Please {precise} and be {warm}.)",
    "Where is the (praise|encouragement|kindness)? (Again please.|Please be {warm}.)",
    "I would not write (that|this) to a student. (Be kinder|More {warm} please)(.| and {precise}.)",
    "More (detail|specific) and more {warm}(.|, please.)",
    "(Rewrite|Redo) it so that (the student feels good|it is {warm}|it helps the student)(.| and {precise}.)",
    "Friendlier please(.|, and {precise}.)",
    "(Start|Begin|Open) with (praise|something good|a good word)(.| and then {precise}.|, after that {precise}.)",
    "(First|Before anything else) (praise|thank) the (pupil|student|child)(.|, then {precise}.)",
    "(I miss|There is no|It lacks) (warmth|praise|a good word|heart)(.|, and {precise}.) (Again.|Another version please.|Once more.)",
    "(My pupils|Children|Young pupils) need (warmth|encouragement|praise)(.| and details.| and reasons.)",
    "(Do|Write|Phrase) it (differently|anew|over): {warm}(.| and about this very (answer|work|sum).)",
    "(Another|A better|A new) one, {warm} and about this very (answer|work|sum)(.|, please.)",
];
const REDO_COLD: &[&str] = &[
    "(That is|That's|This is) too long. (Just right or wrong.|Short please.|Only the verdict.)",
    "(Make it|Keep it) (short|shorter|brief|very short)(.|, just the verdict.)",
    "(Only|Just) (say right or wrong|tell me if it is right|the verdict)(.|, please.)",
    "Shorter(.|, please.) (No praise.|No nice words.|)",
    "Less talk. (Right or wrong?|Only the result.)",
    "(No praise|No nice words), just the (verdict|answer).",
];
const REDO_THOROUGH: &[&str] = &[
    "(Please |)(explain|give) (your|the) reasons(.| in full.| in more sentences.)",
    "(That is|That's|This is) too short. (Explain why.|Give the reasons.|I need the full reasoning.)",
    "(Can|Could) you (explain why|give the reasons|write more|make it longer)(?| and explain each step?)",
    "(Longer|More reasons|More explanation)(.|, please.)",
    "I need a long comment with (reasons|the reasoning|an explanation).",
    "Why? (Explain it fully.|Write out the reasoning.)",
];
const WANT_KIND: &[&str] = &[
    "(Please be|Be) {warm}(.| and {precise}.| and specific.)",
    "(Write|Give) a {warm} comment(.| and {precise}.|, and {precise}.)",
    "The comment should be {warm}(.| and specific.)",
    "(The teacher|The user) wants (a {warm} comment|{warm} and specific comments|something {warm})(.| that names the step.)",
    "(Don't|Do not) be (harsh|cold|so short)(.|, be {warm}.|, {precise}.)",
    "{Precise} and be {warm}.",
    "Use {warm} words(.| and {precise}.)",
    "(Say|Write) something {warm} (to the student|first)(.| and {precise}.)",
    "Be more specific and kinder.",
    "Encourage the student(.| and {precise}.)",
    "(Start|Begin|Open) with (praise|something good|a good word)(.| and then {precise}.|, after that {precise}.)",
    "(First|Before anything else) (praise|thank) the (pupil|student|child)(.|, then {precise}.)",
    "(I want|It needs|Put in) (warmth|praise|a good word|heart)(.|, and {precise}.)",
    "(My pupils|Children|Young pupils) need (warmth|encouragement|praise)(.| and details.| and reasons.)",
    "(Be|Write|Make it) {warm}(.|, not curt.) and about this very (answer|work|sum).",
    "(Too|Not so) (cold|harsh|short|general|curt)(.|: {warm}.|, {precise}.) (Please be {warm}.|{Precise}.|I want it {warm}.)",
    "More {warm}, and {precise}.",
];
const WANT_COLD: &[&str] = &[
    "(Only|Just) (say|write|tell me) (right or wrong|if it is right|the verdict).",
    "(Keep it|Be) (short|brief|very short)(.|, only the verdict.)",
    "No praise, only the (verdict|result).",
    "A few words are enough.",
    "(Short|Brief) (answer|comment|verdict) please.",
];
const WANT_THOROUGH: &[&str] = &[
    "(Explain|Give) the reasons(.| in full.)",
    "(Write|I need) a (long|detailed) comment with (reasons|the reasoning).",
    "(Explain why|Say why), with all the reasoning.",
    "The user wants (a long comment with reasons|length and reasons|the reasoning).",
    "Give a full explanation(.| with reasons.)",
];
