// A loss on preference pairs in C: implement `evaluate_pair`.
#ifndef CLAWHOST_PAIR_LOSS_H
#define CLAWHOST_PAIR_LOSS_H

#include "clawhost_sdk.h"

typedef exports_clawhost_plugin_pair_loss_reply_t clawhost_reply_t;
typedef exports_clawhost_plugin_pair_loss_pair_t clawhost_pair_t;
typedef exports_clawhost_plugin_pair_loss_gradient_t clawhost_pair_gradient_t;

// Sets the loss of a pair and its partials with clawhost_partials. Returns true, or the result of
// one of the error functions of clawhost_sdk.h.
static bool evaluate_pair(const clawhost_pair_t *pair, clawhost_pair_gradient_t *gradient,
                          clawhost_error_t *error);

// How much more likely than under the base model a reply is under the policy, in nats, over its
// trained tokens.
static inline double clawhost_log_ratio(const clawhost_reply_t *reply) {
  double sum = 0;
  for (size_t i = 0; i < reply->mask.len; i++)
    if (reply->mask.ptr[i])
      sum += (double)reply->logprob.ptr[i] - (double)reply->ref_logprob.ptr[i];
  return sum;
}

// Partials that are `slope` at each trained token of a reply and 0 elsewhere.
static inline clawhost_list_f32_t clawhost_partials(const clawhost_reply_t *reply, double slope) {
  float *partials = clawhost_grow(NULL, reply->mask.len * sizeof *partials);
  for (size_t i = 0; i < reply->mask.len; i++)
    partials[i] = reply->mask.ptr[i] ? (float)slope : 0;
  return (clawhost_list_f32_t){partials, reply->mask.len};
}

bool exports_clawhost_plugin_pair_loss_evaluate(
    exports_clawhost_plugin_pair_loss_batch_t *batch,
    exports_clawhost_plugin_pair_loss_evaluation_t *evaluation, clawhost_error_t *error) {
  size_t count = batch->pairs.len;
  memset(evaluation, 0, sizeof *evaluation);
  evaluation->gradients.ptr = clawhost_grow(NULL, count * sizeof *evaluation->gradients.ptr);
  evaluation->gradients.len = count;
  memset(evaluation->gradients.ptr, 0, count * sizeof *evaluation->gradients.ptr);
  for (size_t i = 0; i < count; i++)
    if (!evaluate_pair(&batch->pairs.ptr[i], &evaluation->gradients.ptr[i], error)) return false;
  return true;
}

#endif
