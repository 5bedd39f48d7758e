#!/usr/bin/env python3
"""Conversations of a scripted expert on the train families of tasks.jsonl, for `clawhost sft`.

    python3 environments/toolcall/demonstrations.py --count 400 > demonstrations.jsonl
    clawhost sft --model ./SmolLM2-135M-Instruct.Q4_1.gguf --data demonstrations.jsonl --out ./beginner

The same arguments give the same conversations. No question of the task set, and no held-out family, is among them. The expert
writes the calculation and the answer in one line of prose. `--wrong SHARE` makes it calculate wrongly in a share of them, for
a beginner that still has something to learn.
"""

import argparse
import json
import pathlib
import random

NAMES = ["Ada", "Ben", "Carla", "David", "Ella", "Finn", "Greta", "Hugo", "Iris", "Jonas", "Kate", "Leo"]
THINGS = ["apples", "balls", "books", "buttons", "coins", "cups", "keys", "letters", "marbles", "pens", "shells", "stones"]
ENDINGS = ["", " Keep it short.", " Just the answer, please."]


def gained(draw, name, thing, _):
    a, b = draw(2, 30), draw(2, 20)
    question = f"{name} has {a} {thing} and finds {b} more. How many {thing} does {name} have now?"
    return question, f"{a} + {b}", a + b, f"{name} has {{}} {thing} now."


def lost(draw, name, thing, _):
    a = draw(4, 30)
    b = draw(1, a - 1)
    question = f"{name} has {a} {thing} and gives away {b} of them. How many {thing} are left?"
    return question, f"{a} - {b}", a - b, f"{{}} {thing} are left."


def together(draw, name, thing, other):
    a, b = draw(2, 20), draw(2, 20)
    question = f"{name} has {a} {thing}. {other} has {b} {thing}. How many {thing} do they have together?"
    return question, f"{a} + {b}", a + b, f"together they have {{}} {thing}."


def groups(draw, name, thing, _):
    a, b = draw(2, 10), draw(2, 10)
    question = f"{name} packs {a} boxes with {b} {thing} in each box. How many {thing} is that?"
    return question, f"{a} * {b}", a * b, f"that is {{}} {thing}."


def shared(draw, name, thing, _):
    a, b = draw(2, 10), draw(2, 10)
    question = f"{name} shares {a * b} {thing} equally among {b} friends. How many {thing} does each one get?"
    return question, f"{a * b} / {b}", a, f"each one gets {{}} {thing}."


FAMILIES = [gained, lost, together, groups, shared]


def conversations(count, seed, wrong, known):
    random_numbers = random.Random(seed)
    made = set(known)
    while count > 0:
        family = FAMILIES[count % len(FAMILIES)]
        name, other = random_numbers.sample(NAMES, 2)
        question, calculation, result, sentence = family(random_numbers.randint, name, random_numbers.choice(THINGS), other)
        question += random_numbers.choice(ENDINGS)
        if question in made:
            continue
        made.add(question)
        # A calculator that is off by a little.
        shown = result + random_numbers.choice([-2, -1, 1, 2]) if random_numbers.random() < wrong else result
        # `*` is Markdown to the check of a line of prose.
        text = f"{calculation} = {shown}, so {sentence.format(shown)}".replace("*", "x")
        yield {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": text}]}
        count -= 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=400, help="conversations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wrong", type=float, default=0.0, metavar="SHARE", help="share of wrong calculations")
    arguments = parser.parse_args()
    tasks = pathlib.Path(__file__).with_name("tasks.jsonl").read_text().splitlines()
    known = [json.loads(task)["instruction"] for task in tasks]
    for conversation in conversations(arguments.count, arguments.seed, arguments.wrong, known):
        print(json.dumps(conversation, ensure_ascii=False))


main()
