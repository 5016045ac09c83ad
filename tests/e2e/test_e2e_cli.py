"""The command line: what users get wrong, what it answers, and that its advice works when pasted."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click
import httpx
import pytest
from e2e_tools import (
    EMBEDDER,
    LOCK,
    RERANKER,
    ROOT,
    TOYS,
    artifact_of,
    environment,
    paste,
    rewrite_receipt,
    samevec,
    serving,
)

from samevec._version import __version__
from samevec.cli import main as cli_module
from samevec.cli.main import cli as root
from samevec.cli.main import main
from samevec.hints import Commands
from samevec.lock import dump_lock
from samevec.settings import default_home

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e_tools import ToyHome

Cli = Any  # called with arguments, gives a Done

SHA = "0123456789abcdef0123456789abcdef01234567"


def commands_of(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands_of(command, (*path, name))


ALL_COMMANDS = dict(commands_of(root))


@pytest.mark.parametrize("path", [(), *ALL_COMMANDS], ids=" ".join)
def test_help_names_a_variable_for_every_flag(path: tuple[str, ...], cli: Cli) -> None:
    done = cli(*path, "--help")
    assert done.code == 0
    text = " ".join(done.out.split())
    for parameter in ALL_COMMANDS[path].params if path else ():
        if not isinstance(parameter, click.Option) or parameter.name == "help":
            continue
        flag = max(parameter.opts, key=len)
        variable = "SAMEVEC_" + flag.lstrip("-").replace("-", "_").upper()
        assert parameter.envvar == variable
        assert f"env var: {variable}" in text, flag
        assert parameter.help


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"samevec, version {__version__}\n"


MISTAKES = {
    "unknown model": (
        ("export", "--lock", "toy", "--model", "toy-other"),
        f"samevec: toy.lock: no model named 'toy-other'; it pins {EMBEDDER}, {RERANKER}",
    ),
    "unknown profile": (
        ("status", "--profile", "tpu"),
        "samevec: profile 'tpu' is not known; choose one of: coreml, cpu, cuda, portable",
    ),
    "profile that is gone": (
        ("serve", "--lock", "toy", "--profile", "cpu-compact"),
        "samevec: cpu-compact is gone: cpu is as small now; export again with --profile cpu",
    ),
    "no such lock": (("status", "--lock", "/nowhere/x.lock"), "samevec: /nowhere/x.lock: "),
    "no such model folder": (("export", "--from", "/nowhere"), "'/nowhere' does not exist."),
    "home is a file": (("status", "--home", __file__), "is a file."),
    "packaged lock": (
        ("lock", "update", EMBEDDER, "--revision", SHA),
        "samevec: lock update needs --lock FILE: the packaged locks are not written",
    ),
    "toy lock": (
        ("lock", "update", EMBEDDER, "--revision", SHA, "--lock", "toy"),
        "samevec: lock update needs --lock FILE: the packaged locks are not written",
    ),
    "no revision": (
        ("lock", "update", EMBEDDER),
        "samevec: lock update needs either --revision SHA or --answers",
    ),
    "no key file": (
        ("serve", "--lock", "toy", "--port", "0", "--api-key-file", "/nowhere"),
        "samevec: --api-key-file /nowhere: cannot be read: ",
    ),
    "bad port": (("serve", "--lock", "toy", "--port", "99999"), "port"),
    "unknown command": (("sreve",), "No such command 'sreve'."),
    "unknown flag": (("serve", "--no-gate"), "No such option"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_said_in_words(name: str, cli: Cli) -> None:
    arguments, message = MISTAKES[name]
    done = cli(*arguments)
    assert done.code == 2
    assert message in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    "command", [("lock", "check"), ("status", "--lock"), ("serve", "--lock"), ("parity", "--lock")]
)
def test_a_bad_lock_names_its_path(command: tuple[str, ...], tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "bad.lock"
    text = dump_lock(LOCK)
    path.write_text(text.replace(f'sha256 = "{LOCK.models[1].files[0].sha256}"', 'sha256 = "abc"'))
    done = cli(*command, path)
    assert done.code == 2
    (complaint,) = done.complaints
    assert complaint.startswith(f"samevec: {path}: models[1].files[0].sha256: ")
    assert len(done.err.splitlines()) == 1


def test_floating_revisions_are_refused(tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "own.lock"
    path.write_text(dump_lock(LOCK))
    before = path.read_bytes()
    done = cli("lock", "update", EMBEDDER, "--revision", "main", "--lock", path)
    assert done.code == 2
    assert len(done.complaints) == 1
    assert path.read_bytes() == before


def test_lock_check(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    done = cli("lock", "check", "toy")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("toy.lock: valid\n")
    record = json.loads(cli("lock", "check", "toy", "--json").out)
    assert record == {"lock": "toy.lock", "valid": True, "models": {m.name: m.digest for m in LOCK.models}}
    assert "models.lock: valid" in cli("lock", "check").out
    monkeypatch.setenv("SAMEVEC_LOCK", "toy")
    assert "toy.lock: valid" in cli("lock", "check").out


def test_variables_stand_for_flags(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMEVEC_LOCK", "toy")
    monkeypatch.setenv("SAMEVEC_HOME", "~/its home")
    monkeypatch.setenv("SAMEVEC_JSON", "1")
    record = json.loads(cli("status").out)
    assert [report["model"] for report in record] == list(TOYS)
    fix = f"samevec export --model {EMBEDDER} --profile cpu --lock toy --home '{tmp_path}/its home'"
    assert record[0]["fix"] == fix


def test_nothing_exported(tmp_path: Path, cli: Cli) -> None:
    where = ("--lock", "toy", "--home", tmp_path)
    fixes = [f"run: samevec export --model {name} --profile cpu --lock toy --home {tmp_path}" for name in TOYS]
    done = cli("serve", *where, "--port", 0)
    assert done.code == 3
    assert done.complaints == [
        f"samevec: not serving: {name} (cpu): nothing exported under {tmp_path}; {fix}"
        for name, fix in zip(TOYS, fixes, strict=True)
    ]
    done = cli("parity", *where)
    assert done.code == 3
    assert done.complaints == [f"samevec: {EMBEDDER} (cpu): nothing exported under {tmp_path}; {fixes[0]}"]
    done = cli("status", *where)
    assert done.code == 0
    for name, fix in zip(TOYS, fixes, strict=True):
        assert f"{name}: nothing exported under {tmp_path}\n  {fix}\n" in done.out


def test_a_full_home_cannot_be_made(cli: Cli) -> None:
    done = cli("export", "--lock", "toy", "--home", "/proc/samevec", "--model", EMBEDDER)
    assert done.code in (2, 3)
    assert len(done.complaints) == 1


def test_a_fault_of_ours_is_one_line_and_can_be_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_reference: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr(cli_module, "load_lock", broken)
    assert main(["status"]) == 3
    message = "samevec: internal error: KeyError: 'surprise' (SAMEVEC_DEBUG=1 shows the traceback)\n"
    assert capsys.readouterr().err == message
    monkeypatch.setenv("SAMEVEC_DEBUG", "1")
    assert main(["status"]) == 3
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.endswith(message)


def test_a_keyboard_interrupt_is_no_fault(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_reference: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_module, "load_lock", interrupted)
    done = cli("status")
    assert done.code == 130
    assert done.complaints == ["samevec: stopped"]


def test_commands_name_only_what_is_not_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    from pathlib import Path as Real  # noqa: PLC0415 - relative paths are the point

    plain = "samevec parity --model m --profile cpu"
    assert Commands().parity("m", "cpu") == plain
    home = default_home()
    assert Commands(home=home).parity("m", "cpu") == plain
    own = Commands(lock="my locks/a.lock", home=Real("here"), source_dir=Real("files"))
    assert own.parity("m", "cpu") == f"{plain} --lock '{tmp_path}/my locks/a.lock' --home {tmp_path}/here"
    assert own.export("m", "cpu").endswith(f" --home {tmp_path}/here --from {tmp_path}/files")
    assert Commands().export("m", "cpu", source="local:m").endswith(" --from DIR")
    monkeypatch.setenv("SAMEVEC_HOME", str(tmp_path))  # set here, perhaps not where it is pasted
    assert Commands(home=default_home()).parity("m", "cpu").endswith(f" --home {tmp_path}")


@pytest.mark.model
def test_printed_commands_export_and_prove(exported: ToyHome) -> None:
    """The fixture pasted them; here is what they did."""
    for report, done in zip(exported.before, exported.exports, strict=True):
        assert (report["gate"], report["artifact"], report["would_be_served"]) == ("not exported", None, False)
        assert f"--lock toy --home '{exported.path}'" in report["fix"]
        (verdict,) = json.loads(done.out)
        assert (verdict["model"], verdict["passed"], verdict["failures"]) == (report["model"], True, [])
        assert {cell["grouping"] for cell in verdict["cells"]} >= {"alone", "default", "batch_1", "batch_8", "shuffled"}
        assert "mean nothing" in done.err


@pytest.mark.model
def test_status_when_all_is_well(exported: ToyHome, cli: Cli) -> None:
    where = ("--lock", "toy", "--home", exported.path)
    done = cli("status", *where)
    assert (done.code, done.err) == (0, "")
    header, *rows = done.out.splitlines()[:3]
    assert header.split() == ["model", "task", "profile", "gate", "size"]
    assert [row.split()[:4] for row in rows] == [
        [EMBEDDER, "embed", "cpu", "passed"],
        [RERANKER, "rerank", "cpu", "passed"],
    ]
    for name in TOYS:
        assert f"\n{name}: {artifact_of(exported.path, name).path}\n" in done.out
    for report in json.loads(cli("status", *where, "--json").out):
        assert (report["gate"], report["fix"], report["would_be_served"]) == ("passed", None, True)
        assert report["artifact"] == str(artifact_of(exported.path, report["model"]).path)
        assert report["size_bytes"] > 8_000_000


STATES: dict[str, tuple[dict[str, Any], str, str]] = {
    "failed": (
        {"passed": False, "failures": ["raw/alone: 3 of 68 rows differ"]},
        "failed (raw/alone: 3 of 68 rows differ)",
        "parity failed here: raw/alone: 3 of 68 rows differ",
    ),
    "stale": (
        {"onnxruntime_version": "1.0.0", "device": "Another CPU"},
        "stale (onnxruntime 1.0.0 -> ",
        "the parity receipt is stale: onnxruntime 1.0.0 -> ",
    ),
}


@pytest.mark.model
@pytest.mark.parametrize("state", ["missing", "damaged", *STATES])
def test_closed_gates(state: str, home: Path, cli: Cli) -> None:
    artifact = artifact_of(home, EMBEDDER)
    shown, said = "missing", "parity has not been proved on this machine"
    if state == "missing":
        for receipt in artifact.receipts_path.iterdir():
            receipt.unlink()
    elif state == "damaged":
        for receipt in artifact.receipts_path.iterdir():
            receipt.write_bytes(receipt.read_bytes().replace(b'"passed": true', b'"passed":  true') + b"!")
    else:
        content, shown, said = STATES[state]
        rewrite_receipt(home, EMBEDDER, **content)
    where = ("--lock", "toy", "--home", home)
    verb = "export" if state == "failed" else "parity"  # what failed fails again
    fix = f"run: samevec {verb} --model {EMBEDDER} --profile cpu --lock toy --home {home}"
    done = cli("serve", *where, "--port", 0)
    assert done.code == 3
    (complaint,) = done.complaints  # the other model's gate is open, and it is not served alone
    assert complaint.startswith(f"samevec: not serving: {EMBEDDER}: {said}")
    assert complaint.endswith(fix)
    assert "load " not in done.err
    assert " ready at " not in done.out
    done = cli("status", *where)
    assert done.code == 0
    assert f"\n{EMBEDDER}: {shown}" in done.out
    assert f"\n  {fix}\n" in done.out
    gates = {report["model"]: report["gate"] for report in json.loads(cli("status", *where, "--json").out)}
    assert gates == {EMBEDDER: "missing" if state == "damaged" else state, RERANKER: "passed"}


@pytest.mark.model
def test_a_changed_lock_entry_asks_for_an_export(home: Path, tmp_path: Path, cli: Cli) -> None:
    own = tmp_path / "own locks" / "a.lock"
    own.parent.mkdir()
    own.write_text(dump_lock(LOCK).replace('license = "Apache-2.0"', 'license = "MIT"'))
    done = cli("serve", "--lock", own, "--home", home, "--port", 0, "--model", EMBEDDER)
    assert done.code == 3
    (complaint,) = done.complaints
    assert "the lock entry has changed since the export: license Apache-2.0 -> MIT; run: " in complaint
    assert complaint.endswith(f"run: samevec export --model {EMBEDDER} --profile cpu --lock '{own}' --home {home}")


@pytest.mark.model
def test_the_printed_parity_command_opens_the_gate(home: Path, tmp_path: Path, cli: Cli) -> None:
    rewrite_receipt(home, EMBEDDER, device="Another CPU")
    where = ("--lock", "toy", "--home", home, "--model", EMBEDDER)
    complaint = cli("serve", *where, "--port", 0).complaints[0]
    done = paste(complaint.rpartition("run: ")[2], folder=tmp_path)
    assert done.code == 0, done.err
    assert done.out.count(f"{EMBEDDER} (cpu): parity passed") == 1
    with serving(*where, folder=tmp_path) as server:
        assert httpx.get(f"{server.url}/ready").status_code == 200
        assert server.stop() == 0


@pytest.mark.model
@pytest.mark.server
def test_serve_prove_proves_first(home: Path, tmp_path: Path) -> None:
    rewrite_receipt(home, EMBEDDER, device="Another CPU")
    where = ("--lock", "toy", "--home", home, "--model", EMBEDDER)
    with serving(*where, "--prove", folder=tmp_path) as server:
        assert httpx.get(f"{server.url}/ready").status_code == 200
        assert server.stop() == 0
    log = (tmp_path / "serve.log").read_text()
    assert f"{EMBEDDER}: parity stale (device Another CPU -> " in log
    assert f"parity {EMBEDDER}" in log
    with serving(*where, "--prove", folder=tmp_path) as server:  # has passed now: nothing is run again
        assert server.stop() == 0
    assert f"parity {EMBEDDER}" not in (tmp_path / "serve.log").read_text()


@pytest.mark.model
def test_a_busy_port_is_found_before_loading(exported: ToyHome, cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = cli("serve", "--lock", "toy", "--home", exported.path, "--port", port)
    assert done.code == 3
    assert done.complaints == [
        f"samevec: 127.0.0.1:{port} is in use by another process; stop it or choose another --port"
    ]
    assert "load " not in done.err


#: SIGTERM in the middle of a step: what to do there, and in what.
STOPPED_IN = {
    "load_served": "",
    "reserve_endpoints": "",  # TrueMemory's client goes by the pid file: it must be taken back
    "open_proved": "except BaseException: raise ImportError('as onnxruntime does while it is imported')",
}
STOP_IN = """
import signal, sys
import samevec.cli.serve as serving
step = getattr(serving, sys.argv[1])
def stopped(*arguments, **options):
    done = step(*arguments, **options)
    try: signal.raise_signal(signal.SIGTERM)
    {after}
    return done
