"""Checks of our own for schemathesis, which loads this file by name."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.check
def late_only_when_asked(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case[Any]
) -> None:
    """Only a request that named a deadline may come too late."""
    named = any(name.lower() == "x-request-timeout-s" for name in case.headers or {})
    assert response.status_code != 504 or named, "504 without a deadline"


@schemathesis.check
def refusals_say_when_to_come_back(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case[Any]
) -> None:
    """429 and 503 carry Retry-After."""
    assert response.status_code not in (429, 503) or "retry-after" in response.headers, "no Retry-After"
