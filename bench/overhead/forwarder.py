"""The bare forwarder to compare with: what a careful engineer writes in forty lines of FastAPI and httpx.

    python -m bench.overhead.forwarder --port 9000 --upstream http://127.0.0.1:8000

One shared client, both bodies parsed, streams passed on as they come, no calibration, no log.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click
import httpx
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse


def forwarder(upstream: str) -> FastAPI:
    """The app in front of an OpenAI-compatible server."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=200)
        timeout = httpx.Timeout(600.0, connect=5.0)
        async with httpx.AsyncClient(base_url=upstream, limits=limits, timeout=timeout) as client:
            app.state.client = client
            yield

    app = FastAPI(lifespan=lifespan, openapi_url=None)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        client: httpx.AsyncClient = request.app.state.client
        body = await request.json()
        authorization = request.headers.get("authorization")
        headers = {"authorization": authorization} if authorization else {}
        if not body.get("stream"):
            reply = await client.post(request.url.path, json=body, headers=headers)
            return JSONResponse(reply.json(), reply.status_code)
        query = client.build_request("POST", request.url.path, json=body, headers=headers)
        answer = await client.send(query, stream=True)

        async def passed_on() -> AsyncIterator[bytes]:
            try:
                async for part in answer.aiter_raw():
                    yield part
            finally:
                await answer.aclose()

        return StreamingResponse(passed_on(), answer.status_code, media_type="text/event-stream")

    return app


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), required=True)
@click.option("--upstream", required=True, help="URL without /v1.")
def main(port: int, upstream: str) -> None:
    """Run the bare forwarder: one worker on 127.0.0.1."""
    uvicorn.run(forwarder(upstream), port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
