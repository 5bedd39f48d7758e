// The smallest judge: longer replies are better, up to a hundred words.

import { countWords, text, turnOf, verdict } from "../clawhost.js";

export const judge = {
  scoreTurn(trajectory, turnIndex) {
    const turn = turnOf(trajectory, turnIndex);
    const words = countWords(text(turn.response));
    return verdict(Math.min(words, 100) / 50 - 1, `${words} words`);
  },
};
