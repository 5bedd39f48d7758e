// A group judge: the longest response to a prompt wins, the shortest loses.

#include "clawhost_group_judge.h"

static size_t words(const clawhost_trajectory_t *trajectory) {
  const clawhost_turn_t *last = &trajectory->turns.ptr[trajectory->turns.len - 1];
  return clawhost_count_words(clawhost_text(&last->response));
}

static bool score_group(const clawhost_trajectory_t *group, size_t count,
                        clawhost_verdict_t *verdicts, clawhost_error_t *error) {
  size_t most = 0, fewest = SIZE_MAX;
  for (size_t i = 0; i < count; i++) {
    if (group[i].turns.len == 0)
      return clawhost_unsupported(error, clawhost_view("a trajectory without turns"));
    size_t n = words(&group[i]);
    if (n > most) most = n;
    if (n < fewest) fewest = n;
  }
  for (size_t i = 0; i < count; i++) {
    size_t n = words(&group[i]);
    float reward = (float)(n == most) - (float)(n == fewest);
    verdicts[i] = clawhost_verdict(reward, clawhost_format("%zu words", n));
  }
  return true;
}
