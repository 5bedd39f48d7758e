// A minimal judge: longer responses are better, up to a hundred words.

#include "clawhost_judge.h"

static bool score_turn(const clawhost_trajectory_t *trajectory, const clawhost_turn_t *turn,
                       clawhost_verdict_t *verdict, clawhost_error_t *error) {
  size_t words = clawhost_count_words(clawhost_text(&turn->response));
  float reward = (float)(words < 100 ? words : 100) / 50.0f - 1.0f;
  *verdict = clawhost_verdict(reward, clawhost_format("%zu words", words));
  return true;
}
