// The SDK for clawhost plugins in C.
//
// Include the header of the plugin's kind (clawhost_judge.h, clawhost_group_judge.h, clawhost_hint.h,
// clawhost_filter.h, clawhost_loss.h, clawhost_pair_loss.h, clawhost_advantage.h, clawhost_gate.h) and implement the function that it declares. This header
// has helpers for conversations and results; each build generates "clawhost.h" from the folder wit.
//
// Memory: the host creates a fresh instance for each call and drops it with its memory afterwards,
// so nothing has to be freed, and no data survives to the next call. The bindings free a result
// once the host has read it. Functions that create results therefore copy their text, which may be
// a literal. A failed allocation aborts the instance, which is a fault of this call only and does
// not affect other calls.
//
// Text is UTF-8, passed as pointer and length, without a terminating zero.
#ifndef CLAWHOST_SDK_H
#define CLAWHOST_SDK_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clawhost.h"

typedef clawhost_plugin_types_role_t clawhost_role_t;
typedef clawhost_plugin_types_part_t clawhost_part_t;
typedef clawhost_plugin_types_message_t clawhost_message_t;
typedef clawhost_plugin_types_list_message_t clawhost_messages_t;
typedef clawhost_plugin_types_turn_t clawhost_turn_t;
typedef clawhost_plugin_types_trajectory_t clawhost_trajectory_t;
typedef clawhost_plugin_types_vote_t clawhost_vote_t;
typedef clawhost_plugin_types_verdict_t clawhost_verdict_t;
typedef clawhost_plugin_types_metric_t clawhost_metric_t;
typedef clawhost_plugin_types_list_metric_t clawhost_metrics_t;
typedef clawhost_plugin_types_plugin_error_t clawhost_error_t;

#define CLAWHOST_SYSTEM CLAWHOST_PLUGIN_TYPES_ROLE_SYSTEM
#define CLAWHOST_USER CLAWHOST_PLUGIN_TYPES_ROLE_USER
#define CLAWHOST_ASSISTANT CLAWHOST_PLUGIN_TYPES_ROLE_ASSISTANT
#define CLAWHOST_TOOL CLAWHOST_PLUGIN_TYPES_ROLE_TOOL

// ---- Text

static inline void *clawhost_grow(void *old, size_t bytes) {
  void *grown = realloc(old, bytes ? bytes : 1);
  if (grown == NULL) abort();
  return grown;
}

// A view of zero-terminated text, such as a literal.
static inline clawhost_string_t clawhost_view(const char *text) {
  return (clawhost_string_t){(uint8_t *)text, strlen(text)};
}

// A heap copy of text, which can be freed.
static inline clawhost_string_t clawhost_copy(clawhost_string_t text) {
  clawhost_string_t copy = {clawhost_grow(NULL, text.len), text.len};
  if (text.len) memcpy(copy.ptr, text.ptr, text.len);
  return copy;
}

// Formats new text like printf. To print a clawhost_string_t, use "%.*s" with CLAWHOST_ARG(text).
__attribute__((format(printf, 1, 2))) static inline clawhost_string_t clawhost_format(
    const char *format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  int length = vsnprintf(NULL, 0, format, args);
  if (length < 0) abort();
  char *text = clawhost_grow(NULL, (size_t)length + 1);
  vsnprintf(text, (size_t)length + 1, format, again);
  va_end(again);
  va_end(args);
  return (clawhost_string_t){(uint8_t *)text, (size_t)length};
}

#define CLAWHOST_ARG(text) (int)(text).len, (const char *)(text).ptr

// Appends text, after the separator if `joins` is set.
static inline void clawhost_append(clawhost_string_t *to, clawhost_string_t more, bool joins,
                                   const char *separator) {
  size_t between = joins ? strlen(separator) : 0;
  to->ptr = clawhost_grow(to->ptr, to->len + between + more.len);
  if (between) memcpy(to->ptr + to->len, separator, between);
  if (more.len) memcpy(to->ptr + to->len + between, more.ptr, more.len);
  to->len += between + more.len;
}

static inline uint8_t clawhost_lower(uint8_t c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; }

// Whether text contains the words, ignoring the case of ASCII letters.
static inline bool clawhost_contains(clawhost_string_t text, const char *words) {
  size_t length = strlen(words);
  for (size_t at = 0; at + length <= text.len; at++) {
    size_t same = 0;
    while (same < length &&
           clawhost_lower(text.ptr[at + same]) == clawhost_lower((uint8_t)words[same]))
      same++;
    if (same == length) return true;
  }
  return false;
}

