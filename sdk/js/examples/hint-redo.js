// Turns a request to do it again into advice for the teacher.

import { hint, noHint, turnOf, unsupported, userText } from "../clawhost.js";

const SIGNS = ["wrong", "again", "instead"];

export const hintExtractor = {
  extract(trajectory, turnIndex) {
    const turn = turnOf(trajectory, turnIndex);
    if (turn.nextState.length === 0) throw unsupported("nothing followed the reply");
    const said = userText(turn);
    if (!SIGNS.some((sign) => said.toLowerCase().includes(sign))) return noHint();
    return hint(`Afterwards the user said: ${said}`, { confidence: 0.5 });
  },
};
