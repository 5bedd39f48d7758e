//! Labelled turns with orders: orders for new work, and the same verbs as remarks about the response.

use crate::cases::wrong_ones;

const ASKED: &str = "Please add a note about green tea to my kitchen list.";
const DONE: &str =
    "Done. The note about green tea is on your kitchen list, below the entry for rice.";

/// Orders for new work.
const ORDERS: &[&str] = &[
    "thanks! Now delete it",
    "Next: remove the note about tea",
    "Next, remove the note about green tea from my kitchen list.",
    "Great. Now add milk to the shopping list.",
    "Perfect, now move the entry for rice to the top shelf list",
    "Thank you. Then cancel the meeting on Friday.",
    "ok great, now rename it",
    "Good. Please archive it now.",
    "Thanks, could you also delete the old draft of the letter?",
    "Awesome! Can you add Ann to the invitation?",
    "Next: replace the bulb entry with candles",
    "Now update the readme",
    "Thanks! Next, fix the broken link on the start page.",
    "Delete the file old.txt",
    "Cancel my appointment with the dentist.",
    "Remove the alarm for tomorrow",
    "After that, delete the notes from March.",
    "And now drop rice from the kitchen list please",
    "Nice, now change the meeting to five",
    "Now insert a row for the rent",
    "Lovely. Now clear the list of rice and beans in the pantry.",
    "thanks, now put the bread on the shopping list",
    "Cool, then turn off the lamp",
    "Also add the birthday of Leo.",
    "Thanks a lot! Please delete that entry.",
    "Perfect. Move it to the archive.",
    "looks right. Now remove the one about rice",
    "thx, next delete all of them",
    "Great job. Now please drop the table users_old.",
    "Yes, thanks. Now add two eggs.",
    "That works. Now copy it to the backup.",
    "ok now remove Leo from the party",
    "Super, then close the ticket.",
    "Wonderful, thank you! Would you now remove the second alarm?",
    "Finally, undo the order for candles.",
    "Not bad at all! Now delete it.",
    "No problem. Now delete it, thanks.",
    "Thank you! Now please remove tea from the list.",
    "Next up: delete the note on rice.",
    "Great, thanks. Remove the entry for sugar.",
    "ty. now drop sugar from it",
    "Thanks! Now add sugar to it.",
    "Good, now swap the tea for coffee.",
    "Thanks, now merge both lists.",
    "Alright, next add a reminder for Sunday at ten.",
    "thanks!! then delete everything on the kitchen list",
    "Yes perfect. Now include coffee too.",
    "Now cancel it please, thanks",
    "Thanks for that. Now replace rice with pasta on the list.",
    "Could you now remove the tea note?",
    "Please also remove the old invoice.",
    "OK, delete the draft email as well.",
];

/// Corrections of the response, whatever they begin with.
const CORRECTIONS: &[&str] = &[
    "Thanks, but remove the second line.",
    "Thanks! Now remove the bold.",
    "Great, now make it shorter.",
    "Thanks! Now rewrite it.",
    "Now do it again without the list.",
    "Next time add more detail.",
    "Good. Now remove the last sentence.",
    "Thanks. Please cut the greeting.",
    "Nice, now drop the emojis",
    "Now add a friendly sentence at the start.",
    "Thanks! Please add an example.",
    "Remove it.",
    "remove that part",
    "Delete the last paragraph.",
    "Thanks, now fix your answer.",
    "Thanks! Now change the tone.",
    "Good, now add something positive.",
    "Great start. Now shorten it.",
    "Now replace the long words.",
    "Thank you. Now fix the typos in your reply.",
    "Then remove the bullet list",
    "No! Now delete it.",
    "That's wrong. Now delete it.",
    "That was the wrong list. Remove the note.",
    "Now explain it without the table.",
    "Thanks, could you also remove the headings?",
    "Now simplify it please",
    "Perfect, now fix the formatting.",
    "Also drop the intro.",
    "Thanks! Remove the silly title though.",
    "Nice try. Now fix it.",
    "Thanks. Now cut it down.",
    "ok now drop the bullet points",
    "Great, but now it sounds cold. Change it.",
    "Now say it more warmly.",
    "Thank you! Now use fewer words.",
    "Next, remove the asterisks from your answer.",
    "Good, now delete the last two sentences please",
    "Also mention why it is on the list.",
    "Then add your reasons.",
    "Now remove all the formatting.",
    "Thanks, now get rid of the bold.",
    "Great! Now add more warmth.",
    "Thanks! Now replace the first sentence with something nicer.",
    "Please drop the last part.",
    "then change the wording",
    "Thanks, now remove everything after the first sentence.",
    "no, remove the other one",
    "You added it twice. Remove one.",
    "You put it on the wrong list. Move it.",
    "Not that list. Now move it to the kitchen list.",
    "I said green tea. Now fix the note.",
    "Fix the note about tea.",
    "Thanks, now correct the spelling of tea.",
    "Now edit it so it says black tea.",
];

#[test]
fn an_order_moves_on_and_a_correction_does_not() {
    let orders: Vec<(&str, f32)> = ORDERS.iter().map(|text| (*text, 1.0)).collect();
    let corrections: Vec<(&str, f32)> = CORRECTIONS.iter().map(|text| (*text, -1.0)).collect();
    let mut wrong = wrong_ones(&orders, ASKED, DONE);
    wrong.extend(wrong_ones(&corrections, ASKED, DONE));
    assert!(
        wrong.is_empty(),
        "{} of {} wrong:\n{}",
        wrong.len(),
        ORDERS.len() + CORRECTIONS.len(),
        wrong.join("\n")
    );
}

#[test]
fn descriptions_of_ordered_work_are_no_remarks_about_the_response() {
    let before = "Check whether the start page loads.";
    let cases = [
        ("Thanks! Now fix the wrong link on the start page.", 1.0),
        ("Next: delete the ugly broken logo from the server", 1.0),
        ("Thanks! Now fix the wrong answer.", -1.0),
    ];
    let wrong = wrong_ones(&cases, before, "It loads in 120 ms.");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_repeated_order_is_a_repetition() {
    let cases = [
        ("Now add a note about green tea to my kitchen list.", -1.0),
        (
            "Now remove the note about green tea from my kitchen list.",
            1.0,
        ),
        ("Now add a note about black tea to my kitchen list.", 1.0),
    ];
    let wrong = wrong_ones(&cases, ASKED, DONE);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
