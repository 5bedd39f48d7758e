"""The unmodified `anthropic` Python client."""

import sys

import anthropic
import cases
from anthropic import Anthropic, AsyncAnthropic
from cases import ASKS_WEATHER, CITIES, CITY, CONCLUSION, ENDLESS, GREETING, GREETS, SAYS_WEATHER, STOPS, THINKS, THOUGHT, WEATHER, WEATHER_IS



def tool(function):
    return {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}


TOOLS = [tool(WEATHER)]


def client(url):
    return Anthropic(base_url=url, api_key="anything", max_retries=0)


def asked(url, text, **more):
    # This client has no sampling arguments any more, but the API still has the fields.
    body = {"temperature": 0, **more.pop("extra_body", {})}
    return {"model": model(url), "max_tokens": 100, "messages": [{"role": "user", "content": text}], "extra_body": body, **more}


def model(url):
    return client(url).models.list().data[0].id


def case_models(url):
    first = client(url).models.list().data[0]
    assert first.type == "model" and first.display_name == first.id and first.created_at.year
    assert client(url).models.retrieve(first.id).id == first.id


def case_create(url):
    message = client(url).messages.create(**asked(url, GREETS, system="Be brief."))
    assert [block.text for block in message.content] == [GREETING]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.input_tokens > 5 and message.usage.output_tokens > 3
    assert message._request_id
    message = client(url).messages.create(**asked(url, STOPS, stop_sequences=["STOP"]))
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "STOP")
    assert message.content[0].text == "one "
    message = client(url).messages.create(**asked(url, ENDLESS, max_tokens=4))
    assert message.stop_reason == "max_tokens" and message.usage.output_tokens == 4


async def case_async(url):
    async with AsyncAnthropic(base_url=url, api_key="anything", max_retries=0) as client:
        message = await client.messages.create(**asked(url, GREETS))
        assert message.content[0].text == GREETING


def case_stream(url):
    with client(url).messages.stream(**asked(url, GREETS)) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(pieces) == GREETING and len(pieces) > 2
    assert final.content[0].text == GREETING and final.stop_reason == "end_turn"
    assert final.usage.output_tokens > 3
    kinds = [event.type for event in client(url).messages.create(**asked(url, GREETS), stream=True)]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds


def case_thinking(url):
    message = client(url).messages.create(**asked(url, THINKS, thinking={"type": "enabled", "budget_tokens": 1024}))
    thought, text = message.content
    assert (thought.type, thought.thinking, text.text) == ("thinking", THOUGHT, CONCLUSION)
    with client(url).messages.stream(**asked(url, THINKS)) as stream:
        final = stream.get_final_message()
    assert final.content[0].thinking == THOUGHT and final.content[0].signature == thought.signature
    history = asked(url, THINKS)
    history["messages"] += [{"role": "assistant", "content": message.content}, {"role": "user", "content": GREETS}]
    assert client(url).messages.create(**history).content[0].text == GREETING


def case_tools(url):
    first = client(url).messages.create(**asked(url, ASKS_WEATHER, tools=TOOLS, tool_choice={"type": "auto"}))
    call = first.content[-1]
    assert (first.stop_reason, call.type, call.name, call.input) == ("tool_use", "tool_use", "get_weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": WEATHER_IS}
    history = asked(url, ASKS_WEATHER, tools=TOOLS)
    history["messages"] += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    assert client(url).messages.create(**history).content[0].text == SAYS_WEATHER
    with client(url).messages.stream(**asked(url, ASKS_WEATHER, tools=TOOLS)) as stream:
        final = stream.get_final_message()
    assert final.content[-1].input == {"city": "Paris"} and final.stop_reason == "tool_use"


def case_forced_tools(url):
    for choice in ({"type": "any"}, {"type": "tool", "name": "choose_city"}):
        choice["disable_parallel_tool_use"] = True
        message = client(url).messages.create(**asked(url, GREETS, max_tokens=500, tools=[tool(CITY)], tool_choice=choice))
        (call,) = message.content
        assert (call.type, call.name) == ("tool_use", "choose_city") and call.input["city"] in CITIES, message
        assert message.stop_reason == "tool_use"


def case_count_tokens(url):
    counted = client(url).messages.count_tokens(model=model(url), messages=[{"role": "user", "content": GREETS}])
    usage = client(url).messages.create(**asked(url, GREETS)).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def refused(kind, status, ask, **arguments):
    try:
        ask(**arguments)
    except kind as error:
        assert error.status_code == status and error.body["type"] == "error", error.body
        assert error.request_id
        return error.body["error"]["type"]
    raise AssertionError(f"{arguments} was not refused")


def case_errors(url):
    ask = client(url).messages.create
    kind = refused(anthropic.NotFoundError, 404, ask, **asked(url, "x") | {"model": "claude-x"})
    assert kind == "not_found_error"
    kind = refused(anthropic.BadRequestError, 400, ask, **asked(url, "x", extra_body={"top_k": -5}))
    assert kind == "invalid_request_error"
    refused(anthropic.BadRequestError, 400, ask, **asked(url, "x" * 9000))
    image = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}]
    refused(anthropic.BadRequestError, 400, ask, **asked(url, image))


if __name__ == "__main__":
    cases.run(sys.modules[__name__])
