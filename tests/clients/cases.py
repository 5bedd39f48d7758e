"""Runs the functions of a script whose names start with `case_`, in order, and prints their names as JSON.

Each takes the address of a server whose scripted model replies by the last character of the prompt; the replies are in
`tests/conformance/model.rs`.
"""

import asyncio
import inspect
import json
import sys


def run(module):
    url, done = sys.argv[1], []
    for name, case in list(vars(module).items()):
        if name.startswith("case_"):
            result = case(url)
            if inspect.iscoroutine(result):
                asyncio.run(result)
            done.append(name.removeprefix("case_"))
    print(json.dumps(done))


WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CITIES = ["Paris", "Rome"]
# Structured output for a model that would otherwise reply differently.
CITY = {
    "name": "choose_city",
    "description": "Chooses a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": CITIES}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
ASKS_WEATHER = "What is the weather in Paris?"
WEATHER_IS = "22 degrees;"
SAYS_WEATHER = "It is 22 degrees."
GREETS = "Say hello!"
GREETING = "Hello there, friend."
ENDLESS = "Count forever~"
THINKS = "What is 2+2#"
THOUGHT, CONCLUSION = "Two and two.", "It is 4."
STOPS = "One two%"