// The length in bytes of the white space character (Unicode White_Space) at `at`; 0 if none.
static inline size_t clawhost_white_space(clawhost_string_t text, size_t at) {
  const uint8_t *c = text.ptr + at;
  size_t left = text.len - at;
  if (c[0] == ' ' || (c[0] >= '\t' && c[0] <= '\r')) return 1;
  if (left >= 2 && c[0] == 0xC2 && (c[1] == 0x85 || c[1] == 0xA0)) return 2;
  if (left < 3) return 0;
  uint32_t three = (uint32_t)c[0] << 16 | (uint32_t)c[1] << 8 | c[2];
  bool space = three == 0xE19A80 || (three >= 0xE28080 && three <= 0xE2808A) ||
               three == 0xE280A8 || three == 0xE280A9 || three == 0xE280AF || three == 0xE2819F ||
               three == 0xE38080;
  return space ? 3 : 0;
}

// The number of words separated by Unicode white space.
static inline size_t clawhost_count_words(clawhost_string_t text) {
  size_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < text.len;) {
    size_t space = clawhost_white_space(text, at);
    if (space == 0 && !inside) words++;
    inside = space == 0;
    at += space ? space : 1;
  }
  return words;
}

// ---- Conversations

// The visible text of a message: all text parts, joined by newlines.
static inline clawhost_string_t clawhost_text(const clawhost_message_t *message) {
  clawhost_string_t text = {NULL, 0};
  bool first = true;
  for (size_t i = 0; i < message->content.len; i++) {
    const clawhost_part_t *part = &message->content.ptr[i];
    if (part->tag != CLAWHOST_PLUGIN_TYPES_PART_TEXT) continue;
    clawhost_append(&text, part->val.text, !first, "\n");
    first = false;
  }
  return text;
}

// The next message of a role, starting at position *at; NULL after the last.
//
//     size_t at = 0;
//     for (const clawhost_message_t *m; (m = clawhost_next(&turn->next_state, CLAWHOST_TOOL, &at));)
static inline const clawhost_message_t *clawhost_next(const clawhost_messages_t *messages,
                                                      clawhost_role_t role, size_t *at) {
  while (*at < messages->len) {
    const clawhost_message_t *message = &messages->ptr[(*at)++];
    if (message->role == role) return message;
  }
  return NULL;
}

// The text of the user messages after the response, joined by newlines.
static inline clawhost_string_t clawhost_user_text(const clawhost_turn_t *turn) {
  clawhost_string_t text = {NULL, 0};
  const clawhost_message_t *message;
  bool first = true;
  for (size_t at = 0; (message = clawhost_next(&turn->next_state, CLAWHOST_USER, &at));) {
    clawhost_append(&text, clawhost_text(message), !first, "\n");
    first = false;
  }
  return text;
}

// The text of the last user message before the response; empty if there is none.
static inline clawhost_string_t clawhost_last_request(const clawhost_turn_t *turn) {
  for (size_t i = turn->prompt.len; i > 0; i--)
    if (turn->prompt.ptr[i - 1].role == CLAWHOST_USER) return clawhost_text(&turn->prompt.ptr[i - 1]);
  return (clawhost_string_t){NULL, 0};
}

// ---- Results

// One vote behind a verdict: a finite score in the range of the reward.
static inline clawhost_vote_t clawhost_vote(float score, const char *rationale) {
  return (clawhost_vote_t){score, clawhost_copy(clawhost_view(rationale))};
}

// An accepted verdict without votes. The reward must be finite and from -1 to 1, unless the
// operator widened the range.
static inline clawhost_verdict_t clawhost_verdict(float reward, clawhost_string_t rationale) {
  return (clawhost_verdict_t){
      .reward = reward, .accept = true, .rationale = clawhost_copy(rationale)};
}

// The majority of votes: 1 if more are positive than negative, -1 if fewer, else 0. Votes of 0 do
// not count. The rationale joins those of the majority's votes. Takes ownership of the votes' texts.
static inline clawhost_verdict_t clawhost_majority(const clawhost_vote_t *votes, size_t count) {
  size_t up = 0, down = 0;
  for (size_t i = 0; i < count; i++) {
    up += votes[i].score > 0;
    down += votes[i].score < 0;
  }
  float reward = (float)(up > down) - (float)(up < down);
  clawhost_string_t rationale = {NULL, 0};
  bool none = true;
  for (size_t i = 0; i < count; i++) {
    if (!(votes[i].score * reward > 0 || (reward == 0 && up == 0))) continue;
    clawhost_append(&rationale, votes[i].rationale, !none, "; ");
    none = false;
  }
  if (none) rationale = clawhost_format("%zu for, %zu against", up, down);
  clawhost_verdict_t verdict = clawhost_verdict(reward, rationale);
  verdict.votes.ptr = clawhost_grow(NULL, count * sizeof *votes);
  if (count) memcpy(verdict.votes.ptr, votes, count * sizeof *votes);
  verdict.votes.len = count;
  return verdict;
}

