"""The command line: flags in, one call into a room, one exit code out. Rooms that load torch are imported when used."""

from __future__ import annotations

import errno
import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import orjson
from rich.console import Console

from samevec._version import __version__
from samevec.cli.config_file import read_config
from samevec.cli.outcome import GateOutcome
from samevec.cli.terminal import make_progress
from samevec.errors import ConfigError, SamevecError, exit_code
from samevec.hints import Commands
from samevec.lock import load_lock
from samevec.runtime.providers.profiles import PROFILES
from samevec.settings import ENV_PREFIX, debug_requested, default_home

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from samevec.cli.profile_choice import Purpose
    from samevec.lock import Lock, LockedModel
    from samevec.parity.verdict import Verdict
    from samevec.progress import Progress

__all__ = ["cli", "main"]

_F = TypeVar("_F", bound="Callable[..., Any]")

#: Everything that is not a result goes here, so that standard output can be piped.
_err = Console(stderr=True)

_PIPE_WIDTH = 1000


def option(name: str, *names: str, **settings: Any) -> Callable[[_F], _F]:
    """Declare a flag with its environment variable ``SAMEVEC_...``, shown in --help."""
    variable = f"{ENV_PREFIX}_{name.lstrip('-').split('/')[0].replace('-', '_').upper()}"
    settings = {"envvar": variable, "show_envvar": True, "show_default": True, **settings}
    return click.option(name, *names, **settings)


def _lock_option(function: _F) -> _F:
    help_text = "Lock file; `toy` for the built-in toy pair. Default: the packaged models.lock."
    return option("--lock", "lock_ref", metavar="FILE|toy", callback=_expanded, help=help_text)(function)


def _expanded(_context: click.Context, _parameter: click.Parameter, lock_ref: str | None) -> str | None:
    return lock_ref if lock_ref in (None, "toy") else str(Path(lock_ref).expanduser())


class _PathType(click.Path):
    """A path with ``~`` expanded, which a shell does for arguments but not for variables."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(path_type=Path, **settings)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(Path(value).expanduser(), param, ctx)


def _home_option(function: _F) -> _F:
    help_text = "Where artifacts are kept. Default: the platform's user data folder."
    return option("--home", type=_PathType(file_okay=False), metavar="DIR", help=help_text)(function)


def _model_option(function: _F) -> _F:
    help_text = "Model of the lock, may be repeated; all that are not optional when not given."
    return option("--model", "models", multiple=True, metavar="NAME", help=help_text)(function)


def _profile_option(function: _F) -> _F:
    metavar = "|".join(sorted(PROFILES))
    return option("--profile", metavar=metavar, default="cpu", help="How to run the model.")(function)


def _running_profile_option(function: _F) -> _F:
    """Declare --profile for commands that run a model: they check the name themselves and exit 3 with the reason."""
    metavar = "|".join(("auto", *sorted(PROFILES)))
    help_text = "How to run the model; auto takes the best that is here and proved."
    return option("--profile", metavar=metavar, default="cpu", help=help_text)(function)


def _resolved(profile: str, entries: Sequence[LockedModel], home: Path, purpose: Purpose) -> str:
    from samevec.cli.profile_choice import resolve_profile  # noqa: PLC0415  onnxruntime

    return resolve_profile(profile, entries, home=home, purpose=purpose, say=_say)


def _from_option(function: _F) -> _F:
    help_text = "Folder with the pinned files (DIR/NAME/ or DIR itself) instead of the hub; symlinks are followed."
    kind = _PathType(file_okay=False, exists=True)
    return option("--from", "source_dir", type=kind, metavar="DIR", help=help_text)(function)


def _json_option(function: _F) -> _F:
    return option("--json", "as_json", is_flag=True, help="Print one JSON document instead of words.")(function)


def _config_option(function: _F) -> _F:
    help_text = "TOML file of these flags; flags and variables go before it."
    kind = _PathType(dir_okay=False)
    settings = {"is_eager": True, "expose_value": False, "callback": _take_config}
    return option("--config", type=kind, metavar="FILE", help=help_text, **settings)(function)


def _take_config(context: click.Context, parameter: click.Parameter, path: Path | None) -> None:
    if path is not None:
        options = [one for one in context.command.params if isinstance(one, click.Option) and one is not parameter]
        context.default_map = read_config(path, options)


def _entries(lock: Lock, names: Sequence[str]) -> list[LockedModel]:
    entries = [lock.model(name) for name in dict.fromkeys(names)] if names else list(lock.default_models)
    if any(entry.source.startswith("toy:") for entry in entries):
        _say("The toy models are made of fixed random integers: they prove the path and mean nothing.")
    return entries


def _say(message: str) -> None:
    _err.print(message, highlight=False, markup=False, soft_wrap=True)


def _print_json(document: Any) -> None:
    click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())


def _show_verdict(verdict: Verdict) -> None:
    from samevec.parity.report import terminal as table  # noqa: PLC0415  # rich tables are drawn by few commands

    console = Console()
    if console.is_terminal:
        console.print(table.verdict_table(verdict))
        for line in table.failure_lines(verdict):
            console.print(line, highlight=False, markup=False)
    else:
        click.echo("\n".join(table.plain_lines(verdict, most_failures=table.SHOWN_FAILURES)))
    click.echo(verdict.words)


def _show_failures(verdict: Verdict) -> None:
    """Print failures on standard error, while standard output is for a program."""
    from samevec.parity.report.terminal import failure_lines  # noqa: PLC0415

    for line in failure_lines(verdict):
        _say(f"{verdict.model}: {line}")
    if verdict.receipt_problem:
        _say(f"{verdict.model}: {verdict.receipt_problem}")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="samevec")
def cli() -> None:
    """Serve pinned embedding and reranking models as ONNX, proved equal to PyTorch on this machine.

    Exit codes: 0 ok; 1 parity failed; 2 usage, lock, source files or input; 3 not ready, or the environment.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class _Request:
    """The common flags of commands that work on models of a lock, by their names."""

    models: Sequence[str] = ()
    profile: str = "cpu"
    lock_ref: str | None = None
    home: Path | None = None
    source_dir: Path | None = None
    as_json: bool = False

    @property
    def home_path(self) -> Path:
        return self.home or default_home()

    @property
    def commands(self) -> Commands:
        return Commands(lock=self.lock_ref, home=self.home_path, source_dir=self.source_dir)

    def export_all(self) -> int:
        """Export, run the gate and show its verdict, model by model."""
        from samevec.gate import prove  # noqa: PLC0415
        from samevec.opening import open_candidate  # noqa: PLC0415  onnxruntime

        lock, progress = load_lock(self.lock_ref), make_progress(_err)
        entries = _entries(lock, self.models)
        profile = _resolved(self.profile, entries, self.home_path, "export")
        verdicts, outcome = [], GateOutcome(_say)
        for entry in entries:
            self._export(entry, lock, profile, progress)
            candidate = open_candidate(entry, profile=profile, home=self.home_path, commands=self.commands)
            verdicts.append(prove(candidate, tolerance=lock.tolerance, progress=progress))
            outcome.add(verdicts[-1], _show_failures if self.as_json else _show_verdict)
        if self.as_json:
            outcome.attempt("the JSON document", lambda: _print_json([verdict.to_dict() for verdict in verdicts]))
        return outcome.exit_code

    def _export(self, entry: LockedModel, lock: Lock, profile: str, progress: Progress) -> None:
        from samevec.export.pipeline import export_model  # noqa: PLC0415  only exports need it

        artifact = export_model(
            entry, lock, profile=profile, home=self.home_path, source_dir=self.source_dir, progress=progress
        )
        _say(f"artifact {artifact.path}")


