// Keeps turns out of training that contain what looks like a credential.

import { drop, keep, text, turnOf } from "../clawhost.js";

const SIGNS = ["-----BEGIN", "password:", "api_key", "Bearer "];

export const filter = {
  decide(trajectory, turnIndex, reward) {
    const turn = turnOf(trajectory, turnIndex);
    for (const message of [...turn.prompt, turn.response, ...turn.nextState]) {
      const sign = SIGNS.find((sign) => text(message).includes(sign));
      if (sign !== undefined) return drop(`the text contains "${sign}"`);
    }
    return keep();
  },
};
