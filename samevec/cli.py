"""The command line: flags in, one call into a room, one exit code out. Rooms that load torch are imported when used."""

from __future__ import annotations

import errno
import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import orjson
from rich.console import Console

from samevec._version import __version__
from samevec.errors import ConfigError, LockError, SamevecError, exit_code
from samevec.lock import load_lock
from samevec.runtime.profiles import PROFILES
from samevec.settings import ENV_PREFIX, debug_requested, default_home
from samevec.terminal import make_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from samevec.lock import Lock, LockedModel
    from samevec.parity.verdict import Verdict

__all__ = ["cli", "main"]

_F = TypeVar("_F", bound="Callable[..., Any]")

#: Everything that is not a result goes here, so that standard output can be piped.
_err = Console(stderr=True)


def option(name: str, *names: str, **settings: Any) -> Callable[[_F], _F]:
    """Declare a flag with its environment variable ``SAMEVEC_...``, shown in --help."""
    variable = f"{ENV_PREFIX}_{name.lstrip('-').split('/')[0].replace('-', '_').upper()}"
    settings = {"envvar": variable, "show_envvar": True, "show_default": True, **settings}
    return click.option(name, *names, **settings)


def _lock_option(function: _F) -> _F:
    help_text = "Lock file; `toy` for the built-in toy pair. Default: the packaged models.lock."
    return option("--lock", "lock_ref", metavar="FILE|toy", help=help_text)(function)


def _home_option(function: _F) -> _F:
    help_text = "Where artifacts are kept. Default: the platform's user data folder."
    return option("--home", type=click.Path(path_type=Path, file_okay=False), help=help_text)(function)


def _model_option(function: _F) -> _F:
    return option("--model", "models", multiple=True, metavar="NAME", help="Model of the lock; all when not given.")(function)


def _profile_option(function: _F) -> _F:
    return option("--profile", type=click.Choice(sorted(PROFILES)), default="cpu", help="How to run the model.")(function)


def _from_option(function: _F) -> _F:
    help_text = "Folder with the pinned files (DIR/NAME/ or DIR itself) instead of the hub; symlinks are followed."
    kind = click.Path(path_type=Path, file_okay=False, exists=True)
    return option("--from", "source_dir", type=kind, metavar="DIR", help=help_text)(function)


def _json_option(function: _F) -> _F:
    return option("--json", "as_json", is_flag=True, help="Print one JSON document instead of words.")(function)


def _entries(lock: Lock, names: Sequence[str]) -> list[LockedModel]:
    entries = [lock.model(name) for name in dict.fromkeys(names)] if names else list(lock.models)
    if any(entry.source.startswith("toy:") for entry in entries):
        _say("The toy models are made of fixed random integers: they prove the path and mean nothing.")
    return entries


def _say(message: str) -> None:
    _err.print(message, highlight=False, markup=False, soft_wrap=True)


def _print_json(document: Any) -> None:
    click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())


def _show_verdict(verdict: Verdict) -> None:
    from samevec.parity.table import plain_lines, verdict_table  # noqa: PLC0415  only some commands show one

    console = Console()
    if console.is_terminal:
        console.print(verdict_table(verdict))
        for failure in verdict.failures[:3]:
            console.print(f"failed: {failure}", highlight=False, markup=False)
    else:
        click.echo("\n".join(plain_lines(verdict)))
    click.echo(verdict.words)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="samevec")
def cli() -> None:
    """Serve pinned embedding and reranking models as ONNX, proved equal to PyTorch on this machine.

    \b
    Exit codes: 0 ok; 1 parity failed; 2 usage, lock, source files or input; 3 not ready, or the environment.
    """


@cli.command()
@_model_option
@_profile_option
@_lock_option
@_from_option
@_home_option
@_json_option
def export(
    models: Sequence[str],
    profile: str,
    lock_ref: str | None,
    source_dir: Path | None,
    home: Path | None,
    as_json: bool,
) -> int:
    """Turn pinned checkpoints into ONNX and prove them on this machine.

    Fetches (or takes from --from) and verifies every pinned file, captures the PyTorch reference, exports, compares the
    graph with PyTorch at many shapes, publishes the artifact and runs the parity gate.
    """
    from samevec.export.pipeline import export_model  # noqa: PLC0415
    from samevec.load import open_candidate  # noqa: PLC0415
    from samevec.prove import prove  # noqa: PLC0415

    lock, home = load_lock(lock_ref), home or default_home()
    progress = make_progress(_err)
    verdicts = []
    for entry in _entries(lock, models):
        artifact = export_model(
            entry, lock, profile=profile, home=home, source_dir=source_dir, progress=progress
        )
        _say(f"artifact {artifact.path}")
        candidate = open_candidate(entry, profile=profile, home=home)
        verdicts.append(prove(candidate, tolerance=lock.tolerance, progress=progress))
        if not as_json:
            _show_verdict(verdicts[-1])
    if as_json:
        _print_json([verdict.to_dict() for verdict in verdicts])
    return 0 if all(verdict.passed for verdict in verdicts) else 1


