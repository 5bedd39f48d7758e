"""LiteLLM with the OpenAI and Anthropic APIs."""

import json
import os
import sys

# Its price list would be downloaded and is not needed.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import cases
import litellm
from cases import ASKS_WEATHER, GREETING, GREETS, SAYS_WEATHER, WEATHER, WEATHER_IS
from openai import OpenAI

litellm.telemetry = False
TOOLS = [{"type": "function", "function": WEATHER}]


def dialects(url):
    model = OpenAI(base_url=f"{url}/v1", api_key="anything").models.list().data[0].id
    common = {"api_key": "anything", "temperature": 0, "max_tokens": 100, "num_retries": 0}
    yield {"model": f"openai/{model}", "api_base": f"{url}/v1", **common}
    yield {"model": f"anthropic/{model}", "api_base": url, **common}


def user(text):
    return [{"role": "user", "content": text}]


def case_completion(url):
    for dialect in dialects(url):
        reply = litellm.completion(messages=user(GREETS), **dialect)
        assert reply.choices[0].message.content == GREETING, reply
        assert reply.usage.completion_tokens > 3


def case_stream(url):
    for dialect in dialects(url):
        chunks = list(litellm.completion(messages=user(GREETS), stream=True, **dialect))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == GREETING, chunks


def case_tools(url):
    for dialect in dialects(url):
        messages = user(ASKS_WEATHER)
        reply = litellm.completion(messages=messages, tools=TOOLS, **dialect)
        message = reply.choices[0].message
        assert reply.choices[0].finish_reason == "tool_calls"
        assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Paris"}
        messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": WEATHER_IS}]
        reply = litellm.completion(messages=messages, tools=TOOLS, **dialect)
        assert reply.choices[0].message.content == SAYS_WEATHER


def refused(kind, text, dialect):
    try:
        litellm.completion(messages=user(text), **dialect)
    except kind:
        return
    raise AssertionError(f"{dialect} was not refused")


def case_errors(url):
    for dialect in dialects(url):
        refused(litellm.NotFoundError, "x", dialect | {"model": dialect["model"].split("/")[0] + "/nothing"})


def case_context(url):
    for dialect in dialects(url):
        refused(litellm.ContextWindowExceededError, "x" * 9000, dialect)


if __name__ == "__main__":
    cases.run(sys.modules[__name__])
