// A filter: keeps turns out of training that contain what looks like a credential.

#include "clawhost_filter.h"

static const char *const SIGNS[] = {"-----BEGIN", "password:", "api_key", "Bearer "};

static const char *sign(const clawhost_message_t *message) {
  clawhost_string_t text = clawhost_text(message);
  for (size_t i = 0; i < sizeof SIGNS / sizeof *SIGNS; i++)
    if (clawhost_contains(text, SIGNS[i])) return SIGNS[i];
  return NULL;
}

static const char *first_sign(const clawhost_messages_t *messages) {
  const char *found = NULL;
  for (size_t i = 0; found == NULL && i < messages->len; i++) found = sign(&messages->ptr[i]);
  return found;
}

static bool decide(const clawhost_trajectory_t *trajectory, const clawhost_turn_t *turn,
                   const float *reward, clawhost_decision_t *decision, clawhost_error_t *error) {
  const char *found = first_sign(&turn->prompt);
  if (found == NULL) found = sign(&turn->response);
  if (found == NULL) found = first_sign(&turn->next_state);
  *decision = clawhost_keep();
  if (found) *decision = clawhost_drop(clawhost_format("the text contains \"%s\"", found));
  return true;
}