@cli.command()
@_model_option
@_profile_option
@_lock_option
@_home_option
@_json_option
def parity(models: Sequence[str], profile: str, lock_ref: str | None, home: Path | None, as_json: bool) -> int:
    """Compare exported models with their PyTorch reference on this machine and write receipts.

    Needs no torch: the reference travels with the artifact.
    """
    from samevec.load import open_candidate  # noqa: PLC0415
    from samevec.prove import prove  # noqa: PLC0415

    lock, home = load_lock(lock_ref), home or default_home()
    progress = make_progress(_err)
    verdicts = []
    for entry in _entries(lock, models):
        candidate = open_candidate(entry, profile=profile, home=home)
        verdicts.append(prove(candidate, tolerance=lock.tolerance, progress=progress))
        if not as_json:
            _show_verdict(verdicts[-1])
    if as_json:
        _print_json([verdict.to_dict() for verdict in verdicts])
    return 0 if all(verdict.passed for verdict in verdicts) else 1


@cli.command()
@option("--backend", type=click.Choice(["onnx", "torch"]), default="onnx", help="torch serves the reference itself.")
@_profile_option
@_model_option
@_lock_option
@_home_option
@_from_option
@option("--host", default="127.0.0.1", help="TCP address.")
@option("--port", type=int, default=8765, help="TCP port; 0 takes a free one.")
@option("--uds", type=click.Path(path_type=Path), help="HTTP on this Unix socket (owner only) instead of TCP.")
@option("--socket", "socket_path", type=click.Path(path_type=Path), help="The framed protocol on this Unix socket.")
@option("--truememory", is_flag=True, help="The framed protocol where TrueMemory's client looks for it.")
@option("--api-key-file", type=click.Path(path_type=Path), help="Bearer keys, one a line.")
@option("--token-budget", type=click.IntRange(min=1), help="Padded tokens of one microbatch.  [default: 4096]")
@option("--max-queue", type=click.IntRange(min=1), default=8192, help="Most texts or pairs accepted and unfinished.")
@option("--drain-s", type=click.FloatRange(min=0), default=30.0, help="Seconds for accepted work after SIGTERM.")
@option("--log-format", type=click.Choice(["text", "json"]), default="text", help="Of the log on standard error.")
@option("--prove", "prove_first", is_flag=True, help="Run the parity gate first where it has not passed.")
def serve(models: Sequence[str], lock_ref: str | None, home: Path | None, **flags: Any) -> int:
    """Serve exported models over HTTP and Unix sockets; refuses what was not proved here (exit 3)."""
    from samevec.serving import ServePlan, serve_models  # noqa: PLC0415

    lock = load_lock(lock_ref)
    plan = ServePlan(lock=lock, entries=tuple(_entries(lock, models)), home=home or default_home(), **flags)
    return serve_models(plan, progress=make_progress(_err), say=_say)


@cli.command()
@_profile_option
@_lock_option
@_home_option
@_json_option
def status(profile: str, lock_ref: str | None, home: Path | None, as_json: bool) -> int:
    """Show artifacts, receipts and sizes, and what would be served."""
    from samevec.report import model_reports, report_table  # noqa: PLC0415

    reports = model_reports(load_lock(lock_ref), profile=profile, home=home or default_home())
    if as_json:
        _print_json([report.to_dict() for report in reports])
    else:
        Console(soft_wrap=True).print(report_table(reports))
    return 0


@cli.command()
@option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Keep the artifacts here afterwards.")
def demo(keep: Path | None) -> int:
    """Export, prove and serve the built-in toy pair, with three real requests. Needs no download."""
    from samevec.demo import run_demo  # noqa: PLC0415

    return run_demo(make_progress(_err), show_verdict=_show_verdict, say=click.echo, keep=keep)


@cli.group("lock")
def lock_group() -> None:
    """Check a lock, or pin another revision in it."""


@lock_group.command("check")
@click.argument("lock_ref", metavar="[FILE|toy]", required=False, envvar=f"{ENV_PREFIX}_LOCK")
@_json_option
def lock_check(lock_ref: str | None, as_json: bool) -> int:
    """Validate a lock; the packaged models.lock when none is given."""
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
@click.option("--revision", required=True, metavar="SHA", help="40 hex digits of a commit; names such as main are refused.")
@_lock_option
def lock_update(name: str, revision: str, lock_ref: str | None) -> int:
    """Pin model NAME at another revision: the only command that writes a lock."""
    from samevec.export.hub import Hub  # noqa: PLC0415
    from samevec.export.lock_update import update_lock  # noqa: PLC0415

    if lock_ref is None or lock_ref == "toy":
        raise ConfigError("lock update needs --lock FILE: the packaged locks are not written")
    changes = update_lock(Path(lock_ref), name, revision, hub=Hub())
    click.echo("\n".join(changes) if changes else f"{name}: nothing changed")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        Instead of the process's own.

    Returns
    -------
    int
        The exit code: 0 ok, 1 parity failed, 2 usage, lock, source or input, 3 not ready or environment.
    """
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
    except SamevecError as error:
        return _complain(str(error), exit_code(error))
    except OSError as error:
        if debug_requested():
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return _complain(f"{'no space left on the disk: ' if full else ''}{error}", 3)
    except Exception as error:  # a fault of ours: said in one line, with the way to see all of it
        if debug_requested():
            raise
        return _complain(f"internal error: {type(error).__name__}: {error} (SAMEVEC_DEBUG=1 shows the traceback)", 3)


def _complain(message: str, code: int) -> int:
    if debug_requested() and sys.exc_info()[0] is not None and not isinstance(sys.exc_info()[1], LockError):
        _err.print_exception()
    _say(f"samevec: {message}")
    return code


if __name__ == "__main__":
    main()
