// A hint extractor in C: implement `extract`.
#ifndef CLAWHOST_HINT_H
#define CLAWHOST_HINT_H

#include "clawhost_sdk.h"

typedef exports_clawhost_plugin_hint_extractor_extraction_t clawhost_extraction_t;

// Reads one turn and the messages that followed it. Sets *extraction with clawhost_hint or
// clawhost_no_hint and returns true, or returns the result of an error function of clawhost_sdk.h.
static bool extract(const clawhost_trajectory_t *trajectory, const clawhost_turn_t *turn,
                    clawhost_extraction_t *extraction, clawhost_error_t *error);

// A hint for the teacher, appended to the last user message. `confidence` is from 0 to 1.
static inline clawhost_extraction_t clawhost_hint(clawhost_string_t text, float confidence) {
  clawhost_extraction_t extraction = {0};
  extraction.hint.is_some = true;
  extraction.hint.val.text = clawhost_copy(text);
  extraction.hint.val.placement = EXPORTS_CLAWHOST_PLUGIN_HINT_EXTRACTOR_PLACEMENT_LAST_USER;
  extraction.hint.val.confidence = confidence;
  return extraction;
}

// No hint: the turn has no useful advice.
static inline clawhost_extraction_t clawhost_no_hint(void) { return (clawhost_extraction_t){0}; }

bool exports_clawhost_plugin_hint_extractor_extract(clawhost_trajectory_t *trajectory,
                                                    uint32_t turn_index,
                                                    clawhost_extraction_t *extraction,
                                                    clawhost_error_t *error) {
  const clawhost_turn_t *turn = clawhost_turn(trajectory, turn_index, error);
  return turn != NULL && extract(trajectory, turn, extraction, error);
}

#endif
