"""Running the server: one asyncio loop for HTTP and the framed sockets, from the ready line to the drained end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import math
import os
import signal
import ssl
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import orjson
import uvicorn

from samevec.errors import ConfigError, SamevecError
from samevec.machine import allow_open_files, give_back_memory, return_freed_memory
from samevec.server.endpoints import BACKLOG, Endpoints, bind_tcp, bind_unix, http_url
from samevec.server.http.app import create_app
from samevec.server.http.connections import timeout_http
from samevec.server.service import Service
from samevec.server.settings import ServedModel, ServerSettings
from samevec.server.socket.protocol import FrameServer
from samevec.server.socket.truememory import reserve_truememory
from samevec.server.telemetry.log import RequestLog, configure_logging
from samevec.server.telemetry.tracing import otlp_traces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

__all__ = [
    "Endpoints",
    "ServedModel",
    "ServerSettings",
    "read_api_keys",
    "require_tls",
    "reserve_endpoints",
    "run_server",
    "running_server",
]

_log = logging.getLogger(__name__)

# How often idle models are looked for: unloading may come so much late.
_LOOK_IDLE_S = 5.0
# No work for so long, or up to twice, and the memory that it freed is given back.
_LOOK_REST_S = 1.0


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: they end the process by the signal again, where exit code 0 is wanted."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def reserve_endpoints(settings: ServerSettings) -> Endpoints:
    """Take every address of the settings, or none.

    Parameters
    ----------
    settings : ServerSettings

    Returns
    -------
    Endpoints
        Bound and listening; close it at the end.

    Raises
    ------
    NotReadyError
        Another process has one of the addresses; names it.
    ConfigError
        An address cannot be used at all: a foreign file, a path that is too long, no permission.

    Notes
    -----
    Call it before loading weights: a busy port should cost seconds. It changes the process's umask for moments, so call
    it before threads start.
    """
    if settings.uds is None:
        http = bind_tcp(settings.host, settings.port)
        url = http_url(http, settings.host)
        endpoints = Endpoints(http, url if settings.tls_cert is None else url.replace("http:", "https:", 1))
        endpoints.add_cleanup(http.close)
    else:
        unix = bind_unix(settings.uds)
        endpoints = Endpoints(unix.sock, f"http+unix://{settings.uds}")
        endpoints.add_cleanup(unix.close)
    try:
        if settings.socket is not None:
            endpoints.add_frames(bind_unix(settings.socket))
        if settings.truememory:
            reserve_truememory(endpoints)
    except BaseException:
        endpoints.close()
        raise
    return endpoints


def run_server(models: Sequence[ServedModel], settings: ServerSettings, endpoints: Endpoints | None = None) -> int:
    """Serve until a signal says stop.

    Parameters
    ----------
    models : sequence of ServedModel
        Loaded, and passed by the gate.
    settings : ServerSettings
    endpoints : Endpoints, optional
        From :func:`reserve_endpoints`, called before the models were loaded; else reserved here. Closed at the end.

    Returns
    -------
    int
        0: stopped by SIGTERM or SIGINT, accepted work finished or the drain time over.

    Raises
    ------
    ConfigError
        The key file cannot be used.
    NotReadyError
        An address is in use, or a model cannot compute a first row.

    Notes
    -----
    Call it in the main thread. A second signal ends the process at once.
    """
    api_keys = read_api_keys(settings.api_key_file)
    require_tls(settings)
    with reserve_endpoints(settings) if endpoints is None else endpoints as held:
        configure_logging(settings.log_format)
        allow_open_files()  # one for each connection
        return_freed_memory()
        run = _Run(
            models=models,
            settings=settings,
            endpoints=held,
            api_keys=api_keys,
            watch=_stop_on_signals(held),
            on_ready=lambda: _begin(settings, held, models),
        )
        if not asyncio.run(run.serve()):
            # Leaving the interpreter under a session that is still computing ends in a crash now and then.
            held.close()
            os._exit(0)
    return 0


@contextlib.contextmanager
def running_server(models: Sequence[ServedModel], settings: ServerSettings) -> Iterator[Endpoints]:
    """Serve from a thread of this process while a block runs, without touching its signals.

    Parameters
    ----------
    models : sequence of ServedModel
    settings : ServerSettings
        ``port=0`` takes a free one.

    Yields
    ------
    Endpoints
        Its `url` is where to send requests.

    Raises
    ------
    ConfigError, NotReadyError
        As :func:`run_server`.
    """
    api_keys = read_api_keys(settings.api_key_file)
    require_tls(settings)
    with reserve_endpoints(settings) as endpoints:
        changed = threading.Condition()
        state: dict[str, Any] = {}

        def tell(**values: Any) -> None:
            with changed:
                state.update(values)
                changed.notify_all()

        def watch(stop: asyncio.Event) -> None:
            tell(stop=stop, loop=asyncio.get_running_loop())

        run = _Run(
            models=models,
            settings=settings,
            endpoints=endpoints,
            api_keys=api_keys,
            watch=watch,
            on_ready=lambda: tell(ready=True),
        )

        def serve() -> None:
            try:
                asyncio.run(run.serve())
            except BaseException as error:  # it belongs to the thread that waits
                tell(error=error)

        thread = threading.Thread(target=serve, name="samevec-server", daemon=True)
        thread.start()
        try:
            with changed:
                changed.wait_for(lambda: "ready" in state or "error" in state)
            if "error" in state:
                raise state["error"]
            yield endpoints
        finally:
            if "ready" in state and "error" not in state:
                state["loop"].call_soon_threadsafe(state["stop"].set)
            thread.join(settings.drain_s + 10)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """One life of a server.

    Attributes
    ----------
    watch : callable
        Given the event that ends it.
    on_ready : callable
        Called when requests are answered.
    """

    models: Sequence[ServedModel]
    settings: ServerSettings
    endpoints: Endpoints
    api_keys: Sequence[str]
    watch: Callable[[asyncio.Event], None]
    on_ready: Callable[[], None]

    async def serve(self) -> bool:
        """Serve until told to stop, drain, and return whether every worker came to its end."""
        stop = asyncio.Event()
        self.watch(stop)
        asyncio.get_running_loop().set_exception_handler(_LoopErrors())
        service = Service(self.models, self.settings)
        service.observe(RequestLog(self.settings.log_requests))
        traces = None if self.settings.otlp_endpoint is None else otlp_traces(self.settings.otlp_endpoint)
        if traces is not None:
            service.observe(traces)
        frames = FrameServer(service, client_timeout_s=self.settings.client_timeout_s)
        http = _http_server(service, self.settings, self.api_keys)
        try:
            await service.start()
            running = asyncio.ensure_future(http.serve(sockets=[self.endpoints.http]))
            await frames.start(self.endpoints.frames)
            while not http.started and not running.done():
                await asyncio.sleep(0.01)
            if running.done():
                running.result()
            self.on_ready()
            unloading = asyncio.ensure_future(_unload_idle(service, self.settings.idle_unload_s))
            resting = asyncio.ensure_future(_give_back_at_rest(service))
            reprobing = asyncio.ensure_future(service.reprobing.repeat(self.settings.reprobe_s))
            await _wait_any(asyncio.ensure_future(stop.wait()), running)
            unloading.cancel()
            resting.cancel()
            reprobing.cancel()
            await _drain(service, frames, http, running, self.settings.drain_s)
        finally:
            service.stop(timeout_s=1.0)
            if traces is not None:
                traces.end()
        return not service.is_held_up


# What accept(2) says when nothing more can be opened.
_NOTHING_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# How often that is told: asyncio asks a thousand times a second.
_TELL_AGAIN_S = 10.0


class _LoopErrors:
    """Tells of connections that cannot be accepted in one line now and then: they only wait. Called by the loop."""

    def __init__(self) -> None:
        self._told_s = -math.inf

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _NOTHING_LEFT:
            loop.default_exception_handler(context)
        elif loop.time() - self._told_s >= _TELL_AGAIN_S:
            self._told_s = loop.time()
            _log.warning("%s: new connections wait until others end; ulimit -n bounds them", error.strerror)


async def _unload_idle(service: Service, after_s: float) -> None:
    """Look now and then for idle models, until cancelled."""
    while after_s:
        await asyncio.sleep(min(_LOOK_IDLE_S, after_s))
        service.unload_idle()


async def _give_back_at_rest(service: Service) -> None:
    """Give memory back whenever work has ended and none follows; for ever."""
    while True:
        await asyncio.sleep(_LOOK_REST_S)
        if service.comes_to_rest():
            await asyncio.to_thread(_give_back, service)


def _give_back(service: Service) -> None:
    try:
        service.release_memory()
    except SamevecError as error:  # the next request gets the error
        _log.warning("work memory could not be given back: %s", error)
    gc.collect()  # what connections leave refers to itself, 2.5 MB for 200, and the interpreter sees no haste
    give_back_memory()


def _http_server(service: Service, settings: ServerSettings, api_keys: Sequence[str]) -> _HttpServer:
    config = uvicorn.Config(
        create_app(service, api_keys=api_keys),
        log_config=None,
        access_log=False,
        http=cast("Any", timeout_http(settings.client_timeout_s)),
        lifespan="off",
        ws="none",
        loop="asyncio",
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    return _HttpServer(config)


async def _wait_any(stop: asyncio.Future[Any], running: asyncio.Future[Any]) -> None:
    try:
        await asyncio.wait((stop, running), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()


async def _drain(
    service: Service, frames: FrameServer, http: _HttpServer, running: asyncio.Future[None], drain_s: float
) -> None:
    """Accept nothing new, and give accepted work its time."""
    end_s = time.monotonic() + drain_s
    service.begin_drain()
    frames.stop_accepting()
    http.should_exit = True
    try:
        await asyncio.wait_for(service.wait_drained(), drain_s)
    except TimeoutError:
        _log.warning("work was still unfinished after %g s and is dropped", drain_s)
        service.stop(timeout_s=0)  # waiting requests get 503 instead of a closed connection
    # Computed is not yet sent: answers on their way keep what is left of the time, and at least a moment.
    left_s = max(1.0, end_s - time.monotonic())
    await frames.stop(timeout_s=left_s)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(running, left_s)


def _stop_on_signals(endpoints: Endpoints) -> Callable[[asyncio.Event], None]:
    """Return what installs handlers: the first signal sets the event, the second ends the process."""

    def watch(stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()

        def handle(number: int) -> None:
            if stop.is_set():
                endpoints.close()
                os._exit(128 + number)  # exit handlers would wait for the very run that takes too long
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, handle, number)

    return watch


def _begin(settings: ServerSettings, endpoints: Endpoints, models: Sequence[ServedModel]) -> None:
    """Leave what stays for good out of later collections of garbage, and say that requests are answered."""
    gc.collect()
    gc.freeze()
    _print_ready(settings, endpoints, models)


def _print_ready(settings: ServerSettings, endpoints: Endpoints, models: Sequence[ServedModel]) -> None:
    names = [served.name for served in models]
    paths = [str(path) for path in endpoints.paths]
    if settings.log_format == "json":
        record = {"event": "ready", "url": endpoints.url, "sockets": paths, "models": names}
        line = orjson.dumps(record).decode()
    else:
        sockets = f", sockets {', '.join(paths)}" if paths else ""
        line = f"samevec: ready at {endpoints.url}{sockets} ({', '.join(names)})"
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def read_api_keys(path: Path | None) -> tuple[str, ...]:
    """Return the keys in a file, one a line; none without a file.

    Raises
    ------
    ConfigError
        The file cannot be read, or holds no key: serving without the check would be the opposite of what was asked.
    """
    if path is None:
        return ()
    try:
        keys = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-key-file {path}: cannot be read: {error}") from error
    if not keys:
        raise ConfigError(f"--api-key-file {path}: holds no key")
    return keys


def require_tls(settings: ServerSettings) -> None:
    """Refuse certificate files that cannot be used, before anything is loaded.

    Raises
    ------
    ConfigError
        One cannot be read, is not PEM, or the key is of another certificate.
    """
    if settings.tls_cert is None or settings.tls_key is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:  # SSLError is one
        names = f"--tls-cert {settings.tls_cert}, --tls-key {settings.tls_key}"
        raise ConfigError(f"{names}: cannot be used: {error}") from error
