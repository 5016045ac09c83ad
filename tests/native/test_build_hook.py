"""The build hook, under a stand-in for hatchling, which is there only while a wheel is built."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any, Generic, TypeVar

import build
import pytest

ROOT = Path(__file__).resolve().parents[2]
Config = TypeVar("Config")


class App:
    """What the hook says, and how it ends a build."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def display_info(self, message: str) -> None:
        pass

    def display_warning(self, message: str) -> None:
        self.warnings.append(message)

    def abort(self, message: str) -> None:
        raise SystemExit(message)


class StandIn(Generic[Config]):
    """hatchling's BuildHookInterface, as far as the hook uses it."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.app = App()


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    name = "hatchling.builders.hooks.plugin.interface"
    for package in [name[:end] for end, letter in enumerate(name) if letter == "."]:
        monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    module = types.ModuleType(name)
    module.BuildHookInterface = StandIn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "hatch_build", raising=False)
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.delenv("SAMEVEC_BUILD_TARGET", raising=False)
    yield importlib.import_module("hatch_build").NativeLibraryHook(tmp_path)
    sys.modules.pop("hatch_build", None)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """Targets and files of every build; nothing is compiled."""
    calls: list[tuple[str, Path]] = []

    def pretend(target: build.Target, output: Path, *, compiler: build.Compiler) -> None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(b"library")
        calls.append((str(target), output))

    monkeypatch.setattr(build, "build", pretend)
    monkeypatch.setattr(build, "host_target", lambda: build.TARGETS["x86_64-linux"])
    monkeypatch.setattr(build, "find_compiler", lambda *_, **__: build.Compiler(("c++",), "gcc", "c++ 12"))
    return calls


def no_compiler(*_: object, **__: object) -> None:
    raise build.CompilerMissingError("none here")


def build_data() -> dict[str, Any]:
    return {"force_include": {}, "pure_python": True, "tag": None}


def test_zig_is_asked_for_where_there_is_no_compiler(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_compiler", no_compiler)
    assert hook.dependencies() == [build.ZIG_REQUIREMENT]
    monkeypatch.setattr(build, "find_compiler", lambda *_, **__: build.Compiler(("c++",), "gcc", "c++ 12"))
    assert hook.dependencies() == []


def test_a_wheel_carries_the_library_and_this_platform(hook: Any, compiled: list[tuple[str, Path]]) -> None:
    data = build_data()
    hook.initialize("standard", data)
    ((target, library),) = compiled
    assert target == "x86_64-linux"
    assert data == {
        "force_include": {str(library): "samevec/native/libsamevec.so"},
        "pure_python": False,
        "tag": "py3-none-linux_x86_64",
    }
    assert library.is_file()
    hook.finalize("standard", data, "")
    assert not library.exists()


def test_a_named_target_gets_a_wheel_for_every_linux_of_its_age(
    hook: Any, compiled: list[tuple[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAMEVEC_BUILD_TARGET", "aarch64-linux")
    data = build_data()
    hook.initialize("standard", data)
    assert [target for target, _ in compiled] == ["aarch64-linux"]
    assert data["tag"] == "py3-none-manylinux_2_28_aarch64"
    hook.finalize("standard", data, "")


def test_an_editable_install_gets_it_in_the_checkout(hook: Any, compiled: list[tuple[str, Path]]) -> None:
    data = build_data()
    hook.initialize("editable", data)
    assert [library for _, library in compiled] == [Path(hook.root, "samevec", "native", "libsamevec.so")]
    assert data["force_include"] == {}


def test_a_supported_platform_is_never_left_without(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_compiler", no_compiler)
    with pytest.raises(SystemExit, match="the native library could not be built: none here"):
        hook.initialize("standard", build_data())
    monkeypatch.setenv("SAMEVEC_BUILD_TARGET", "sparc-linux")
    with pytest.raises(SystemExit, match="SAMEVEC_BUILD_TARGET=sparc-linux: there is x86_64-linux and aarch64-linux"):
        hook.initialize("standard", build_data())


def test_an_unsupported_platform_gets_a_warning_and_a_plain_wheel(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported() -> None:
        raise build.UnsupportedPlatformError("not for win32 on AMD64")

    monkeypatch.setattr(build, "host_target", unsupported)
    data = build_data()
    assert hook.dependencies() == []
    hook.initialize("standard", data)
    assert data == build_data()
    assert hook.app.warnings == ["not for win32 on AMD64; use --profile portable there"]
