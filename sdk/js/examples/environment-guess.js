// A game: guess a number from 1 to 10 in at most five turns.

import { message, text } from "../clawhost.js";

const TURNS = 5;

class Session {
  constructor(secret) {
    this.secret = secret;
    this.turns = 0;
    this.won = false;
  }

  static reset(_task, seed) {
    const opening = message("user", "Guess my number, from 1 to 10.");
    return [new Session((Number(seed) % 10) + 1), { messages: [opening], tools: [] }];
  }

  step(action) {
    const guess = Number.parseInt(text(action), 10) || 0;
    this.turns += 1;
    this.won = guess === this.secret;
    if (this.won) return this.says("Yes.", "terminated");
    if (this.turns >= TURNS) return this.says("Too late.", "truncated");
    return this.says(guess < this.secret ? "Higher." : "Lower.", "running");
  }

  says(answer, status) {
    const observation = { messages: [message("user", answer)], tools: [] };
    return { observation, reward: this.won ? 1 : 0, status, metrics: [] };
  }

  grade() {
    const reward = this.won ? 1 : 0;
    return { reward, success: this.won, report: `${this.turns} turns`, metrics: [] };
  }

  close() {}
}

export const environment = { Session };
