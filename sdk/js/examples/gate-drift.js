// Publishes no adapter that moved too far from the policy before it.
//
// The setting `max_drift` (default 0.5) is the largest KL divergence per token from the previous version.

import { internal, metricOf, publish, reject } from "../clawhost.js";
import { setting } from "../host.js";

export const gate = {
  review(candidate) {
    const limit = setting("max_drift", 0.5);
    const drift = metricOf(candidate, "proof.drift");
    if (drift === undefined) throw internal("no proof.drift");
    if (drift > limit) return reject(`a drift of ${drift.toFixed(4)}, above max_drift ${limit}`);
    return publish();
  },
};
