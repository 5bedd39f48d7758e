// A loss in C: implement `describe` and `evaluate`.
#ifndef CLAWHOST_LOSS_H
#define CLAWHOST_LOSS_H

#include "clawhost_sdk.h"

typedef exports_clawhost_plugin_loss_requirements_t clawhost_requirements_t;
typedef exports_clawhost_plugin_loss_batch_t clawhost_batch_t;
typedef exports_clawhost_plugin_loss_gradient_t clawhost_gradient_t;

// The inputs to differentiate with respect to, and the references to read. Must be constant.
static clawhost_requirements_t describe(void);

// Sets the micro-batch's share of the step's loss and its partials: as long as the inputs, 0 where
// the mask is 0, empty for inputs without derivative. Returns true, or the result of one of the
// error functions of clawhost_sdk.h.
static bool evaluate(const clawhost_batch_t *batch, clawhost_gradient_t *gradient,
                     clawhost_error_t *error);

// Allocates a list of zeros.
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
