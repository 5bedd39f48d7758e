// A loss on preference pairs: DPO, -log sigmoid(beta * margin).
//
// The margin is how much more than the base model the policy prefers the accepted reply, in nats.
// The setting beta (default 0.1) is the strength of the reference.

#include <math.h>

#include "clawhost_pair_loss.h"

static bool evaluate_pair(const clawhost_pair_t *pair, clawhost_pair_gradient_t *gradient,
                          clawhost_error_t *error) {
  double beta;
  if (!clawhost_number_setting("beta", 0.1, 0.001, 100, &beta, error)) return false;
  double margin = clawhost_log_ratio(&pair->chosen) - clawhost_log_ratio(&pair->rejected);
  // The derivative of the loss by the margin.
  double slope = -beta / (1 + exp(beta * margin));
  gradient->loss = log1p(exp(-beta * margin));
  gradient->d_chosen = clawhost_partials(&pair->chosen, slope);
  gradient->d_rejected = clawhost_partials(&pair->rejected, -slope);
  return true;
}
