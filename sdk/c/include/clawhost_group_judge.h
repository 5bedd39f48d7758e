// A group judge in C: implement `score_group`.
#ifndef CLAWHOST_GROUP_JUDGE_H
#define CLAWHOST_GROUP_JUDGE_H

#include "clawhost_sdk.h"

// Scores all samples of a prompt together. Sets verdicts[0] to verdicts[count - 1] and returns
// true, or returns the result of one of the error functions of clawhost_sdk.h.
static bool score_group(const clawhost_trajectory_t *group, size_t count,
                        clawhost_verdict_t *verdicts, clawhost_error_t *error);

bool exports_clawhost_plugin_group_judge_score_group(
    exports_clawhost_plugin_group_judge_list_trajectory_t *group,
    exports_clawhost_plugin_group_judge_list_verdict_t *verdicts, clawhost_error_t *error) {
  verdicts->ptr = clawhost_grow(NULL, group->len * sizeof *verdicts->ptr);
  verdicts->len = group->len;
  return score_group(group->ptr, group->len, verdicts->ptr, error);
}

#endif