@cli.command()
@_model_option
@_running_profile_option
@_lock_option
@_from_option
@_home_option
@_json_option
def export(**flags: Any) -> int:
    """Turn pinned checkpoints into ONNX and prove them on this machine.

    Fetches (or takes from --from) and verifies every pinned file, captures the PyTorch reference, exports, compares the
    graph with PyTorch at many shapes, publishes the artifact and runs the parity gate.
    """
    return _Request(**flags).export_all()


@cli.command()
@_model_option
@_running_profile_option
@_lock_option
@_home_option
@option("--quick", is_flag=True, help="Some of it; no receipt where it passes, unless only libraries changed.")
@option("--selftest", is_flag=True, help="No model: the native library's kernels beside their hashes; two seconds.")
@option("--bisect", is_flag=True, help="Every node's output of three cases beside the export's: which one differs.")
@option("--reference", type=click.Choice(["stored", "live"]), default="stored", help="live: PyTorch again beside it.")
@_from_option
@option("--report", type=_PathType(file_okay=False), metavar="DIR", help="Write index.html and report.json here.")
@option("--junit", type=_PathType(dir_okay=False), metavar="FILE", help="Write JUnit XML, one test case a cell.")
@option("--compare", type=_PathType(dir_okay=False), metavar="FILE", help="Older report or receipt: say what moved.")
@_json_option
def parity(models: Sequence[str], lock_ref: str | None, home: Path | None, as_json: bool, **flags: Any) -> int:
    """Compare exported models with their PyTorch reference on this machine and write receipts.

    Needs no torch: the reference travels with the artifact. Only --reference live does, and the checkpoint's files too
    (--from, the home's snapshots or the hub): it compares stored reference, PyTorch computed now, and candidate.
    """
    from samevec.cli.parity import ParityPlan, run_bisect, run_parity, run_selftest  # noqa: PLC0415  onnxruntime

    selftest, bisect = flags.pop("selftest"), flags.pop("bisect")
    if selftest:
        return run_selftest(say=click.echo)
    lock, home = load_lock(lock_ref), home or default_home()
    commands = Commands(lock=lock_ref, home=home, source_dir=flags["source_dir"])
    entries = _entries(lock, models)
    flags["profile"] = _resolved(flags["profile"], entries, home, "parity")
    plan = ParityPlan(lock=lock, entries=tuple(entries), home=home, commands=commands, **flags)
    if bisect:
        return run_bisect(plan, say=click.echo)
    show = _show_failures if as_json else _show_verdict
    report, outcome = run_parity(plan, progress=make_progress(_err), show=show, say=_say)
    if as_json:
        outcome.attempt("the JSON document", lambda: _print_json(report["models"]))
    return outcome.exit_code


