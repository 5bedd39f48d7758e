// A gate in C: implement `review`.
#ifndef CLAWHOST_GATE_H
#define CLAWHOST_GATE_H

#include "clawhost_sdk.h"

typedef exports_clawhost_plugin_gate_candidate_t clawhost_candidate_t;
typedef exports_clawhost_plugin_gate_decision_t clawhost_decision_t;

// Decides whether a new adapter is published. Sets *decision with clawhost_publish or
// clawhost_reject and returns true, or returns the result of an error function of clawhost_sdk.h:
// `unsupported` has no objection; after any other error nothing is published.
static bool review(const clawhost_candidate_t *candidate, clawhost_decision_t *decision,
                   clawhost_error_t *error);

// Reads the metric of this name into *value; false if the step does not have it.
static inline bool clawhost_find_metric(const clawhost_candidate_t *candidate, const char *name,
                                        double *value) {
  for (size_t i = 0; i < candidate->metrics.len; i++) {
    const clawhost_metric_t *metric = &candidate->metrics.ptr[i];
    if (metric->name.len != strlen(name) || memcmp(metric->name.ptr, name, metric->name.len))
      continue;
    *value = metric->value;
    return true;
  }
  return false;
}

// The adapter is published.
static inline clawhost_decision_t clawhost_publish(void) {
  return (clawhost_decision_t){.publish = true};
}

// The adapter is discarded, for this reason.
static inline clawhost_decision_t clawhost_reject(clawhost_string_t reason) {
  return (clawhost_decision_t){.publish = false, .reason = clawhost_copy(reason)};
}

bool exports_clawhost_plugin_gate_review(clawhost_candidate_t *candidate,
                                         clawhost_decision_t *decision, clawhost_error_t *error) {
  return review(candidate, decision, error);
}

#endif
