// An advantage estimator in C: implement `compute`.
#ifndef CLAWHOST_ADVANTAGE_H
#define CLAWHOST_ADVANTAGE_H

#include "clawhost_sdk.h"

typedef exports_clawhost_plugin_advantage_sequence_t clawhost_sequence_t;

// Estimates advantages from the rewards of a batch: sets values[0] to values[count - 1], which are
// initially 0, to one finite value per sequence. Returns true, or the result of one of the error
// functions of clawhost_sdk.h.
static bool compute(const clawhost_sequence_t *sequences, size_t count, float *values,
                    clawhost_error_t *error);

bool exports_clawhost_plugin_advantage_compute(
    exports_clawhost_plugin_advantage_list_sequence_t *sequences,
    exports_clawhost_plugin_advantage_estimate_t *estimate, clawhost_error_t *error) {
  memset(estimate, 0, sizeof *estimate);
  estimate->values.len = sequences->len;
  estimate->values.ptr = clawhost_grow(NULL, sequences->len * sizeof *estimate->values.ptr);
  memset(estimate->values.ptr, 0, sequences->len * sizeof *estimate->values.ptr);
  return compute(sequences->ptr, sequences->len, estimate->values.ptr, error);
}

#endif
