"""A game: guess a number from 1 to 10 in at most five turns."""

from clawhost_sdk import Role, message, text
from wit_world.exports import environment
from wit_world.exports.environment import Observation, Outcome, Status, Transition

TURNS = 5


class Session(environment.Session):
    def __init__(self, secret):
        self.secret = secret
        self.turns = 0
        self.won = False

    @classmethod
    def reset(cls, task, seed):
        opening = message(Role.USER, "Guess my number, from 1 to 10.")
        return cls(seed % 10 + 1), Observation([opening], [])

    def step(self, action):
        said = text(action).strip()
        guess = int(said) if said.isdecimal() else 0
        self.turns += 1
        self.won = guess == self.secret
        if self.won:
            answer, status = "Yes.", Status.TERMINATED
        elif self.turns >= TURNS:
            answer, status = "Too late.", Status.TRUNCATED
        else:
            answer = "Higher." if guess < self.secret else "Lower."
            status = Status.RUNNING
        seen = Observation([message(Role.USER, answer)], [])
        return Transition(seen, float(self.won), status, [])

    def grade(self):
        return Outcome(float(self.won), self.won, f"{self.turns} turns", [])

    def close(self):
        pass
