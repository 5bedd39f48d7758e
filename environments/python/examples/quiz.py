"""Several questions in one conversation, graded at its end: who must not lose the form in a long talk.

A reply is right if it is one line of prose without Markdown and its last number is the answer. The next question follows in
any case, and nothing says whether a reply was right; the reward is that all were, or 2 · share - 1.
"""

import re


def is_right(reply, answer):
    text = reply.strip()
    is_prose = bool(text) and not re.search(r"[\n*|`]", text) and not re.match(r"[-#|>]|\d+[.)] ", text)
    numbers = re.findall(r"\d+", text)
    return is_prose and bool(numbers) and int(numbers[-1]) == answer


class Quiz:
    def __init__(self, questions):
        self.questions = questions

    def reset(self, seed=None):
        self.asked, self.right = 0, 0
        return self.questions[0]["question"], {}

    def step(self, action):
        self.right += is_right(action, self.questions[self.asked]["answer"])
        self.asked += 1
        count = len(self.questions)
        if self.asked < count:
            return self.questions[self.asked]["question"], 0.0, False, False, {}
        return "That was all.", 2 * self.right / count - 1, True, False, {"success": self.right == count}
