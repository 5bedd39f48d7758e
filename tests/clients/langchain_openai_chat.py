"""LangChain's `ChatOpenAI`."""

import asyncio
import sys
from typing import Literal

import cases
from cases import ASKS_WEATHER, GREETING, GREETS, SAYS_WEATHER, WEATHER, WEATHER_IS
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import BaseModel, ConfigDict


def chat(url, **options):
    model = OpenAI(base_url=f"{url}/v1", api_key="anything").models.list().data[0].id
    return ChatOpenAI(base_url=f"{url}/v1", api_key="anything", model=model, temperature=0, max_retries=0, **options)


def case_invoke(url):
    reply = chat(url).invoke([SystemMessage("Be brief."), HumanMessage(GREETS)])
    assert reply.content == GREETING
    assert reply.usage_metadata["total_tokens"] > 5
    assert asyncio.run(chat(url).ainvoke(GREETS)).content == GREETING
    assert [reply.content for reply in chat(url).batch([GREETS, GREETS])] == [GREETING] * 2


def case_stream(url):
    pieces = [chunk.content for chunk in chat(url).stream(GREETS)]
    assert "".join(pieces) == GREETING and len(pieces) > 3


def case_tools(url):
    bound = chat(url).bind_tools([{"type": "function", "function": WEATHER}])
    messages = [HumanMessage(ASKS_WEATHER)]
    reply = bound.invoke(messages)
    (call,) = reply.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    messages += [reply, ToolMessage(WEATHER_IS, tool_call_id=call["id"])]
    assert bound.invoke(messages).content == SAYS_WEATHER
    whole = None
    for chunk in bound.stream(ASKS_WEATHER):
        whole = chunk if whole is None else whole + chunk
    assert whole.tool_calls[0]["args"] == {"city": "Paris"}


class City(BaseModel):
    """A city."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Paris", "Rome"]


def case_structured_output(url):
    for method in ("json_schema", "function_calling"):
        assert isinstance(chat(url).with_structured_output(City, method=method).invoke(GREETS), City)


def case_responses(url):
    responses = chat(url, use_responses_api=True)
    assert responses.invoke(GREETS).text == GREETING
    assert "".join(chunk.text for chunk in responses.stream(GREETS)) == GREETING
    bound = responses.bind_tools([{"type": "function", "function": WEATHER}])
    assert bound.invoke(ASKS_WEATHER).tool_calls[0]["args"] == {"city": "Paris"}


if __name__ == "__main__":
    cases.run(sys.modules[__name__])
