"""Runs a Python class as an environment: reads requests from one pipe, and writes answers to another.

It runs in a machine, beside nothing but the class. What the class prints goes to the log.
"""

import asyncio
import importlib
import inspect
import json
import re
import sys
import traceback

ASK, ANSWER = sys.argv[1:3]


def plain(value):
    """Numbers and arrays of numpy as those of Python; all else as text."""
    for convert in ("item", "tolist"):
        try:
            return getattr(value, convert)()
        except (AttributeError, ValueError):
            pass
    return str(value)


def encode(value):
    return json.dumps(value, default=plain, allow_nan=False)


def text_of(observation):
    return observation if isinstance(observation, str) else encode(observation)


def call(function, *args, **kwargs):
    """The result, also of a coroutine."""
    result = function(*args, **kwargs)
    if inspect.isawaitable(result):
        async def wait():
            return await result
        return asyncio.run(wait())
    return result


def fitting(function, kwargs):
    """Those of the arguments that the function takes."""
    parameters = inspect.signature(function).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return kwargs
    return {name: value for name, value in kwargs.items() if name in parameters}


def is_messages(value):
    return isinstance(value, list) and value and all(isinstance(one, dict) and "role" in one for one in value)


def message(one):
    content = one.get("content")
    seen = {"role": one["role"], "content": content if isinstance(content, str) else text_of(content or "")}
    if one.get("tool_call_id"):
        seen["tool_call_id"] = one["tool_call_id"]
    return seen


def tools_of(env):
    tools = []
    for tool in getattr(env, "tools", None) or []:
        tool = tool.get("function", tool)
        tools.append({
            "name": tool["name"],
            "description": tool.get("description", ""),
            "parameters": encode(tool.get("parameters", {"type": "object", "properties": {}})),
        })
    return tools


class Gymnasium:
    """A class with `reset` and `step`."""

    def __init__(self, env, task):
        self.env, self.task = env, task
        self.total, self.steps, self.info = 0.0, 0, {}

    def reset(self, seed):
        # Libraries take seeds of 32 bits.
        arguments = fitting(self.env.reset, {"seed": seed % (1 << 32), "options": self.task.get("options")})
        result = call(self.env.reset, **arguments)
        if isinstance(result, tuple) and len(result) == 2:
            result, self.info = result
        if is_messages(result):
            return [message(one) for one in result]
        parts = [self.task["instruction"], text_of(result)]
        return [{"role": "user", "content": "\n\n".join(part for part in parts if part.strip())}]

    def step(self, action):
        kind = self.task.get("action", "text")
        parsed, hint = action, None
        if kind == "text":
            parsed = action["content"]
        elif kind == "number":
            numbers = re.findall(r"-?\d+", action["content"])
            parsed = int(numbers[-1]) if numbers else None
            hint = None if numbers else "The reply has no whole number, which the action is."
        elif kind == "json":
            try:
                parsed = json.loads(action["content"])
            except ValueError as error:
                hint = f"The reply is no JSON, which the action is: {error}"
        if hint:
            return {"messages": self.seen(action, hint), "reward": 0.0, "status": "running"}
        result = call(self.env.step, parsed)
        if len(result) == 5:
            observation, reward, terminated, truncated, info = result
        else:
            observation, reward, terminated, info = result
            truncated = False
        self.info = info or {}
        self.total += float(reward)
        self.steps += 1
        status = "terminated" if terminated else "truncated" if truncated else "running"
        return {"messages": self.seen(action, observation), "reward": float(reward), "status": status}

    def seen(self, action, observation):
        if is_messages(observation):
            return [message(one) for one in observation]
        text = text_of(observation)
        calls = action["tool_calls"]
        if not calls:
            return [{"role": "user", "content": text}] if text else []
        first = {"role": "tool", "content": text, "tool_call_id": calls[0]["id"]}
        rest = "Only the first call of a reply is an action."
        return [first] + [{"role": "tool", "content": rest, "tool_call_id": one["id"]} for one in calls[1:]]

    def grade(self):
        if hasattr(self.env, "grade"):
            return outcome(call(self.env.grade))
        success = self.info.get("success", self.info.get("is_success")) if isinstance(self.info, dict) else None
        return {
            "reward": 0.0,
            "success": None if success is None else bool(success),
            "report": f"return {self.total:g} in {self.steps} steps",
        }


