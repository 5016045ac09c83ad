"""The log: what it looks like, and one line a request. No line holds a text that was sent."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal

import orjson

if TYPE_CHECKING:
    from samevec.server.telemetry.records import BatchRecord, RequestRecord

__all__ = ["RequestLog", "configure_logging"]

_requests = logging.getLogger("samevec.requests")


class _JsonFormatter(logging.Formatter):
    """One JSON object a line, for log collectors."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line).decode()


def configure_logging(log_format: Literal["text", "json"]) -> None:
    """Send the log of the whole process to standard error.

    Parameters
    ----------
    log_format : {"text", "json"}
    """
    handler = logging.StreamHandler()
    if log_format == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("samevec: %(levelname)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("samevec").setLevel(logging.INFO)


class RequestLog:
    """Writes a line for each request; an observer of records.

    Parameters
    ----------
    which : {"none", "errors", "all"}
        ``"errors"`` are those of the server: status 500 and above.
    logger : logging.Logger
    """

    def __init__(self, which: Literal["none", "errors", "all"], *, logger: logging.Logger = _requests) -> None:
        self._which = which
        self._logger = logger

    def request_ended(self, record: RequestRecord) -> None:
        """Write its line, if it is wanted."""
        failed = record.status >= 500
        if self._which == "none" or (self._which == "errors" and not failed):
            return
        fields = _fields(record)
        words = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
        self._logger.log(logging.ERROR if failed else logging.INFO, "request %s", words, extra={"fields": fields})

    def batch_ended(self, record: BatchRecord) -> None:
        """Write nothing: microbatches are counted, see metrics."""


def _fields(record: RequestRecord) -> dict[str, Any]:
    return {
        "request_id": record.request_id or None,
        "route": record.route,
        "status": record.status,
        "error": record.error,
        "model": record.model,
        "items": record.items,
        "tokens": record.tokens,
        "cut_items": record.cut_items,
        "seconds": round(record.seconds, 6),
        **{f"{phase.name}_s": round(phase.seconds, 6) for phase in record.phases},
    }
