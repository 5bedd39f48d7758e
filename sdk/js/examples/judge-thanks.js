// Judges a reply by what followed it: thanks, a complaint, a tool that failed.

import { majority, toolResults, turnOf, unsupported, userText, vote } from "../clawhost.js";

export const judge = {
  scoreTurn(trajectory, turnIndex) {
    const turn = turnOf(trajectory, turnIndex);
    if (turn.nextState.length === 0) throw unsupported("nothing followed the reply");
    const said = userText(turn).toLowerCase();
    const votes = [];
    if (said.includes("thank")) votes.push(vote(1, "the user gave thanks"));
    if (said.includes("wrong") || said.includes("again")) {
      votes.push(vote(-1, "the user asked for a change"));
    }
    for (const result of toolResults(turn)) {
      if (result.toLowerCase().includes("error")) votes.push(vote(-1, "a tool failed"));
    }
    return majority(votes);
  },
};
