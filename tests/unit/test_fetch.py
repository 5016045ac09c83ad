"""Snapshots: fetched by revision from a hub, built, or taken from a folder; verified before anything is loaded."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _http
from huggingface_hub.utils._http import reset_sessions
from stub_hub import REPO, REVISION, SMALL_FILES, StubHub, entry_for, snapshot_files

from samevec.errors import DigestMismatchError, SourceError, SourceMissingError
from samevec.export.source import snapshot as fetch
from samevec.export.source.hub import Hub
from samevec.export.source.snapshot import locate_snapshot, verify_snapshot
from samevec.lock import LockedFile, dump_lock, load_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from samevec.lock import LockedModel

FROM = "pass a snapshot folder with --from DIR"
WHAT = f"{REPO} at {REVISION[:12]}"


class Recorder:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, float | None, str]] = []
        self.done: dict[str, float] = {}
        self.notes: list[str] = []

    @contextmanager
    def step(self, label: str, *, total: float | None = None, unit: str = "") -> Iterator[Callable[[float], None]]:
        self.steps.append((label, total, unit))
        self.done[label] = 0

        def advance(amount: float) -> None:
            self.done[label] += amount

        yield advance

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.fixture(autouse=True)
def direct_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine's environment says of the hub and of proxies, ask the stub."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    # It waits between its retries, 23 s in all.
    monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda s: None, time=time.time))
    reset_sessions()


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def read(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if not p.is_dir()}


def refusal(entry: LockedModel, home: Path, stub: StubHub) -> str:
    """The message with which a fetch fails; nothing may then count as finished."""
    with pytest.raises(SourceError) as caught:
        locate_snapshot(entry, home=home, hub=Hub(stub.endpoint))
    assert not (home / "snapshots" / entry.name / entry.revision).exists()
    return str(caught.value)


def test_a_download_holds_the_pinned_files_and_nothing_else(tmp_path: Path) -> None:
    files = snapshot_files()
    entry, progress = entry_for(files), Recorder()
    with StubHub({**files, "README.md": b"# card", "pytorch_model.bin": b"pickle"}) as stub:
        path = locate_snapshot(entry, home=tmp_path, progress=progress, hub=Hub(stub.endpoint))
        assert path == tmp_path / "snapshots" / "tiny" / REVISION
        assert read(path) == files
        assert progress.steps == [(f"download {f}", len(files[f]), "bytes") for f in files]
        assert progress.done["download model.safetensors"] == len(files["model.safetensors"])
        assert {where for _, where, _ in stub.requests} == set(files)
        verify_snapshot(path, entry)
        n_requests = len(stub.requests)
        assert locate_snapshot(entry, home=tmp_path, hub=Hub(stub.endpoint)) == path
        assert len(stub.requests) == n_requests, "an intact snapshot needs no hub"
    assert sorted(p.name for p in path.parent.iterdir()) == [REVISION, f"{REVISION}.lock"]


def test_a_damaged_snapshot_is_mended_by_fetching_what_is_wrong(tmp_path: Path) -> None:
    files = snapshot_files()
    entry, progress = entry_for(files), Recorder()
    with StubHub(files) as stub:
        path = locate_snapshot(entry, home=tmp_path, hub=Hub(stub.endpoint))
        (path / "config.json").write_bytes(b"x" * len(files["config.json"]))
        stub.requests.clear()
        assert locate_snapshot(entry, home=tmp_path, progress=progress, hub=Hub(stub.endpoint)) == path
        assert {where for _, where, _ in stub.requests} == {"config.json"}
    assert read(path) == files
    assert progress.notes == [f"tiny: {path} is damaged; fetching what is wrong again"]


def test_wrong_bytes_are_refused_and_fetched_again_next_time(tmp_path: Path) -> None:
    files = snapshot_files()
    entry = entry_for(files)
    wrong = b"W" + files["model.safetensors"][1:]
    with StubHub({**files, "model.safetensors": wrong}) as stub:
        with pytest.raises(DigestMismatchError) as caught:
            locate_snapshot(entry, home=tmp_path, hub=Hub(stub.endpoint))
        assert (caught.value.kind, caught.value.expected) == ("sha256", entry.files[0].sha256)
        assert not (tmp_path / "snapshots" / "tiny" / REVISION).exists()
        stub.files["model.safetensors"] = files["model.safetensors"]
        assert read(locate_snapshot(entry, home=tmp_path, hub=Hub(stub.endpoint))) == files


def test_another_size_is_refused(tmp_path: Path) -> None:
    files = snapshot_files()
    with StubHub({**files, "config.json": b"{}"}) as stub:
        message = refusal(entry_for(files), tmp_path, stub)
    assert message == (
        f"{tmp_path}/snapshots/tiny/{REVISION}.partial/config.json: size is 2, the lock pins 23;"
        " the file is truncated, changed or of another revision: fetch it again"
    )


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_broken_connection_is_said_and_resumed(tmp_path: Path) -> None:
    files = snapshot_files(bytes(24_000_000))
    entry = entry_for(files)
    with StubHub(files, cut_after_bytes={"model.safetensors": 12_000_000}) as stub:
        message = refusal(entry, tmp_path, stub)
        assert message == f"{WHAT}: model.safetensors: the connection broke off; run it again: it goes on where it was"
        stub.cut_after_bytes.clear()
        assert read(locate_snapshot(entry, home=tmp_path, hub=Hub(stub.endpoint))) == files
        first, second = stub.asked("GET", "model.safetensors")
    assert first is None
    assert second is not None
    assert int(second.removeprefix("bytes=").rstrip("-")) >= 10_000_000


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        ((404, "RevisionNotFound"), f"the hub has no such revision; check the revision or {FROM}"),
        ((404, "EntryNotFound"), f"the hub has no such file at this revision; check the revision or {FROM}"),
        ((404, "RepoNotFound"), f"not on the hub, or private; log in with `hf auth login` or {FROM}"),
        ((403, "GatedRepo"), f"gated; accept its terms on the hub and log in with `hf auth login` or {FROM}"),
        ((500, ""), f"the hub answered 500; run it again later or {FROM}"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence_with_the_way_out(
    tmp_path: Path, error: tuple[int, str], sentence: str
) -> None:
    files = snapshot_files()
    with StubHub(files, error=error) as stub:
        assert refusal(entry_for(files), tmp_path, stub) == f"{WHAT}: model.safetensors: {sentence}"


def test_a_hub_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    entry = entry_for(snapshot_files())
    with StubHub({}) as stub:
        pass
    assert refusal(entry, tmp_path, stub) == (
        f"{WHAT}: model.safetensors: the hub cannot be reached; check the network or {FROM}"
    )


def test_offline_mode_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    reset_sessions()
    files = snapshot_files()
    with StubHub(files) as stub:
        message = refusal(entry_for(files), tmp_path, stub)
    reset_sessions()
    assert message == f"{WHAT}: model.safetensors: HF_HUB_OFFLINE forbids asking the hub; unset it or {FROM}"


@pytest.mark.parametrize(
    ("raised", "sentence"),
    [
        (TimeoutError("x"), f"the hub did not answer in time; run it again or {FROM}"),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "the disk is full; free space or choose another SAMEVEC_HOME, then run it again: it goes on where it was",
        ),
        (OSError(errno.EACCES, "Permission denied", "/x"), "Permission denied (/x)"),
        (OSError("Consistency check failed: ..."), "the file arrived truncated; run it again: it goes on where it was"),
        (RuntimeError("xet says no\nmore"), f"the download failed (RuntimeError: xet says no); run it again or {FROM}"),
    ],
)
def test_what_breaks_a_download_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: Exception, sentence: str
) -> None:
    def broken(*args: object, **kwargs: object) -> str:
        raise raised

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", broken)
    with pytest.raises(SourceError) as caught:
        locate_snapshot(entry_for(snapshot_files()), home=tmp_path)
    assert str(caught.value) == f"{WHAT}: model.safetensors: {sentence}"
    assert caught.value.__cause__ is raised


def test_a_full_disk_is_foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1_000))  # type: ignore[attr-defined]
    files = snapshot_files(bytes(9_000_000))
    with StubHub(files) as stub:
        message = refusal(entry_for(files), tmp_path, stub)
        assert stub.requests == []
    assert message == (
        f"tiny: needs 9 MB on the disk of {tmp_path}/snapshots/tiny, of which 0 MB are free;"
        " free space or choose another SAMEVEC_HOME"
    )


def test_a_home_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    with pytest.raises(SourceError) as caught:
        locate_snapshot(entry_for(snapshot_files()), home=tmp_path / "home")
    assert str(caught.value) == (
        f"tiny: {tmp_path}/home/snapshots/tiny: Not a directory; free space or check permissions"
    )


def test_a_killed_download_leaves_nothing_that_counts(tmp_path: Path) -> None:
    files = snapshot_files(os.urandom(24_000_000))
    entry = entry_for(files)
    script = (
        "import sys; from pathlib import Path; from samevec.export.source.snapshot import locate_snapshot;"
        "from samevec.lock import load_lock; locate_snapshot(load_lock(sys.argv[1]).models[0], home=Path(sys.argv[2]))"
    )
    lock = tmp_path / "tiny.lock"
    lock.write_text(lock_text(entry))
    with StubHub(files, stall_after_bytes={"model.safetensors": 16_000_000}) as stub:
        env = {
            **os.environ,
            "HF_ENDPOINT": stub.endpoint,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "HF_HUB_OFFLINE": "0",
        }
        process = subprocess.Popen([sys.executable, "-c", script, str(lock), str(tmp_path)], env=env)
        folder = tmp_path / "snapshots" / "tiny"
        deadline = time.monotonic() + 60
        while not any(p.stat().st_size for p in folder.rglob("*.incomplete")) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (folder / REVISION).exists()
        stub.resume.set()
        stub.stall_after_bytes.clear()
        assert read(locate_snapshot(entry, home=tmp_path, hub=Hub(stub.endpoint))) == files
        assert stub.asked("GET", "model.safetensors")[-1] is not None, "it went on from what was there"


def lock_text(entry: LockedModel) -> str:
    return dump_lock(replace(load_lock(), models=(entry,)))


def test_two_fetches_at_once_share_one_download(tmp_path: Path) -> None:
    files = snapshot_files()
    entry = entry_for(files)
    with StubHub(files) as stub, ThreadPoolExecutor(2) as pool:
        paths = set(pool.map(lambda _: locate_snapshot(entry, home=tmp_path, hub=Hub(stub.endpoint)), range(2)))
        assert len(stub.asked("GET", "model.safetensors")) == 1
    assert [read(path) for path in paths] == [files]


@pytest.mark.parametrize("inside", ["tiny", "tiny-embedder", f"models--Owner--tiny-embedder/snapshots/{REVISION}", "."])
def test_a_folder_is_found_by_name_source_or_itself(tmp_path: Path, inside: str) -> None:
    files = snapshot_files()
    folder = write(tmp_path / "from" / inside, files)
    assert locate_snapshot(entry_for(files), home=tmp_path / "home", source_dir=tmp_path / "from") == folder
    assert not (tmp_path / "home").exists(), "a complete folder needs nothing of ours"


def test_a_folder_that_is_none_names_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        locate_snapshot(entry_for(snapshot_files()), home=tmp_path, source_dir=tmp_path)
    assert str(caught.value) == (
        f"tiny: no snapshot folder in {tmp_path}; looked for {tmp_path}/tiny, {tmp_path}/tiny-embedder,"
        f" {tmp_path}/models--Owner--tiny-embedder/snapshots/{REVISION}, {tmp_path}/config.json"
    )


def test_loaders_see_only_what_is_pinned(tmp_path: Path) -> None:
    files = snapshot_files()
    extra = {"README.md": b"#", "special_tokens_map.json": b"{}", "pytorch_model.bin": b"pickle"}
    source = write(tmp_path / "from", {**files, **extra})
    entry = entry_for(files)
    view = locate_snapshot(entry, home=tmp_path / "home", source_dir=source)
    assert read(view) == files
    assert all(p.is_symlink() for p in view.rglob("*.json"))
    verify_snapshot(view, entry)
    inode = view.stat().st_ino
    assert locate_snapshot(entry, home=tmp_path / "home", source_dir=source) == view
    assert view.stat().st_ino == inode, "an intact view is left alone: another process may be reading it"


def test_the_hub_caches_own_layout_of_symlinks_is_read(tmp_path: Path) -> None:
    files = snapshot_files()
    entry = entry_for(files)
    for i, (path, content) in enumerate(files.items()):
        write(tmp_path / "blobs", {str(i): content})
        link = tmp_path / "snapshots" / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(tmp_path / "blobs" / str(i), link.parent))
    located = locate_snapshot(entry, home=tmp_path / "home", source_dir=tmp_path / "snapshots")
    assert located == tmp_path / "snapshots"
    verify_snapshot(located, entry)
    (tmp_path / "blobs" / "0").unlink()
    with pytest.raises(SourceMissingError):
        verify_snapshot(located, entry)


def test_a_missing_file_and_pickled_weights_are_said(tmp_path: Path) -> None:
    files = snapshot_files()
    source = write(tmp_path, {path: content for path, content in files.items() if path != "model.safetensors"})
    with pytest.raises(SourceMissingError) as caught:
        locate_snapshot(entry_for(files), home=tmp_path / "home", source_dir=source)
    assert str(caught.value) == (
        f"{tmp_path}/model.safetensors: not found;"
        " the lock pins it; give a complete snapshot folder of the pinned revision"
    )
    write(source, {"pytorch_model.bin": b"pickle"})
    with pytest.raises(SourceMissingError) as caught:
        locate_snapshot(entry_for(files), home=tmp_path / "home", source_dir=source)
    assert str(caught.value) == (
        f"{tmp_path}/model.safetensors: not found;"
        " pytorch_model.bin is there, but only safetensors weights are ever loaded"
    )


def test_code_in_a_folder_is_refused(tmp_path: Path) -> None:
    files = snapshot_files()
    source = write(tmp_path, {**files, "modeling_x.py": b"print('hi')"})
    message = f"tiny: {tmp_path} holds code (modeling_x.py); samevec runs none from a snapshot: remove it"
    with pytest.raises(SourceError) as caught:
        locate_snapshot(entry_for(files), home=tmp_path / "home", source_dir=source)
    assert str(caught.value) == message
    with pytest.raises(SourceError) as caught:
        verify_snapshot(source, entry_for(files))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("config.json", b'{"auto_map": {}}', "config.json has auto_map: it asks for remote code, which is never run"),
        ("modules.json", b'[{"type": "os.x"}]', "modules.json names 'os.x': only sentence_transformers' own modules"),
        ("modules.json", b"[3]", "modules.json names None: only sentence_transformers' own modules"),
    ],
)
def test_configurations_that_ask_for_code_are_refused(tmp_path: Path, path: str, content: bytes, message: str) -> None:
    files = {**snapshot_files(), path: content}
    with pytest.raises(SourceError) as caught:
        verify_snapshot(write(tmp_path, files), entry_for(files))
    assert str(caught.value) == f"tiny: {message}"


@pytest.mark.parametrize("path", ["pytorch_model.bin", "model.pt", "modeling.py"])
def test_an_entry_that_pins_pickles_or_code_is_refused(tmp_path: Path, path: str) -> None:
    entry = entry_for({path: b"x"})
    message = f"tiny: {path}: only safetensors weights are loaded, never pickles or code"
    with pytest.raises(SourceError) as caught:
        locate_snapshot(entry, home=tmp_path)
    assert str(caught.value) == message
    with pytest.raises(SourceError) as caught:
        verify_snapshot(tmp_path, entry)
    assert str(caught.value) == message


def test_verification_hashes_every_byte_once_and_reports_it(tmp_path: Path) -> None:
    files, progress = snapshot_files(), Recorder()
    entry = entry_for(files)
    verify_snapshot(write(tmp_path, files), entry, progress)
    assert progress.steps == [("verify tiny", entry.total_bytes, "bytes")]
    assert progress.done == {"verify tiny": entry.total_bytes}
    assert progress.notes == []


def test_every_mismatch_is_reported_in_order_and_sizes_come_first(tmp_path: Path) -> None:
    files, progress = snapshot_files(), Recorder()
    entry = entry_for(files)
    folder = write(tmp_path, files)
    for path in ("config.json", "modules.json"):
        (folder / path).write_bytes(b"x" * len(files[path]))
    with pytest.raises(DigestMismatchError) as caught:
        verify_snapshot(folder, entry, progress)
    assert caught.value.path == folder / "config.json"
    assert [note.split(":")[0] for note in progress.notes] == [str(folder / p) for p in ("config.json", "modules.json")]
    (folder / "model.safetensors").write_bytes(files["model.safetensors"][:-1])
    progress = Recorder()
    with pytest.raises(DigestMismatchError) as caught:
        verify_snapshot(folder, entry, progress)
    assert str(caught.value) == (
        f"{folder}/model.safetensors: size is 6999, the lock pins 7000;"
        " the file is truncated, changed or of another revision: fetch it again"
    )
    assert progress.steps == [], "a wrong size is found without hashing"


def test_a_local_source_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        locate_snapshot(entry_for(SMALL_FILES, source="local:tiny"), home=tmp_path)
    assert str(caught.value) == "tiny: its source is a folder; pass that folder with --from DIR"


def test_the_toy_pair_is_built_and_rebuilt(tmp_path: Path) -> None:
    entry = load_lock("toy").models[0]
    path = locate_snapshot(entry, home=tmp_path)
    verify_snapshot(path, entry)
    assert path == tmp_path / "snapshots" / entry.name / entry.revision
    inode = path.stat().st_ino
    assert locate_snapshot(entry, home=tmp_path) == path
    assert path.stat().st_ino == inode
    (path / "config.json").write_bytes(b"{}")
    verify_snapshot(locate_snapshot(entry, home=tmp_path), entry)
    assert sorted(p.name for p in path.parent.iterdir()) == [entry.revision, f"{entry.revision}.lock"]


def test_a_toy_that_differs_from_its_lock_is_not_published(tmp_path: Path) -> None:
    entry = load_lock("toy").models[0]
    files = tuple(LockedFile(path=f.path, size_bytes=f.size_bytes, sha256="0" * 64) for f in entry.files)
    with pytest.raises(SourceError, match=r"^toy-qwen3-embedder: what samevec built here is not what its lock pins: "):
        locate_snapshot(replace(entry, files=files), home=tmp_path)
    assert [p.name for p in (tmp_path / "snapshots" / entry.name).iterdir()] == [f"{entry.revision}.lock"]
