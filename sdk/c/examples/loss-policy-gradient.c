// The policy gradient with the ratio to the policy that sampled, without clipping.

#include <math.h>

#include "clawhost_loss.h"

static clawhost_requirements_t describe(void) {
  return (clawhost_requirements_t){
      .differentiable = EXPORTS_CLAWHOST_PLUGIN_LOSS_INPUTS_LOGPROB,
      .references = EXPORTS_CLAWHOST_PLUGIN_LOSS_REFERENCES_OLD,
  };
}

static bool evaluate(const clawhost_batch_t *batch, clawhost_gradient_t *gradient,
                     clawhost_error_t *error) {
  // The step's size, not the microbatch's: a step cut in two adds up to the same loss.
  double scale = 1.0 / (double)(batch->step_tokens ? batch->step_tokens : 1);
  gradient->d_logprob = clawhost_zeros(batch->logprob.len);
  for (size_t i = 0; i < batch->logprob.len; i++) {
    if (batch->mask.ptr[i] == 0) continue;
    double ratio = exp((double)batch->logprob.ptr[i] - (double)batch->old_logprob.ptr[i]);
    double partial = -(double)batch->advantages.ptr[i] * ratio * scale;
    gradient->d_logprob.ptr[i] = (float)partial;
    gradient->loss += partial;
  }
  return true;
}