@cli.command()
@option("--backend", type=click.Choice(["onnx", "torch"]), default="onnx", help="torch serves the reference itself.")
@_running_profile_option
@_model_option
@_lock_option
@_home_option
@_from_option
@option("--host", default="127.0.0.1", help="TCP address.")
@option("--port", type=int, default=8765, help="TCP port; 0 takes a free one.")
@option("--uds", type=_PathType(), help="HTTP on this Unix socket (owner only) instead of TCP.")
@option("--socket", type=_PathType(), help="The framed protocol on this Unix socket.")
@option("--truememory", is_flag=True, help="The framed protocol where TrueMemory's client looks for it.")
@option("--api-key-file", type=_PathType(), help="Bearer keys, one a line.")
@option("--token-budget", type=click.IntRange(min=1), help="Padded tokens of one microbatch.  [default: by profile]")
@option(
    "--max-queue",
    "max_queue_items",
    type=click.IntRange(min=1),
    default=8192,
    help="Most texts or pairs accepted and unfinished.",
)
@option("--drain-s", type=click.FloatRange(min=0), default=30.0, help="Seconds for accepted work after SIGTERM.")
@option("--log-requests", type=click.Choice(["none", "errors", "all"]), default="errors", help="A line each for these.")
@option("--tls-cert", type=_PathType(dir_okay=False), metavar="FILE", help="Certificate chain, PEM: HTTP over TLS.")
@option("--tls-key", type=_PathType(dir_okay=False), metavar="FILE", help="Its key, PEM, without a password.")
@option("--cors-origin", "cors_origins", multiple=True, metavar="ORIGIN", help="Pages of it may ask; may be repeated.")
@option("--otlp-endpoint", metavar="URL", help="Send traces there, as OTLP over HTTP; needs the extra otel.")
@option("--idle-unload-s", type=click.FloatRange(min=0), default=0.0, help="Unload a model not used so long; 0: never.")
@option(
    "--reprobe",
    "reprobe_s",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Repeat the start-up probe so often; 0: never.",
)
@option("--log-format", type=click.Choice(["text", "json"]), default="text", help="Of the log on standard error.")
@_config_option
@option("--prove", "prove_first", is_flag=True, help="Run the parity gate first where it has not passed.")
def serve(models: Sequence[str], lock_ref: str | None, home: Path | None, **flags: Any) -> int:
    """Serve exported models over HTTP and Unix sockets; refuses what was not proved here (exit 3)."""
    from samevec.cli.serve import ServePlan, serve_models  # noqa: PLC0415
    from samevec.server.settings import ServerSettings  # noqa: PLC0415

    lock, home = load_lock(lock_ref), home or default_home()
    commands = Commands(lock=lock_ref, home=home, source_dir=flags["source_dir"])
    entries = _entries(lock, models)
    if flags["backend"] == "onnx":
        purpose: Purpose = "prove and serve" if flags["prove_first"] else "serve"
        flags["profile"] = _resolved(flags["profile"], entries, home, purpose)
    model_flags = {name: flags.pop(name) for name in ("profile", "backend", "source_dir", "prove_first")}
    common: dict[str, Any] = {"lock": lock, "entries": tuple(entries), "home": home, "commands": commands}
    plan = ServePlan(settings=ServerSettings(**flags), **common, **model_flags)
    return serve_models(plan, progress=make_progress(_err), say=_say)


@cli.command()
@_profile_option
@_lock_option
@_home_option
@option("--url", default="http://127.0.0.1:8765", help="Of a running server, shown too where one answers.")
@option("--api-key-file", type=_PathType(), help="Its first key is sent to that server.")
@_json_option
def status(url: str, api_key_file: Path | None, **flags: Any) -> int:
    """Show artifacts, receipts and sizes, what would be served, and the running server."""
    from samevec.cli.running import running_lines  # noqa: PLC0415
    from samevec.cli.status import model_reports, report_lines, report_table  # noqa: PLC0415

    request = _Request(**flags)
    reports = model_reports(
        load_lock(request.lock_ref), profile=request.profile, home=request.home_path, commands=request.commands
    )
    if request.as_json:
        _print_json([report.to_dict() for report in reports])
        return 0
    console = Console()
    # Columns are never cut where a program reads them.
    console.print(report_table(reports), width=console.width if console.is_terminal else _PIPE_WIDTH)
    click.echo("\n".join(["", *report_lines(reports), *running_lines(url, api_key_file)]))
    return 0


