"""The program log on stderr: one line an event, text or JSON, with the id of the request it is about."""

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime

from proxy.config import Logging
from proxy.errors import printable

current_request: ContextVar[str | None] = ContextVar("current_request", default=None)
"""The id of the request that is being answered; None for what concerns the whole process."""

# They tell of our own small requests, which a reader of this log did not ask for.
_NOISY = ("httpx", "httpcore", "watchfiles", "urllib3", "uvicorn.access")


class CutReplies(logging.Filter):
    """Keeps uvicorn from calling it an error that we break off a reply which the upstream broke off."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is to be written."""
        return "returned without completing response" not in record.getMessage()


class TextLines(logging.Formatter):
    """`TIME LEVEL LOGGER: [REQUEST] MESSAGE`, a traceback on the lines below."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(about)s%(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, in which nothing from outside can begin another or steer a terminal."""
        request = current_request.get()
        record.about = f"[{request}] " if request else ""
        return printable(super().formatMessage(record))


class JsonLines(logging.Formatter):
    """One JSON object a record: time, level, logger, message; request_id and exception where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request := current_request.get():
            told["request_id"] = request
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)  # ASCII alone: no line ends, nothing that steers a terminal


def set_up_logging(settings: Logging) -> None:
    """Send all that this process logs to stderr, in the form and from the level that the operator chose."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if settings.format == "json" else TextLines())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)
    uvicorn_log = logging.getLogger("uvicorn.error")
    uvicorn_log.setLevel(logging.WARNING)
    uvicorn_log.addFilter(CutReplies())
