"""The HTTP front: the application, the key check, documentation that works offline."""

from __future__ import annotations

import base64
import hashlib
import hmac
from importlib import resources
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route
from swagger_ui_bundle import swagger_ui_path

from samevec._version import __version__
from samevec.machine import process_memory_bytes
from samevec.server.error_map import UnauthorizedError, path_dialect, refusal_body
from samevec.server.http import openapi
from samevec.server.http.bodies import DIGEST_HEADER, TIMEOUT_HEADER, TRUNCATED_HEADER, error_response, json_response
from samevec.server.http.dialects.tei import info_fields
from samevec.server.http.middleware import REQUEST_ID_HEADER, RequestContextMiddleware
from samevec.server.http.routes import add_routes
from samevec.server.telemetry.metrics import METRICS_MEDIA_TYPE, Metrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from samevec.server.service import Service

__all__ = ["PAGE_HEADERS", "create_app"]

# Probes must work without a key, and the page and the documentation reveal nothing that is not in the package.
_OPEN_PATHS = ("/", "/health", "/ready", "/docs", "/openapi.json")
_DESCRIPTION = (
    "Embeddings and reranking from ONNX graphs that were proved equal to PyTorch on this machine. "
    "Texts longer than the model's limit are cut unless `truncate` is false; unknown options are refused."
)


def create_app(service: Service, *, api_keys: Sequence[str] = ()) -> FastAPI:
    """Return the HTTP application.

    Parameters
    ----------
    service : Service
        Started by the caller.
    api_keys : sequence of str
        When there are any, requests must carry one as a bearer token.

    Returns
    -------
    FastAPI
        It observes the service, for ``/metrics`` and the page.
    """
    app = FastAPI(
        title="samevec", version=__version__, description=_DESCRIPTION, docs_url=None, redoc_url=None,
        separate_input_output_schemas=False,
    )  # fmt: skip
    add_routes(app, service)
    _add_status(app, service)
    metrics = Metrics(service.info, memory=process_memory_bytes)
    service.observe(metrics)
    _add_operations(app, service, metrics)
    _add_docs(app)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_exception)
    if api_keys:
        app.add_middleware(_KeyCheck, api_keys=api_keys)
    # Whatever is added last is outermost: a refused key is accounted for too, and a browser's question about other
    # origins, which carries no key, is answered before.
    routes = [route.path for route in app.routes if isinstance(route, Route)]
    app.add_middleware(RequestContextMiddleware, observer=service.observer, clock=service.clock, routes=routes)
    if service.settings.cors_origins:
        _allow_origins(app, service.settings.cors_origins)
    document = openapi.finish(app.openapi(), service)
    if api_keys:
        openapi.add_security(document, open_paths=_OPEN_PATHS)
    app.openapi_schema = document
    return app


def _allow_origins(app: FastAPI, origins: Sequence[str]) -> None:
    app.add_middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type", TIMEOUT_HEADER, REQUEST_ID_HEADER],
        expose_headers=[REQUEST_ID_HEADER, "retry-after", TRUNCATED_HEADER, DIGEST_HEADER],
    )


def _add_operations(app: FastAPI, service: Service, metrics: Metrics) -> None:
    @app.get("/metrics", summary="Metrics, in Prometheus's text format", tags=["status"], **openapi.METRICS)
    async def scrape() -> Response:
        return Response(metrics.render(), media_type=METRICS_MEDIA_TYPE)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response(_PAGE, media_type="text/html; charset=utf-8", headers=PAGE_HEADERS)


def _add_status(app: FastAPI, service: Service) -> None:
    @app.get("/health", summary="Whether the process answers", tags=["status"], **openapi.HEALTH)
    async def health() -> Response:
        return json_response({"status": "ok"})

    @app.get("/ready", summary="Whether requests are served", tags=["status"], **openapi.READY)
    async def ready() -> Response:
        reasons, states = service.not_ready_reasons(), service.model_states()
        if reasons:
            record = {"status": "not ready", "reasons": reasons, "models": states}
            return json_response(record, status=503, headers={"retry-after": "1"})
        return json_response({"status": "ready", "reasons": [], "models": states})

    @app.get("/info", summary="What is served, and how", tags=["status"], **openapi.INFO)
    async def info() -> Response:
        return json_response(info_fields(service.models[0], service.settings) | service.info())

    @app.get("/v1/models", summary="List models (OpenAI)", tags=["status"], **openapi.MODELS)
    async def models() -> Response:
        listed = [{"id": m.name, "object": "model", "created": 0, "owned_by": "samevec"} for m in service.models]
        return json_response({"object": "list", "data": listed})


def _add_docs(app: FastAPI) -> None:
    """Serve Swagger UI from the installed bundle: the page of FastAPI itself loads it from elsewhere."""

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="samevec",
            swagger_js_url="/docs/static/swagger-ui-bundle.js",
            swagger_css_url="/docs/static/swagger-ui.css",
            swagger_favicon_url="/docs/static/favicon-32x32.png",
        )

    app.mount("/docs/static", StaticFiles(directory=str(swagger_ui_path)), name="docs-static")


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Answer unknown paths and methods in the dialect of the path."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this class alone
    message = f"{request.method} {request.url.path}: {error.detail}"
    body = refusal_body(message, path_dialect(request.url.path))
    return json_response(body, status=error.status_code, headers=dict(error.headers or {}))


async def _on_exception(request: Request, error: Exception) -> Response:
    return error_response(error, path_dialect(request.url.path))


def _csp_hash(tag: str) -> str:
    """Return the content of the page's one such element as its policy names it."""
    content = _PAGE.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


_PAGE = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
#: The browser is told to load nothing, to run the page's script and no other, and to keep nothing.
PAGE_HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src {_csp_hash('style')}; script-src {_csp_hash('script')}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class _KeyCheck:
    """Lets requests through that carry a valid bearer token."""

    def __init__(self, app: ASGIApp, *, api_keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode("utf-8") for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and not self._is_open(scope["path"]) and not self._is_authorized(scope):
            refusal = UnauthorizedError("a valid API key is needed: Authorization: Bearer KEY")
            app = error_response(refusal, path_dialect(scope["path"]))
        await app(scope, receive, send)

    @staticmethod
    def _is_open(path: str) -> bool:
        return path in _OPEN_PATHS or path.startswith("/docs/static/")

    def _is_authorized(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, token = given.partition(b" ")
        # Every key is compared, in time that does not depend on where they differ.
        matches = [hmac.compare_digest(token.strip(), key) for key in self._keys]
        return scheme.lower() == b"bearer" and any(matches)