@cli.command()
@option("--keep", type=_PathType(file_okay=False), metavar="DIR", help="Keep the artifacts here afterwards.")
def demo(keep: Path | None) -> int:
    """Export, prove and serve the built-in toy pair, with three real requests. Needs no download."""
    from samevec.cli.demo import run_demo  # noqa: PLC0415

    return run_demo(make_progress(_err), show_verdict=_show_verdict, say=click.echo, keep=keep)


@cli.group("lock")
def lock_group() -> None:
    """Check a lock, or pin another revision in it."""


@lock_group.command("check")
@click.argument("lock_ref", metavar="[FILE|toy]", required=False, envvar=f"{ENV_PREFIX}_LOCK", callback=_expanded)
@_json_option
def lock_check(lock_ref: str | None, as_json: bool) -> int:
    """Validate a lock: the one named here or in SAMEVEC_LOCK, else the packaged models.lock."""
    lock = load_lock(lock_ref)
    if as_json:
        _print_json({"lock": lock.origin, "valid": True, "models": {m.name: m.digest for m in lock.models}})
    else:
        for entry in lock.models:
            click.echo(f"{entry.name}  {entry.revision}  {len(entry.files)} files  {entry.digest}")
        click.echo(f"{lock.origin}: valid")
    return 0


@lock_group.command("update")
@click.argument("name")
@option("--revision", metavar="SHA", help="40 hex digits of a commit; names such as main are refused.")
@option("--answers", is_flag=True, help="Pin the bits that the model's cpu artifact under --home answers with.")
@_lock_option
@_home_option
def lock_update(name: str, revision: str | None, answers: bool, lock_ref: str | None, home: Path | None) -> int:
    """Pin model NAME at another revision, or with its answers: the only command that writes a lock."""
    if (revision is None) == (not answers):
        raise ConfigError("lock update needs either --revision SHA or --answers")
    if lock_ref is None or lock_ref == "toy":
        raise ConfigError("lock update needs --lock FILE: the packaged locks are not written")
    if revision is None:
        changes = _pin_answers(Path(lock_ref), name, home or default_home())
    else:
        from samevec.export.source.hub import Hub  # noqa: PLC0415
        from samevec.export.source.lock_update import update_lock  # noqa: PLC0415

        changes = update_lock(Path(lock_ref), name, revision, hub=Hub())
    click.echo("\n".join(changes) if changes else f"{name}: nothing changed")
    return 0


def _pin_answers(path: Path, name: str, home: Path) -> list[str]:
    from samevec.artifact import find_artifact  # noqa: PLC0415
    from samevec.export.source.lock_update import pin_answers  # noqa: PLC0415
    from samevec.parity.answers import read_answers  # noqa: PLC0415

    entry, commands = load_lock(str(path)).model(name), Commands(lock=path, home=home)
    artifact = find_artifact(home, entry, "cpu", commands=commands)
    fix = commands.export(name, "cpu", source=entry.source)
    return pin_answers(path, name, read_answers(artifact.answers_path, fix=fix))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with the process's arguments, or those given; return the exit code."""
    code = _guarded(functools.partial(cli.main, args=arguments, prog_name="samevec", standalone_mode=False))
    if arguments is None:
        sys.exit(code)
    return code


def _guarded(run: Callable[[], Any]) -> int:
    """Turn exceptions into one line and an exit code; a traceback only when asked for."""
    try:
        return int(run() or 0)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort:
        _say("samevec: stopped")
        return 130
    except click.ClickException as error:
        error.show()
        return 2
    except Exception as error:
        if debug_requested():
            _err.print_exception()
        code, message = _outcome(error)
        _say(f"samevec: {message}")
        return code


def _outcome(error: Exception) -> tuple[int, str]:
    """Return the exit code and the one line for an exception that ended a command."""
    if isinstance(error, SamevecError):
        # A full disk is the machine's fault, whichever step met it.
        return 3 if _is_full_disk(error.__cause__) else exit_code(error), str(error)
    if _is_full_disk(error):
        return 3, f"the disk is full, or a limit on file sizes was met: {error}"
    if isinstance(error, OSError):
        return 3, str(error)
    # A bug in samevec: one line, with the way to see the traceback.
    return 3, f"internal error: {type(error).__name__}: {error} (SAMEVEC_DEBUG=1 shows the traceback)"


def _is_full_disk(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


if __name__ == "__main__":
    main()
