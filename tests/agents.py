"""Workflows with a parameter `model`, for tests: their processes import them from here."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
import zlib
from pathlib import Path

from ouroboros.workflows.protocol.trajectory import Trajectory


def one(prompt, reply):
    return Trajectory(prompt, reply.tokens, reply.logprobs, [1] * len(reply.tokens), reply.finish_reason)


def delay(prompt, turn):
    """Seconds of a tool, another for each attempt and turn."""
    return ((7 * sum(prompt) + 5 * turn) % 10) / 20


async def chat(prompt, model, turns=3, seconds=None):
    """A row of its own for every turn, with a tool between two of them that waits."""
    rows, context = [], prompt
    for turn in range(turns):
        reply = await model(context)
        rows.append(one(context, reply))
        context = [*context, *reply.tokens]
        await asyncio.sleep(delay(prompt, turn) if seconds is None else seconds)
    return rows


def blocking(prompt, model, turns=3):
    """`chat` without `async`: the tool blocks."""
    rows, context = [], prompt
    for turn in range(turns):
        reply = model(context)
        rows.append(one(context, reply))
        context = [*context, *reply.tokens]
        time.sleep(delay(prompt, turn))
    return rows


def as_generator(prompt, turns=3):
    """`chat` without tools, in the explorer's process."""
    rows, context = [], prompt
    for _ in range(turns):
        reply = yield context
        rows.append(one(context, reply))
        context = [*context, *reply.tokens]
    return rows


async def judged(prompt, model, task):
    """Two turns; the second one begins with what the task says about the first."""
    first = await model(task.prompt(task.messages))
    judged = task.judge(first)
    said = task.prompt([{"role": "user", "content": f"{judged.response}: {judged.reward:g}, truth {task.answer}"}])
    assert task.has_room(said)
    return [one(prompt, first), one(said, await model(said))]


async def in_parallel(prompt, model):
    replies = await asyncio.gather(model([*prompt, 3]), model([*prompt, 4]))
    return [one([*prompt, 3 + i], reply) for i, reply in enumerate(replies)]


async def gives_up(prompt, model):
    """Asks for a long answer, and does not wait for it."""
    try:
        await asyncio.wait_for(model([99, *prompt]), 0.2)
    except TimeoutError:
        return one(prompt, await model(prompt))


async def raises_while_it_waits(prompt, model):
    async def tool():
        await asyncio.sleep(0.2)
        raise ValueError("no such file")

    await asyncio.gather(model([99, *prompt]), tool())


def sleeps(prompt, model):
    model(prompt)
    time.sleep(60)


def matches(prompt, model):
    return re.match(r"(a+)+$", "a" * 60 + "b")


def swallows(prompt, model):
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(60)


async def never_ends_where_it_is_late(prompt, model, task):
    """One turn. At a task whose truth is `late` it then sleeps for an hour."""
    reply = await model(prompt)
    if task.answer == "late":
        await asyncio.sleep(3600)
    return one(prompt, reply)


async def slow_at_a_third(prompt, model):
    """One turn, after which it sleeps 20 s at a third of all tasks."""
    reply = await model(prompt)
    await asyncio.sleep(20 * (zlib.crc32(bytes(prompt)) % 3 == 0))
    return one(prompt, reply)


def starts_a_program(prompt, model):
    """Writes the id of a program that outlives it to the file whose name are its token ids."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path("".join(map(chr, prompt))).write_text(str(started.pid))
    started.wait()


def exits(prompt, model):
    os._exit(3)


def leaves(prompt, model):
    sys.exit("enough")


def crashes(prompt, model):
    os.kill(os.getpid(), 11)


def returns_a_function(prompt, model):
    return lambda: None


def asks_words(prompt, model):
    return model(["two"])


def asks_too_much(prompt, model):
    return model([5] * 1000)


def raises(prompt, model):
    model(prompt)
    raise KeyError("tool")


def prints(prompt, model):
    for _ in range(2000):
        print("x" * 1000)
    return one(prompt, model(prompt))


async def without_model(prompt):
    return prompt


def generator_with_model(prompt, model="gpt"):
    yield prompt


def consults(prompt, model, auxiliary_models):
    """What another model says, as the text of the attempt."""
    model(prompt)
    (client,) = auxiliary_models
    said = client.chat.completions.create(**_question(client))
    return Trajectory(prompt, *_said(said), "stop")


async def consults_async(prompt, model, auxiliary_models):
    await model(prompt)
    said = await auxiliary_models[0].chat.completions.create(**_question(auxiliary_models[0]))
    return Trajectory(prompt, *_said(said), "stop")


def _question(client):
    return {"model": client.model_path, "messages": [{"role": "user", "content": "1+1"}], "max_tokens": 5,
            "temperature": 0}


def _said(reply):
    text = reply.choices[0].message.content.encode() + bytes(1)
    return [*text], [0.0] * len(text), [1] * len(text)
