// A judge in C: implement `score_turn`.
#ifndef CLAWHOST_JUDGE_H
#define CLAWHOST_JUDGE_H

#include "clawhost_sdk.h"

// Scores one turn. Sets *verdict and returns true, or returns an error function's result:
// `return clawhost_unsupported(error, clawhost_view("nothing followed the reply"));`
static bool score_turn(const clawhost_trajectory_t *trajectory, const clawhost_turn_t *turn,
                       clawhost_verdict_t *verdict, clawhost_error_t *error);

bool exports_clawhost_plugin_judge_score_turn(clawhost_trajectory_t *trajectory,
                                              uint32_t turn_index, clawhost_verdict_t *verdict,
                                              clawhost_error_t *error) {
  const clawhost_turn_t *turn = clawhost_turn(trajectory, turn_index, error);
  return turn != NULL && score_turn(trajectory, turn, verdict, error);
}

#endif
