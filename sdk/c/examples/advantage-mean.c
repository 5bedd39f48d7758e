// An advantage estimator: the reward minus the mean reward of the group.

#include "clawhost_advantage.h"

static bool compute(const clawhost_sequence_t *sequences, size_t count, float *values,
                    clawhost_error_t *error) {
  for (size_t i = 0; i < count; i++) {
    double sum = 0;
    size_t members = 0;
    for (size_t j = 0; j < count; j++)
      if (sequences[j].group == sequences[i].group) {
        sum += sequences[j].reward;
        members++;
      }
    values[i] = (float)(sequences[i].reward - sum / (double)members);
  }
  return true;
}