setattr(serving, sys.argv.pop(1), stopped)
from samevec.cli.main import main
main()
"""


@pytest.mark.model
@pytest.mark.server
@pytest.mark.parametrize("step", STOPPED_IN)
def test_a_signal_before_the_server_is_ready_leaves_no_files(exported: ToyHome, tmp_path: Path, step: str) -> None:
    code = STOP_IN.format(after=STOPPED_IN[step] or "finally: pass")
    options = [step, "serve", "--lock", "toy", "--home", str(exported.path), "--port", "0", "--truememory"]
    done = subprocess.run(
        [sys.executable, "-c", code, *options],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == "samevec: stopped before it was ready"
    assert "Traceback" not in done.stderr
    assert [file.name for file in (tmp_path / ".truememory").iterdir()] == ["model_server.lock"]


@pytest.mark.model
def test_demo(tmp_path: Path) -> None:
    done = samevec("demo", "--keep", tmp_path / "kept", folder=tmp_path)
    assert done.code == 0, done.err
    assert "mean nothing" in done.out
    for name in TOYS:
        assert f"{name} (cpu): parity passed" in done.out
        assert artifact_of(tmp_path / "kept", name).receipts_path.is_dir()
    assert re.search(r"^grouping +cases", done.out, re.MULTILINE)
    assert done.out.count("\nPOST /v1/") == 3
    assert done.out.count("\n  -> {") == 3
    assert '"... 384 numbers"' in done.out
    assert '"... 64 numbers"' in done.out
    assert "\nstopped\n" in done.out
    assert "Next: samevec export" in done.out


def test_the_module_runs_from_anywhere(tmp_path: Path) -> None:
    done = samevec("lock", "check", "toy", folder=tmp_path)
    assert done.code == 0
    assert (ROOT / "samevec" / "toy.lock").is_file()
