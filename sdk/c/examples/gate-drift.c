// A gate: publishes no adapter that moved too far from the policy before it.
//
// The setting max_drift (default 0.5) is the largest KL divergence per token from the previous
// version.

#include "clawhost_gate.h"

static bool review(const clawhost_candidate_t *candidate, clawhost_decision_t *decision,
                   clawhost_error_t *error) {
  double limit, drift;
  if (!clawhost_number_setting("max_drift", 0.5, 0, 100, &limit, error)) return false;
  if (!clawhost_find_metric(candidate, "proof.drift", &drift))
    return clawhost_internal(error, clawhost_view("no proof.drift"));
  *decision = clawhost_publish();
  if (drift > limit)
    *decision =
        clawhost_reject(clawhost_format("a drift of %.4f, above max_drift %g", drift, limit));
  return true;
}
