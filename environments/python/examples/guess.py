"""Guess a number: the game of `environment-guess`, as a class with the methods of gymnasium."""

import json

TOOL = {
    "name": "guess",
    "description": "Guesses the number; the answer says whether it is higher or lower.",
    "parameters": {
        "type": "object",
        "properties": {"number": {"type": "integer"}},
        "required": ["number"],
        "additionalProperties": False,
    },
}
MASK = (1 << 64) - 1


def mixed(seed):
    mixed = (seed + 0x9E3779B97F4A7C15) & MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
    return mixed ^ (mixed >> 31)


class Guess:
    tools = [TOOL]

    def __init__(self, low=1, high=100, tries=7):
        self.low, self.high, self.tries = low, high, tries

    def reset(self, seed=None):
        self.number = self.low + (mixed(seed or 0) * (self.high - self.low + 1) >> 64)
        self.used, self.found = 0, False
        question = (
            f"I think of a whole number from {self.low} to {self.high}. Find it with the tool `guess` in at most "
            f"{self.tries} tries."
        )
        return question, {}

    def step(self, action):
        self.used += 1
        calls = action.get("tool_calls") or []
        if calls:
            text = self.answer(calls[0]["function"])
        else:
            text = f"That was no call of a tool. Call `guess` with {{\"number\": N}}. {self.left()}"
        truncated = not self.found and self.used >= self.tries
        reward = 0.0
        if self.found:
            reward = 1.0 - (self.used - 1) / self.tries
        elif truncated:
            reward = -1.0
        return text, reward, self.found, truncated, {"success": self.found}

    def answer(self, call):
        if call["name"] != "guess":
            return f"There is no such tool; the only one is `guess` with {{\"number\": N}}. {self.left()}"
        try:
            number = json.loads(call["arguments"])["number"]
        except (ValueError, KeyError, TypeError):
            number = None
        if type(number) is not int:
            return f"`guess` takes {{\"number\": N}} with a whole number N. {self.left()}"
        if number == self.number:
            self.found = True
            return f"{number} is found."
        if not self.low <= number <= self.high:
            return f"{number} is not from {self.low} to {self.high}. {self.left()}"
        way = "higher" if number < self.number else "lower"
        return f"The number is {way} than {number}. {self.left()}"

    def left(self):
        left = self.tries - self.used
        if left == 0:
            return "No tries are left."
        return "One try is left." if left == 1 else f"{left} tries are left."
