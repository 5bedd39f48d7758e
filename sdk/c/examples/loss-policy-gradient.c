// A policy gradient loss with the importance ratio to the sampling policy, without clipping.

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
  // Scale by the tokens of the step, not of the micro-batch, so that the loss does not depend on
  // how a step is split.
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
