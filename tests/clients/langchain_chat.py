"""LangChain's ChatOpenAI: bound tools, streams, sync and async."""

import json

from langchain_openai import ChatOpenAI
from seen import REQUEST, URL, reply, tell


def model(calibration):
    chat = ChatOpenAI(
        model=REQUEST["model"],
        base_url=f"{URL}/v1",
        api_key="none",
        temperature=REQUEST["temperature"],
        max_tokens=REQUEST["max_tokens"],
        max_retries=0,
        timeout=300,
        extra_body={"calibration": calibration},
    )
    return chat.bind_tools(REQUEST["tools"], strict=True, parallel_tool_calls=False)


def told(message):
    calls = [(call["name"], json.dumps(call["args"])) for call in message.tool_calls]
    return reply(message.text, calls, finish=message.response_metadata.get("finish_reason"))


def streamed(calibration):
    whole = None
    for chunk in model(calibration).stream(REQUEST["messages"]):
        whole = chunk if whole is None else whole + chunk
    return told(whole)


def call():
    return told(model("eager").invoke(REQUEST["messages"]))


def text():
    return told(model("shy").invoke(REQUEST["messages"]))


def call_streamed():
    return streamed("eager")


def text_streamed():
    return streamed("shy")


async def call_async():
    return told(await model("eager").ainvoke(REQUEST["messages"]))


async def call_streamed_async():
    whole = None
    async for chunk in model("eager").astream(REQUEST["messages"]):
        whole = chunk if whole is None else whole + chunk
    return told(whole)


def call_by_inline_object():
    return told(model({"bias": 20}).invoke(REQUEST["messages"]))


def unknown_name():
    try:
        model("eagre").invoke(REQUEST["messages"])
    except Exception as error:
        return {"status": error.status_code, "message": error.body["message"], "param": error.param}


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
