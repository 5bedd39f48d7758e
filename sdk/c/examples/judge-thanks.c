// A judge that scores a response by the messages after it: thanks, a complaint, a failed tool.

#include "clawhost_judge.h"

static bool score_turn(const clawhost_trajectory_t *trajectory, const clawhost_turn_t *turn,
                       clawhost_verdict_t *verdict, clawhost_error_t *error) {
  if (turn->next_state.len == 0)
    return clawhost_unsupported(error, clawhost_view("nothing followed the reply"));
  clawhost_string_t said = clawhost_user_text(turn);
  // At most one vote for thanks, one for a complaint, and one per tool result.
  clawhost_vote_t *votes = clawhost_grow(NULL, (turn->next_state.len + 2) * sizeof *votes);
  size_t count = 0;
  if (clawhost_contains(said, "thank")) votes[count++] = clawhost_vote(1, "the user gave thanks");
  if (clawhost_contains(said, "wrong") || clawhost_contains(said, "again"))
    votes[count++] = clawhost_vote(-1, "the user asked for a change");
  const clawhost_message_t *result;
  for (size_t at = 0; (result = clawhost_next(&turn->next_state, CLAWHOST_TOOL, &at));)
    if (clawhost_contains(clawhost_text(result), "error"))
      votes[count++] = clawhost_vote(-1, "a tool failed");
  *verdict = clawhost_majority(votes, count);
  return true;
}
