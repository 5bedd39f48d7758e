// A hint extractor: turns a user's request to redo the response into a hint.

#include "clawhost_hint.h"

static bool extract(const clawhost_trajectory_t *trajectory, const clawhost_turn_t *turn,
                    clawhost_extraction_t *extraction, clawhost_error_t *error) {
  if (turn->next_state.len == 0)
    return clawhost_unsupported(error, clawhost_view("nothing followed the reply"));
  clawhost_string_t said = clawhost_user_text(turn);
  bool redo = clawhost_contains(said, "wrong") || clawhost_contains(said, "again") ||
              clawhost_contains(said, "instead");
  *extraction = clawhost_no_hint();
  if (redo)
    *extraction = clawhost_hint(
        clawhost_format("Afterwards the user said: %.*s", CLAWHOST_ARG(said)), 0.5f);
  return true;
}
