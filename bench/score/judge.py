"""The judge of CONFIRM: a model behind any OpenAI-compatible URL, asked once for each distinct question.

A reply is kept under the digest of all that was asked (model, prompt and its version, conversation,
sampling), also one that can't be parsed, so a second call asks nothing. An error is not kept: the next call
asks that question again.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from bench.calibrate.asking import Answer, Pause, Unanswered, asking
from bench.errors import InputError
from bench.progress import progress
from bench.runs import RecordFile
from bench.score.confirm import Verdict, Write, prompt, read_verdict, writes
from bench.score.tau2 import Run
from proxy.upstream import base_url

Json = dict[str, Any]

_ENDPOINT = "/chat/completions"
_SAMPLING: Mapping[str, Any] = {"temperature": 0, "max_tokens": 1024}
# About the judge and not about one question: asking the others too would be in vain.
_REFUSALS: Mapping[int, str] = {
    401: "give its key: --judge-api-key-env",
    403: "give a key that may use the model: --judge-api-key-env",
    404: "name a model that it serves: --judge-model, or mend --judge",
}


class Judge(NamedTuple):
    """Who judges, and how it is asked."""

    url: str
    """With or without /v1, or a whole address that ends in /chat/completions."""
    model: str
    api_key: str | None
    fields: Json
    """Added to every request, or in place of what we send."""
    concurrency: int
    timeout: float
    """Seconds for one answer."""

    @property
    def told(self) -> Json:
        """What shapes its verdicts."""
        return {"model": self.model, "prompt": prompt().version, "fields": self.fields}

    def key(self, write: Write) -> str | None:
        """The digest that a write's verdict is kept under; None where nobody can judge it."""
        if write.question is None:
            return None
        asked = json.dumps([prompt().version, self.request(write.question)], sort_keys=True)
        return hashlib.sha256(asked.encode()).hexdigest()

    def request(self, question: str) -> Json:
        """The body of the request."""
        messages = [{"role": "user", "content": question}]
        return {"model": self.model, "messages": messages, **_SAMPLING, **self.fields}


class Verdicts(NamedTuple):
    """What a judge said."""

    judge: Judge
    known: Mapping[str, Verdict]
    """By the write's key."""
    faults: Mapping[str, str]
    """By key the words of the error that the judge, or the wait for it, ended in."""

    def of(self, write: Write) -> Verdict | None:
        """The verdict on a write; None where there is none."""
        return self.known.get(self.judge.key(write) or "")

    def fault(self, write: Write) -> str | None:
        """Why there is none; None where it was not asked, or answered."""
        return self.faults.get(self.judge.key(write) or "")


async def judged(
    judge: Judge, runs: Iterable[Run], records: RecordFile, pause: Pause = asyncio.sleep
) -> Verdicts:
    """The verdicts on the writes of runs: those that `records` has, and those asked for now, which it keeps.

    Raises ServerUnreachable where the judge can't be reached, InputError where it refuses key or model; what
    it said before that is kept.
    """
    asked = (write for run in runs for write in writes(run))
    questions = {key: write.question for write in asked if (key := judge.key(write)) and write.question}
    missing = [key for key in questions if key not in records]
    faults: dict[str, str] = {}
    if missing:
        whole = judge.url.rstrip("/").endswith(_ENDPOINT)
        root = judge.url.rstrip("/").removesuffix(_ENDPOINT) if whole else f"{base_url(judge.url)}/v1"
        with progress("verdicts", len(questions), len(questions) - len(missing)) as advance:
            async with asking(root, judge.api_key, judge.concurrency, pause, judge.timeout) as server:

                async def one(key: str) -> None:
                    # Escaped: a file may hold half of a surrogate pair, which UTF-8 does not.
                    body = json.dumps(judge.request(questions[key]))
                    try:
                        answer = await server.post(_ENDPOINT, body)
                    except Unanswered as error:
                        faults[key] = error.what
                    else:
                        _keep(key, answer, judge, records, faults)
                    advance()

                await server.each(missing, one)
    known = {
        record["key"]: Verdict(record["confirmed"], record["words"])
        for record in records
        if record["key"] in questions
    }
    return Verdicts(judge, known, faults)


def _keep(key: str, answer: Answer, judge: Judge, records: RecordFile, faults: dict[str, str]) -> None:
    if answer.status in _REFUSALS:
        raise InputError(f"the judge answers {answer.fault}", where=judge.url, mend=_REFUSALS[answer.status])
    reply = None if answer.fault else _reply(answer.document)
    if reply is None:
        faults[key] = answer.fault or "200 without a reply"
    else:
        verdict = read_verdict(reply)
        records.append(key, {"model": judge.model, "prompt": prompt().version, **verdict._asdict()})


def _reply(document: Json) -> str | None:
    """The reply's text, empty where it has none; None where the answer is no chat completion."""
    try:
        message = document["choices"][0]["message"]
        return str(message.get("content") or "")
    except (KeyError, IndexError, TypeError, AttributeError):
        return None
