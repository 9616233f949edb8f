"""The openai Python SDK: sync, async, streams, tools, and every way that it has to pick a calibration."""

import openai
from seen import REQUEST, URL, reply, tell

KEY = {"api_key": "none", "max_retries": 0, "timeout": 300}
client = openai.OpenAI(base_url=f"{URL}/v1", **KEY)


def picking(calibration, **more):
    return {**REQUEST, **more, "extra_body": {"calibration": calibration}}


def whole(completion):
    choice = completion.choices[0]
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    return reply(choice.message.content, calls, finish=choice.finish_reason, model=completion.model)


class Assembled:
    """A streamed reply, put together as the SDK's documentation does it."""

    def __init__(self):
        self.text, self.calls, self.finish, self.usage = "", {}, None, None

    def add(self, chunk):
        self.usage = chunk.usage or self.usage
        for choice in chunk.choices:
            self.text += choice.delta.content or ""
            self.finish = choice.finish_reason or self.finish
            for piece in choice.delta.tool_calls or ():
                call = self.calls.setdefault(piece.index, ["", ""])
                call[0] += piece.function.name or ""
                call[1] += piece.function.arguments or ""

    def reply(self):
        return reply(self.text, self.calls.values(), finish=self.finish, usage=self.usage is not None)


def streamed(calibration, **more):
    assembled = Assembled()
    for chunk in client.chat.completions.create(stream=True, **picking(calibration, **more)):
        assembled.add(chunk)
    return assembled.reply()


def call():
    return whole(client.chat.completions.create(**picking("eager")))


def text():
    return whole(client.chat.completions.create(**picking("shy")))


def call_streamed():
    return streamed("eager")


def text_streamed():
    return streamed("shy")


def call_streamed_with_usage():
    return streamed("eager", stream_options={"include_usage": True})


def call_by_stream_helper():
    with client.chat.completions.stream(**picking("eager")) as stream:
        return whole(stream.get_final_completion())


async def call_async():
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", **KEY) as asynchronous:
        return whole(await asynchronous.chat.completions.create(**picking("eager")))


async def call_streamed_async():
    assembled = Assembled()
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", **KEY) as asynchronous:
        async for chunk in await asynchronous.chat.completions.create(stream=True, **picking("eager")):
            assembled.add(chunk)
    return assembled.reply()


def call_by_inline_object():
    return whole(client.chat.completions.create(**picking({"bias": 20})))


def call_by_model_suffix():
    return whole(client.chat.completions.create(**{**REQUEST, "model": "lab@eager"}))


def call_by_url_prefix():
    prefixed = openai.OpenAI(base_url=f"{URL}/p/eager/v1", **KEY)
    return whole(prefixed.chat.completions.create(**REQUEST))


def call_by_header():
    with_header = openai.OpenAI(base_url=f"{URL}/v1", default_headers={"X-Calibration": "eager"}, **KEY)
    return whole(with_header.chat.completions.create(**REQUEST))


def explained():
    raw = client.chat.completions.with_raw_response.create(**picking({"profile": "eager", "explain": True}))
    return {
        **whole(raw.parse()),
        "calibration": raw.parse().model_extra["calibration"],
        "headers": {k: v for k, v in raw.headers.items() if k.startswith("x-")},
    }


def explained_in_a_stream():
    last = None
    for chunk in client.chat.completions.create(stream=True, **picking({"profile": "shy", "explain": True})):
        last = chunk
    return {"choices": len(last.choices), "calibration": last.model_extra["calibration"]}


def unknown_name():
    try:
        client.chat.completions.create(**picking("eagre"))
    except openai.BadRequestError as error:
        return {"status": error.status_code, "message": error.body["message"], "param": error.param}


def models():
    return [model.id for model in client.models.list()]


tell(
    call,
    text,
    call_streamed,
    text_streamed,
    call_streamed_with_usage,
    call_by_stream_helper,
    call_async,
    call_streamed_async,
    call_by_inline_object,
    call_by_model_suffix,
    call_by_url_prefix,
    call_by_header,
    explained,
    explained_in_a_stream,
    unknown_name,
    models,
)
