// A filter in C: implement `decide`.
#ifndef CLAWHOST_FILTER_H
#define CLAWHOST_FILTER_H

#include "clawhost_sdk.h"

typedef exports_clawhost_plugin_filter_decision_t clawhost_decision_t;

// Decides whether a turn that would train does. `reward` is NULL where hints alone would train it.
// Sets *decision with clawhost_keep or clawhost_drop and returns true, or returns the result of an
// error function of clawhost_sdk.h: `unsupported` has no objection, any other error drops the turn.
static bool decide(const clawhost_trajectory_t *trajectory, const clawhost_turn_t *turn,
                   const float *reward, clawhost_decision_t *decision, clawhost_error_t *error);

// The turn may train.
static inline clawhost_decision_t clawhost_keep(void) {
  return (clawhost_decision_t){.keep = true};
}

// The turn does not train, for this reason.
static inline clawhost_decision_t clawhost_drop(clawhost_string_t reason) {
  return (clawhost_decision_t){.keep = false, .reason = clawhost_copy(reason)};
}

bool exports_clawhost_plugin_filter_decide(clawhost_trajectory_t *trajectory, uint32_t turn_index,
                                           float *maybe_reward, clawhost_decision_t *decision,
                                           clawhost_error_t *error) {
  const clawhost_turn_t *turn = clawhost_turn(trajectory, turn_index, error);
  return turn != NULL && decide(trajectory, turn, maybe_reward, decision, error);
}

#endif
