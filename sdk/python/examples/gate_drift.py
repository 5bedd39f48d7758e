"""Publishes no adapter that moved too far from the policy before it.

The setting `max_drift` (default 0.5) is the largest KL divergence per token from the previous version.
"""

from clawhost_sdk import internal, setting
from clawhost_sdk.gates import metric_of, publish, reject
from wit_world import exports


class Gate(exports.Gate):
    def review(self, candidate):
        limit = setting("max_drift", 0.5)
        drift = metric_of(candidate, "proof.drift")
        if drift is None:
            raise internal("no proof.drift")
        if drift > limit:
            return reject(f"a drift of {drift:.4f}, above max_drift {limit}")
        return publish()
