"""What each client is to do, and how it tells what it saw: one JSON document on stdout."""

import asyncio
import inspect
import json
import os
from pathlib import Path

URL = os.environ["SEAM_URL"]
REQUEST = json.loads((Path(__file__).parent / "request.json").read_text())


def tell(*scenarios):
    """Run scenarios, plain or async, and print what each of them saw by its name."""
    seen = {}
    with asyncio.Runner() as loop:  # one for all, since LangChain keeps its connections
        for scenario in scenarios:
            try:
                result = scenario()
                seen[scenario.__name__] = loop.run(result) if inspect.iscoroutine(result) else result
            except Exception as error:
                seen[scenario.__name__] = {"failed": f"{type(error).__name__}: {error}"}
    print(json.dumps(seen))


def reply(text, calls, **more):
    """A reply: its text, and its calls as pairs of name and arguments."""
    return {"text": text or None, "calls": [list(call) for call in calls], **more}
