"""One conversation of the unmodified `openai` client: three streaming turns without special headers.

Usage: three_turns.py BASE_URL

Prints one JSON list: {"turn", "session", "adapter", "text", "chunks"} of each turn.
"""

import json
import sys

from openai import OpenAI

COMPLAINT = "That's wrong. Please rewrite it as one plain sentence."
THANKS = "Thanks, that's perfect!"


class Conversation:
    def __init__(self, client, model):
        self.client, self.model, self.messages = client, model, []

    def say(self, text):
        self.messages.append({"role": "user", "content": text})
        response = self.client.chat.completions.with_raw_response.create(
            model=self.model,
            messages=self.messages,
            stream=True,
            max_tokens=120,
        )
        pieces, finish = [], None
        for chunk in response.parse():
            for choice in chunk.choices:
                if choice.delta.content:
                    pieces.append(choice.delta.content)
                finish = choice.finish_reason or finish
        assert finish in ("stop", "length"), finish
        reply = "".join(pieces)
        self.messages.append({"role": "assistant", "content": reply})
        return {
            "turn": int(response.headers["x-clawhost-turn"]),
            "session": response.headers["x-clawhost-session"],
            "adapter": int(response.headers["x-clawhost-adapter"].split(":")[0]),
            "text": reply,
            "chunks": len(pieces),
        }


def main():
    client = OpenAI(base_url=sys.argv[1], api_key="anything", max_retries=0)
    model = client.models.list().data[0].id
    talk = Conversation(client, model)
    question = "Lea has 12 marbles and gives 5 of them away. How many are left?"
    print(json.dumps([talk.say(text) for text in (question, COMPLAINT, THANKS)]))


if __name__ == "__main__":
    main()
