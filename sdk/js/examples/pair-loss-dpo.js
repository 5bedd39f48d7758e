// A loss on preference pairs: DPO, -log sigmoid(beta * margin).
//
// The margin is how much more than the base model the policy prefers the accepted reply, in nats. The setting `beta` (default
// 0.1) is the strength of the reference.

import { logRatio, partials } from "../clawhost.js";
import { setting } from "../host.js";

export const pairLoss = {
  evaluate(batch) {
    const beta = setting("beta", 0.1);
    const gradients = batch.pairs.map(({ chosen, rejected }) => {
      const margin = logRatio(chosen) - logRatio(rejected);
      // The derivative of the loss by the margin.
      const slope = -beta / (1 + Math.exp(beta * margin));
      const loss = Math.log1p(Math.exp(-beta * margin));
      return { loss, dChosen: partials(chosen, slope), dRejected: partials(rejected, -slope) };
    });
    return { gradients, metrics: [] };
  },
};