def outcome(result):
    """What `grade` returns: a number, or an object with `reward`, `success` and `report`."""
    if not isinstance(result, dict):
        result = {"reward": result}
    success = result.get("success")
    return {
        "reward": float(result["reward"]),
        "success": None if success is None else bool(success),
        "report": str(result.get("report", "")),
    }


class Conversation:
    """A class with `env_response`, `is_completed` and `rubric`, as those of `verifiers`."""

    def __init__(self, env, task):
        self.env, self.task = env, task
        self.messages = []
        self.state = {"turn": 0, "answer": task.get("answer", ""), "info": task.get("info", {}), "task": task.get("id", "")}

    def reset(self, seed):
        self.state["seed"] = seed
        system = getattr(self.env, "system_prompt", None)
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": self.task["instruction"]})
        self.state["prompt"] = list(messages)
        self.state["completion"] = []
        if hasattr(self.env, "setup_state"):
            self.state = call(self.env.setup_state, self.state) or self.state
        self.messages = messages
        return messages

    def add(self, messages):
        self.messages.extend(messages)
        self.state["completion"].extend(messages)

    def step(self, action):
        self.add([{"role": "assistant", "content": action["content"], "tool_calls": action["tool_calls"]}])
        self.state["turn"] += 1
        arguments = {"messages": self.messages, "state": self.state}
        if call(self.env.is_completed, **fitting(self.env.is_completed, arguments)):
            return {"messages": [], "reward": 0.0, "status": "terminated"}
        result = call(self.env.env_response, **fitting(self.env.env_response, arguments))
        if isinstance(result, tuple):
            result, self.state = result
        if not is_messages(result):
            result = [{"role": "user", "content": text_of(result)}]
        self.add(result)
        done = call(self.env.is_completed, **fitting(self.env.is_completed, arguments))
        status = "terminated" if done else "running"
        return {"messages": [message(one) for one in result], "reward": 0.0, "status": status}

    def grade(self):
        rubric = self.env.rubric
        functions = rubric.get_reward_funcs() if hasattr(rubric, "get_reward_funcs") else rubric.funcs
        weights = rubric.get_reward_weights() if hasattr(rubric, "get_reward_weights") else rubric.weights
        arguments = {name: self.state.get(name) for name in ("prompt", "completion", "answer", "info", "task")}
        arguments["state"] = self.state
        total, parts = 0.0, []
        for function, weight in zip(functions, weights or [1.0] * len(functions)):
            reward = float(call(function, **fitting(function, arguments)))
            total += weight * reward
            parts.append(f"{getattr(function, '__name__', 'reward')} {reward:g}")
        return {"reward": total, "success": None, "report": ", ".join(parts)}


class Bridge:
    episode = None

    def reset(self, request):
        task = json.loads(request["payload"])
        task["instruction"], task["id"] = request["instruction"], request["id"]
        sys.path.insert(0, task.get("path", "/work"))
        module, _, name = task["class"].partition(":")
        env = getattr(importlib.import_module(module), name)(**task.get("arguments", {}))
        kind = Conversation if hasattr(env, "env_response") else Gymnasium
        self.episode = kind(env, task)
        return {"messages": self.episode.reset(request["seed"]), "tools": tools_of(env)}

    def step(self, request):
        answer = self.episode.step(request["action"])
        answer["tools"] = tools_of(self.episode.env)
        return answer

    def grade(self, _request):
        return self.episode.grade()


def main():
    bridge = Bridge()
    sys.stdout = sys.stderr
    while True:
        with open(ASK, encoding="utf-8") as pipe:
            request = json.loads(pipe.read())
        try:
            answer = encode(getattr(bridge, request["do"])(request))
        except Exception:
            answer = encode({"error": traceback.format_exc(limit=-3)})
        with open(ANSWER, "w", encoding="utf-8") as pipe:
            pipe.write(answer)


main()
