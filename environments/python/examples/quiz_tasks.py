#!/usr/bin/env python3
"""Prints `quiz.jsonl`: tasks of `quiz.py` with three questions each, from the task set of `environments/toolcall`.

    environments/python/examples/quiz_tasks.py > environments/python/examples/quiz.jsonl
"""

import json
import pathlib
import random

HERE = pathlib.Path(__file__).parent
COUNTS = {"train": 32, "held-out": 16}
QUESTIONS = 3


def main():
    source = (HERE / "quiz.py").read_text()
    lines = (HERE / "../../toolcall/tasks.jsonl").read_text().splitlines()
    asked = [json.loads(line) for line in lines]
    draw = random.Random(1)
    number = 0
    for split, count in COUNTS.items():
        pool = [task for task in asked if task["split"] == split]
        deck = []
        for _ in range(count):
            if len(deck) < QUESTIONS:
                deck = draw.sample(pool, len(pool))
            questions = [deck.pop() for _ in range(QUESTIONS)]
            number += 1
            task = {"id": f"quiz-{number}", "instruction": "I have some questions for you.", "family": "quiz", "split": split}
            task |= {"class": "quiz:Quiz", "form": "line", "files": {"quiz.py": source}}
            task["arguments"] = {"questions": [{"question": one["instruction"], "answer": one["answer"]} for one in questions]}
            print(json.dumps(task))


main()
