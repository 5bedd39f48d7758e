// A loss in C: write `describe` and `evaluate`.
#ifndef CLAWHOST_LOSS_H
#define CLAWHOST_LOSS_H

#include "clawhost_sdk.h"

typedef exports_clawhost_plugin_loss_requirements_t clawhost_requirements_t;
typedef exports_clawhost_plugin_loss_batch_t clawhost_batch_t;
typedef exports_clawhost_plugin_loss_gradient_t clawhost_gradient_t;

// What the loss is differentiated by and what it reads. The same for every call.
static clawhost_requirements_t describe(void);

// Sets the microbatch's share of the step's loss and its partials: as long as the inputs, 0 where
// the mask is 0, empty where the loss is not differentiated. Returns true, or ends with one of the
// errors of clawhost_sdk.h.
static bool evaluate(const clawhost_batch_t *batch, clawhost_gradient_t *gradient,
                     clawhost_error_t *error);

// Room for as many numbers, all 0.
static inline clawhost_list_f32_t clawhost_zeros(size_t count) {
  float *zeros = clawhost_grow(NULL, count * sizeof *zeros);
  memset(zeros, 0, count * sizeof *zeros);
  return (clawhost_list_f32_t){zeros, count};
}

void exports_clawhost_plugin_loss_describe(clawhost_requirements_t *requirements) {
  *requirements = describe();
}

bool exports_clawhost_plugin_loss_evaluate(clawhost_batch_t *batch, clawhost_gradient_t *gradient,
                                           clawhost_error_t *error) {
  memset(gradient, 0, sizeof *gradient);
  return evaluate(batch, gradient, error);
}

#endif
