// A length judge: a response that exceeds a budget of words loses reward for each word beyond it,
// down to -1. A response that was cut off at the token limit gets -1.
//
// Settings, as JSON in the configuration:
//
//   most     words that a response may have, 1 to 1,000,000                       default 200
//   margin   words beyond that over which the reward falls to -1; 0: immediately  default 100
//   within   reward of a response within the budget, -1 to 1                      default 0
//
// It does not judge the content: use it together with a judge that does. It counts words separated
// by white space in the visible text only. A response without visible text, such as one with only
// tool calls, is unsupported and gets no verdict; it is not a short response.

#include "clawhost_judge.h"

static bool score_turn(const clawhost_trajectory_t *trajectory, const clawhost_turn_t *turn,
                       clawhost_verdict_t *verdict, clawhost_error_t *error) {
  uint32_t most, margin;
  double within;
  if (!clawhost_count_setting("most", 200, 1, 1000000, &most, error) ||
      !clawhost_count_setting("margin", 100, 0, 1000000, &margin, error) ||
      !clawhost_number_setting("within", 0, -1, 1, &within, error))
    return false;
  size_t words = clawhost_count_words(clawhost_text(&turn->response));
  if (turn->truncated) {
    *verdict = clawhost_verdict(-1, clawhost_view("the reply was cut at the token limit"));
  } else if (words == 0) {
    return clawhost_unsupported(error, clawhost_view("the reply has no words"));
  } else if (words <= most) {
    *verdict = clawhost_verdict((float)within, clawhost_format("%zu words of %u", words, (unsigned)most));
  } else {
    size_t over = words - most;
    double lost = over < margin ? (double)over / margin : 1;
    *verdict = clawhost_verdict(
        (float)(within - lost * (within + 1)),
        clawhost_format("%zu words, %zu more than %u", words, over, (unsigned)most));
  }
  clawhost_metric(&verdict->metrics, "words", (double)words);
  return true;
}
