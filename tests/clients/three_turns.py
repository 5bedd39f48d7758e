"""The unmodified `openai` client: three streaming turns without special headers, then more short conversations until a
reply comes from a newer adapter.

Usage: three_turns.py BASE_URL MOST_CONVERSATIONS

Prints one JSON object: {"turns": [{"turn", "session", "adapter", "text", "chunks"}, ...] of the first
conversation, "later": {the same for the reply from a newer adapter, or null}, "conversations"}.
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
    base_url, most = sys.argv[1], int(sys.argv[2])
    client = OpenAI(base_url=base_url, api_key="anything", max_retries=0)
    model = client.models.list().data[0].id
    first = Conversation(client, model)
    question = "Lea has 12 marbles and gives 5 of them away. How many are left?"
    turns = [first.say(text) for text in (question, COMPLAINT, THANKS)]
    later, conversations = None, 1
    while later is None and conversations < most:
        conversations += 1
        question = f"A box holds {conversations} pens. How many pens do 3 boxes hold?"
        talk = Conversation(client, model)
        for text in (question, COMPLAINT, THANKS):
            said = talk.say(text)
            if said["adapter"] > turns[0]["adapter"]:
                later = said
                break
    print(json.dumps({"turns": turns, "later": later, "conversations": conversations}))


if __name__ == "__main__":
    main()
