"""litellm's completion with an api_base: whole replies, streams, tools, sync and async."""

import litellm
from seen import REQUEST, URL, reply, tell

litellm.suppress_debug_info = True  # it would print advice among what is told


def picking(calibration, **more):
    return {
        **REQUEST,
        "model": "openai/" + REQUEST["model"],
        "api_base": f"{URL}/v1",
        "api_key": "none",
        "num_retries": 0,
        "timeout": 300,
        "extra_body": {"calibration": calibration},
        **more,
    }


def told(completion):
    choice = completion.choices[0]
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    return reply(choice.message.content, calls, finish=choice.finish_reason)


def streamed(calibration):
    chunks = list(litellm.completion(**picking(calibration, stream=True)))
    return told(litellm.stream_chunk_builder(chunks, messages=REQUEST["messages"]))


def call():
    return told(litellm.completion(**picking("eager")))


def text():
    return told(litellm.completion(**picking("shy")))


def call_streamed():
    return streamed("eager")


def text_streamed():
    return streamed("shy")


async def call_async():
    return told(await litellm.acompletion(**picking("eager")))


async def call_streamed_async():
    chunks = [chunk async for chunk in await litellm.acompletion(**picking("eager", stream=True))]
    return told(litellm.stream_chunk_builder(chunks, messages=REQUEST["messages"]))


def call_by_inline_object():
    return told(litellm.completion(**picking({"bias": 20})))


def unknown_name():
    try:
        litellm.completion(**picking("eagre"))
    except litellm.BadRequestError as error:
        return {"status": error.status_code, "message": error.message, "param": error.param}


tell(
    call,
    text,
    call_streamed,
    text_streamed,
    call_async,
    call_streamed_async,
    call_by_inline_object,
    unknown_name,
)
