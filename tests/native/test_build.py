"""The build of the native library: which compiler, which files, and what is left when it fails."""

from __future__ import annotations

import ctypes
import platform
import sys
from typing import TYPE_CHECKING

import build
import pytest

if TYPE_CHECKING:
    from pathlib import Path

X86_LINUX = build.TARGETS["x86_64-linux"]
ARM_LINUX = build.TARGETS["aarch64-linux"]


@pytest.fixture
def on_x86_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(sys, "platform", "linux")


@pytest.fixture
def no_zig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_zig", lambda: None)


@pytest.fixture
def host_compiler() -> build.Compiler:
    try:
        return build.find_compiler(build.host_target())
    except build.CompilerMissingError as error:
        pytest.skip(str(error))


def program(folder: Path, name: str, says: str) -> Path:
    """A compiler that only tells its version."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


@pytest.mark.usefixtures("on_x86_linux", "no_zig")
def test_without_a_compiler_it_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(build.CompilerMissingError) as caught:
        build.find_compiler(X86_LINUX, environ={"PATH": str(tmp_path)})
    assert str(caught.value) == (
        "there is no C++ compiler for x86_64-linux: looked for c++, g++, clang++, ziglang;"
        f" install g++ or clang, or run: pip install {build.ZIG_REQUIREMENT}"
    )


@pytest.mark.usefixtures("on_x86_linux", "no_zig")
def test_a_named_compiler_that_does_not_run_is_not_passed_over(tmp_path: Path) -> None:
    program(tmp_path, "c++", "a compiler")
    environ = {"PATH": str(tmp_path), "CXX": "mycc -v"}
    with pytest.raises(build.CompilerMissingError, match="CXX=mycc -v does not run; unset it or name a C"):
        build.find_compiler(X86_LINUX, environ=environ)


@pytest.mark.usefixtures("on_x86_linux", "no_zig")
def test_the_named_compiler_comes_first_then_the_systems(tmp_path: Path) -> None:
    plain = program(tmp_path, "clang++", "Debian clang version 14.0.6")
    named = program(tmp_path, "mycc", "mycc (GCC) 13.1")
    found = build.find_compiler(X86_LINUX, environ={"PATH": str(tmp_path), "CXX": "mycc -pipe"})
    assert found == build.Compiler((str(named), "-pipe"), "gcc", "mycc (GCC) 13.1")
    found = build.find_compiler(X86_LINUX, environ={"PATH": str(tmp_path)})
    assert found == build.Compiler((str(plain),), "clang", "Debian clang version 14.0.6")


@pytest.mark.usefixtures("on_x86_linux", "no_zig")
def test_another_processor_needs_its_own_compiler(tmp_path: Path) -> None:
    program(tmp_path, "c++", "a compiler")
    environ = {"PATH": str(tmp_path), "CXX": "c++"}
    with pytest.raises(build.CompilerMissingError, match="looked for aarch64-linux-gnu-g"):
        build.find_compiler(ARM_LINUX, environ=environ)
    cross = program(tmp_path, "aarch64-linux-gnu-g++", "aarch64-linux-gnu-g++ 12")
    assert build.find_compiler(ARM_LINUX, environ=environ).command == (str(cross),)


@pytest.mark.usefixtures("on_x86_linux")
def test_zig_is_taken_where_nothing_else_is_there_or_nothing_else_will_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    zig = build.Compiler(("zig", "c++"), "zig", "zig 0")
    monkeypatch.setattr(build, "_zig", lambda: zig)
    assert build.find_compiler(X86_LINUX, environ={"PATH": str(tmp_path)}) is zig
    program(tmp_path, "c++", "a compiler")
    assert build.find_compiler(X86_LINUX, environ={"PATH": str(tmp_path)}).kind == "gcc"
    assert build.find_compiler(X86_LINUX, zig_only=True, environ={"PATH": str(tmp_path), "CXX": "c++"}) is zig


@pytest.mark.parametrize(
    ("target", "kernels"),
    [(X86_LINUX, {"kernels_avx2.cpp", "kernels_avx512.cpp"}), (ARM_LINUX, {"kernels_neon.cpp"})],
    ids=str,
)
def test_every_source_is_compiled_but_the_kernels_of_other_processors(target: build.Target, kernels: set[str]) -> None:
    files = build.source_files(target)
    every = {path.name for path in build.SOURCES.glob("*.cpp")}
    assert {path.name for path in files} == {name for name in every if not name.startswith("kernels_")} | kernels
    # An instruction in a file that runs before the processor was asked would end the process.
    assert {path.name for path, flags in files.items() if flags} == kernels - {"kernels_neon.cpp"}


def test_a_platform_without_code_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "ppc64le")
    with pytest.raises(build.UnsupportedPlatformError, match=r"x86-64 and ARM64, not for .* on ppc64le"):
        build.host_target()


def test_a_library_is_built_whole(tmp_path: Path, host_compiler: build.Compiler) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "seven.cpp").write_text('extern "C" __attribute__((visibility("default"))) int seven() { return 7; }')
    target = build.host_target()
    output = tmp_path / "made" / target.library_name
    build.build(target, output, compiler=host_compiler, sources=sources)
    assert ctypes.CDLL(str(output)).seven() == 7
    assert list(output.parent.iterdir()) == [output]


@pytest.mark.parametrize(
    ("source", "words"),
    [("int broken(", "broken.cpp"), ("int absent(); int here() { return absent(); }", "absent")],
    ids=["compile", "link"],
)
def test_a_failed_build_says_why_and_leaves_the_old_library(
    tmp_path: Path, host_compiler: build.Compiler, source: str, words: str
) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "broken.cpp").write_text(source)
    (sources / "fine.cpp").write_text("int fine;")
    output = tmp_path / "made" / "libsamevec.so"
    output.parent.mkdir()
    output.write_text("the old one")
    with pytest.raises(build.BuildError, match=f"the compiler ended with 1: (?s:.*){words}"):
        build.build(build.host_target(), output, compiler=host_compiler, sources=sources)
    assert output.read_text() == "the old one"
    assert list(output.parent.iterdir()) == [output]


@pytest.mark.usefixtures("no_zig")
def test_the_command_ends_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert build.main(["--output", str(tmp_path / "made.so")]) == 1
    assert capsys.readouterr().err.startswith("native/build.py: there is no C++ compiler for ")
    assert list(tmp_path.iterdir()) == []
