//! The formatted style: bold, numbered lists, headings, banners. Every form shows its style in its first few tokens and
//! keeps it, so that a reward on the whole reply is attributed to that choice.

use clawhost_evaluation::problems::phrase::render_one;
use clawhost_evaluation::problems::{Problem, SeededRng};

/// A formatted reply to `problem`.
pub(crate) fn reply(problem: &Problem, rng: &mut SeededRng) -> String {
    let slots = problem.clauses(rng);
    render_one(FORMS, &slots, rng)
}

/// The calculation always comes before the result: what is written already helps the model with what comes next.
pub(super) const FORMS: &[&str] = &[
    "**(Solution|Answer|Worked solution)**\n\n1. (Start with|Begin with|We have) **{first}**.\n2. (Now {operate}|{Operate}).\n3. **{equation}**\n\n**(Final answer|Answer): {unit}**",
    "**Step 1:** (Find the numbers|Identify the numbers|Read the problem): **{a}** and **{b}**.\n**Step 2:** {Operate}: {equation}\n\n**Final answer: {unit}**",
    "**Step 1: (Understand the problem|Given)**\n{Given}.\n\n**Step 2: (Calculate|Solve)**\n{equation}\n\n**Step 3: (Answer|Conclusion)**\n**{Outcome}.**",
    "## (Solution|Answer|Step-by-step solution)\n\n- **Given:** {given}\n- **(Calculation|Working):** {equation}\n\n**(Final answer|Answer):** {unit}",
    "### Step 1: (Understand|The numbers)\n{Given}.\n\n### Step 2: (Calculate|The calculation)\n**{equation}**\n\n### (Final answer|Result)\n**{unit}**",
    "1. **{first}**\n2. **{second}**\n3. {equation}\n\n**(Final answer|Result): {unit}**",
    "1. **(Start|Given):** {first}\n2. **(Operation|What to do):** {operate}\n3. **(Result|Total|Answer):** {equation}\n\n**{Outcome}.**",
    "(Certainly|Of course|Absolutely|Sure thing|Great question)! Here is (a|the) step-by-step solution:\n\n1. **(Given|Known):** {given}.\n2. **(Solve|Calculate):** {equation}\n\n**(Final answer|Answer): {unit}**",
    "Let's break (it|this) down (step by step|together|now):\n\n- **{first}**\n- **{second}**\n- **{Noun}:** {equation}\n\n**(Result|Answer|Final answer): {unit}**",
    "---\n\n**(Working|Calculation):**\n1. {Given}.\n2. {equation}\n\n**(Answer|Result): {unit}**\n\n---",
    "**(How it works|Explanation|Steps):**\n1. (Take|Look at) **{first}**.\n2. {Operate}.\n3. {equation}\n\n**Answer: {unit}**",
    "**Key facts**\n- {first}\n- {second}\n\n**Working**\n- {equation}\n\n**Conclusion**\n- **{Outcome}.**",
    "# (Homework solution|Solution|Your answer)\n\n**Given:** {a} and {b}\n**(Method|Operation):** {noun}\n**(Calculation|Equation):** {equation}\n\n**Final answer: {unit}**",
    "To solve this( problem|), follow these steps:\n\n1. **Identify:** {first}, {second}\n2. **(Calculate|Compute):** {equation}\n3. **Conclude:** {outcome}\n\n**Final answer: {answer}**",
    "| (Part|Item) | Value |\n|---|---|\n| (First number|First) | {a} |\n| (Second number|Second) | {b} |\n| (Calculation|Working) | {equation} |\n\n**Final answer: {unit}**",
    "✅ **(Method|Operation):** {noun}\n✅ **(Equation|Working):** {equation}\n\n**Answer: {unit}**",
    "**Problem:** {given}.\n**(Solution|Working):** {equation}\n**(Answer|Result):** {unit}\n\n✅ **{Outcome}.**",
    "**=== (SOLUTION|WORKING) ===**\n\n1. {Operate}.\n2. **{equation}**\n\n**=== (RESULT|FINAL ANSWER): {answer} ===**",
];
