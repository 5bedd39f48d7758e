"""The unmodified `openai` Python client, chat completions and Responses."""

import json
import sys
from typing import Literal

import cases
import openai
from cases import ASKS_WEATHER, CITIES, CITY, CONCLUSION, ENDLESS, GREETING, GREETS, SAYS_WEATHER, STOPS, THINKS, THOUGHT, WEATHER, WEATHER_IS
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

TOOLS = [{"type": "function", "function": WEATHER}]
FLAT_TOOLS = [{"type": "function", **WEATHER}]


class Weather(BaseModel):
    city: Literal["Paris", "Rome"]
    degrees: int = Field(ge=0, le=9)


def client(url, **options):
    return OpenAI(base_url=f"{url}/v1", api_key="anything", max_retries=0, **options)


def user(text):
    return [{"role": "user", "content": text}]


def model(url):
    return client(url).models.list().data[0].id


def case_models(url):
    names = [model.id for model in client(url).models.list()]
    assert client(url).models.retrieve(names[0]).id == names[0]


def case_create(url):
    reply = client(url).chat.completions.create(model=model(url), messages=user(GREETS), temperature=0)
    assert reply.choices[0].message.content == GREETING, reply
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply._request_id


async def case_async(url):
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="anything", max_retries=0) as client:
        name = (await client.models.list()).data[0].id
        reply = await client.chat.completions.create(model=name, messages=user(GREETS), temperature=0)
        assert reply.choices[0].message.content == GREETING
        text = ""
        stream = await client.chat.completions.create(model=name, messages=user(GREETS), temperature=0, stream=True)
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        assert text == GREETING