// Adds a metric, a finite number. It is not used for training.
static inline void clawhost_metric(clawhost_metrics_t *metrics, const char *name, double value) {
  metrics->ptr = clawhost_grow(metrics->ptr, (metrics->len + 1) * sizeof *metrics->ptr);
  metrics->ptr[metrics->len++] = (clawhost_metric_t){clawhost_copy(clawhost_view(name)), value};
}

// Error functions. They set *error and return false, for `return clawhost_…(error, reason);`.

// The turn cannot be judged: it gets no verdict, which is not a reward of 0.
static inline bool clawhost_unsupported(clawhost_error_t *error, clawhost_string_t reason) {
  error->tag = CLAWHOST_PLUGIN_TYPES_PLUGIN_ERROR_UNSUPPORTED;
  error->val.unsupported = clawhost_copy(reason);
  return false;
}

// The input is malformed; the sample is quarantined.
static inline bool clawhost_invalid_input(clawhost_error_t *error, clawhost_string_t reason) {
  error->tag = CLAWHOST_PLUGIN_TYPES_PLUGIN_ERROR_INVALID_INPUT;
  error->val.invalid_input = clawhost_copy(reason);
  return false;
}

// A temporary failure; the call may be retried.
static inline bool clawhost_transient(clawhost_error_t *error, clawhost_string_t reason) {
  error->tag = CLAWHOST_PLUGIN_TYPES_PLUGIN_ERROR_TRANSIENT;
  error->val.transient = clawhost_copy(reason);
  return false;
}

// A bug in this plugin.
static inline bool clawhost_internal(clawhost_error_t *error, clawhost_string_t reason) {
  error->tag = CLAWHOST_PLUGIN_TYPES_PLUGIN_ERROR_INTERNAL;
  error->val.internal = clawhost_copy(reason);
  return false;
}

// The turn at an index, or NULL with *error set if the index is out of range.
static inline const clawhost_turn_t *clawhost_turn(const clawhost_trajectory_t *trajectory,
                                                   uint32_t index, clawhost_error_t *error) {
  if (index < trajectory->turns.len) return &trajectory->turns.ptr[index];
  clawhost_invalid_input(error, clawhost_format("turn %u of a trajectory with %zu turns",
                                                (unsigned)index, trajectory->turns.len));
  return NULL;
}

// ---- The host

// Writes a line at level info to the host's log, which limits the number and length of lines.
static inline void clawhost_log(clawhost_string_t message) {
  clawhost_list_tuple2_string_string_t fields = {NULL, 0};
  clawhost_plugin_log_write(CLAWHOST_PLUGIN_LOG_LEVEL_INFO, &message, &fields);
}

// A setting of this plugin from the operator's configuration, as JSON text; false when not set.
static inline bool clawhost_setting(const char *key, clawhost_string_t *json) {
  clawhost_string_t name = clawhost_view(key);
  return clawhost_plugin_context_setting(&name, json);
}

// Reads a setting into *value, which holds the default. A setting that is not a number in the range
// is an error with its name; it is never silently replaced by the default.
static inline bool clawhost_setting_between(const char *key, bool whole, double least, double most,
                                            double *value, clawhost_error_t *error) {
  clawhost_string_t json;
  if (!clawhost_setting(key, &json)) return true;
  char text[64] = "", *end = text;
  // Rejects "nan", "0x10" and quoted text, which have other characters.
  bool number = json.len > 0 && json.len < sizeof text;
  for (size_t i = 0; number && i < json.len; i++) number = strchr("0123456789+-.eE", json.ptr[i]);
  if (number) memcpy(text, json.ptr, json.len);
  *value = strtod(text, &end);
  number = end != text && *end == 0 && *value >= least && *value <= most;
  if (number && (!whole || *value == (double)(int64_t)*value)) return true;
  json.len = json.len < 80 ? json.len : 80;
  clawhost_invalid_input(
      error, clawhost_format("the setting `%s` is %.*s, expected a %snumber from %.10g to %.10g", key,
                             CLAWHOST_ARG(json), whole ? "whole " : "", least, most));
  return false;
}

// Reads a setting that is a number within a range; returns false and sets *error if it is not.
static inline bool clawhost_number_setting(const char *key, double fallback, double least,
                                           double most, double *value, clawhost_error_t *error) {
  *value = fallback;
  return clawhost_setting_between(key, false, least, most, value, error);
}

// Reads a setting that is a whole number within a range; likewise.
static inline bool clawhost_count_setting(const char *key, uint32_t fallback, uint32_t least,
                                          uint32_t most, uint32_t *value, clawhost_error_t *error) {
  double number = fallback;
  if (!clawhost_setting_between(key, true, least, most, &number, error)) return false;
  *value = (uint32_t)number;
  return true;
}

#endif