def case_stream(url):
    stream = client(url).chat.completions.create(
        model=model(url), messages=user(GREETS), temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == GREETING
    assert chunks[-1].usage.completion_tokens > 3 and chunks[-1].choices == []
    assert len(chunks) > 5


def case_stream_helper(url):
    with client(url).chat.completions.stream(model=model(url), messages=user(ASKS_WEATHER), tools=TOOLS, temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds, kinds
    assert json.loads(final.choices[0].message.tool_calls[0].function.arguments) == {"city": "Paris"}


def case_leave_a_stream(url):
    stream = client(url).chat.completions.create(model=model(url), messages=user(ENDLESS), temperature=0, stream=True)
    for index, _ in enumerate(stream):
        if index == 5:
            break
    stream.close()


def case_tools(url):
    messages = user(ASKS_WEATHER)
    ask = client(url).chat.completions.create
    reply = ask(model=model(url), messages=messages, tools=TOOLS, temperature=0)
    assert reply.choices[0].finish_reason == "tool_calls"
    call = reply.choices[0].message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    messages += [reply.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": WEATHER_IS}]
    reply = ask(model=model(url), messages=messages, tools=TOOLS, temperature=0)
    assert reply.choices[0].message.content == SAYS_WEATHER


def case_parse_tools(url):
    class get_weather(BaseModel):
        city: str

    reply = client(url).chat.completions.parse(
        model=model(url), messages=user(ASKS_WEATHER), tools=[openai.pydantic_function_tool(get_weather)], temperature=0
    )
    assert reply.choices[0].message.tool_calls[0].function.parsed_arguments == get_weather(city="Paris")


def case_structured_output(url):
    asked = {"model": model(url), "messages": user(GREETS), "response_format": Weather, "temperature": 0}
    reply = client(url).chat.completions.parse(**asked)
    assert isinstance(reply.choices[0].message.parsed, Weather), reply
    assert reply.choices[0].finish_reason == "stop"
    with client(url).chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Weather), final
    answer = client(url).responses.parse(model=model(url), input=GREETS, text_format=Weather, temperature=0)
    assert isinstance(answer.output_parsed, Weather), answer


def case_forced_tools(url):
    tools = [{"type": "function", "function": CITY}]
    for choice in ("required", {"type": "function", "function": {"name": "choose_city"}}):
        reply = client(url).chat.completions.create(
            model=model(url), messages=user(GREETS), tools=tools, tool_choice=choice, parallel_tool_calls=False, temperature=0
        )
        (call,) = reply.choices[0].message.tool_calls
        assert call.function.name == "choose_city" and json.loads(call.function.arguments)["city"] in CITIES, reply


def case_reasoning(url):
    reply = client(url).chat.completions.create(model=model(url), messages=user(THINKS), temperature=0)
    assert reply.choices[0].message.reasoning_content == THOUGHT
    assert reply.choices[0].message.content == CONCLUSION
    assert reply.usage.completion_tokens_details.reasoning_tokens > 0


def case_logprobs_n_stop_and_seed(url):
    ask = client(url).chat.completions.create
    reply = ask(model=model(url), messages=user(GREETS), temperature=0, logprobs=True, top_logprobs=3, n=2)
    assert [choice.index for choice in reply.choices] == [0, 1]
    for choice in reply.choices:
        content = choice.logprobs.content
        assert len(content) * 2 == reply.usage.completion_tokens
        assert bytes(content[0].bytes).decode() == content[0].token
        assert len(content[0].top_logprobs) == 3 and content[0].top_logprobs[0].logprob == content[0].logprob
    reply = ask(model=model(url), messages=user(STOPS), temperature=0, stop=["STOP"])
    assert reply.choices[0].message.content == "one "
    reply = ask(model=model(url), messages=user(ENDLESS), temperature=0, max_completion_tokens=4)
    assert reply.choices[0].finish_reason == "length" and reply.usage.completion_tokens == 4
    texts = [
        ask(model=model(url), messages=user("?."), temperature=2, seed=7, max_tokens=8).choices[0].message.content for _ in "ab"
    ]
    assert texts[0] == texts[1]


def case_headers(url):
    raw = client(url).chat.completions.with_raw_response.create(model=model(url), messages=user(GREETS), temperature=0)
    assert raw.headers["x-clawhost-session"] and int(raw.headers["x-clawhost-turn"])
    assert raw.headers["x-clawhost-adapter"].count(":") == 1
    assert raw.parse().choices[0].message.content == GREETING


def refused(kind, status, ask, **arguments):
    try:
        ask(**arguments)
    except kind as error:
        assert error.status_code == status, error
        assert error.body["message"] and error.request_id
        return error
    raise AssertionError(f"{arguments} was not refused")


def case_errors(url):
    ask = client(url).chat.completions.create
    error = refused(openai.NotFoundError, 404, ask, model="gpt-x", messages=user("x"))
    assert error.code == "model_not_found" and error.param == "model"
    error = refused(openai.BadRequestError, 400, ask, model=model(url), messages=[{"role": "wizard", "content": "x"}])
    assert error.param == "messages[0].role"
    error = refused(openai.BadRequestError, 400, ask, model=model(url), messages=user("x"), temperature=9)
    assert error.param == "temperature"
    error = refused(openai.BadRequestError, 400, ask, model=model(url), messages=user("x" * 9000))
    assert error.code == "context_length_exceeded"
    refused(openai.NotFoundError, 404, client(url).models.retrieve, model="nothing")
    refused(openai.NotFoundError, 404, client(url).responses.retrieve, response_id="resp_0")


def case_responses(url):
    ask = client(url).responses.create
    reply = ask(model=model(url), input=GREETS, temperature=0, instructions="Be brief.")
    assert reply.output_text == GREETING and reply.status == "completed"
    assert client(url).responses.retrieve(reply.id).output_text == GREETING
    reply = ask(model=model(url), input=THINKS, temperature=0)
    assert [item.type for item in reply.output] == ["reasoning", "message"]
    assert reply.output[0].content[0].text == THOUGHT and reply.output_text == CONCLUSION
    reply = ask(model=model(url), input=ENDLESS, max_output_tokens=4, temperature=0)
    assert reply.status == "incomplete" and reply.incomplete_details.reason == "max_output_tokens"
    assert client(url).responses.input_tokens.count(model=model(url), input=GREETS).input_tokens > 5
    refused(openai.BadRequestError, 400, ask, model=model(url), input=GREETS, previous_response_id="resp_0")


def case_responses_tools(url):
    ask = client(url).responses.create
    first = ask(model=model(url), input=ASKS_WEATHER, tools=FLAT_TOOLS, temperature=0)
    call = first.output[-1]
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Paris"})
    result = {"type": "function_call_output", "call_id": call.call_id, "output": WEATHER_IS}
    second = ask(model=model(url), input=[result], previous_response_id=first.id, tools=FLAT_TOOLS, temperature=0)
    assert second.output_text == SAYS_WEATHER
    items = [{"role": "user", "content": ASKS_WEATHER}, *first.output, result]
    third = ask(model=model(url), input=items, tools=FLAT_TOOLS, temperature=0)
    assert third.output_text == SAYS_WEATHER


def case_responses_stream(url):
    for text, wanted in ((GREETS, GREETING), (THINKS, CONCLUSION)):
        with client(url).responses.stream(model=model(url), input=text, temperature=0) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        assert final.output_text == wanted
        assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
    with client(url).responses.stream(model=model(url), input=ASKS_WEATHER, tools=FLAT_TOOLS, temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.function_call_arguments.done" in kinds
    assert json.loads(final.output[-1].arguments) == {"city": "Paris"}


if __name__ == "__main__":
    cases.run(sys.modules[__name__])
