"""The build hook: every wheel, and every editable install, carries the native library."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

sys.path.insert(0, str(Path(__file__).resolve().parent / "native"))
import build as native

__all__ = ["NativeLibraryHook"]

_FOLDER = "samevec/native"


class NativeLibraryHook(BuildHookInterface[Any]):
    """Compiles the library for this machine, or for a target that ``SAMEVEC_BUILD_TARGET`` names.

    A named target is built by zig, so that the wheel runs on older systems and other processors than this one.
    """

    def dependencies(self) -> list[str]:
        """Return zig where it is needed, so that a machine without a C++ compiler needs no step by hand."""
        try:
            native.find_compiler(_target(), zig_only=_named_target() is not None)
        except native.CompilerMissingError:
            return [native.ZIG_REQUIREMENT]
        except native.BuildError:
            pass  # said by initialize, where it ends the build or is a warning
        return []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library and put it into the wheel, or into the checkout for an editable install."""
        try:
            self._add_library(version, build_data)
        except native.UnsupportedPlatformError as error:
            self.app.display_warning(f"{error}; use --profile portable there")
        except native.BuildError as error:
            self.app.abort(f"the native library could not be built: {error}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the scratch folder."""
        if hasattr(self, "_scratch"):
            self._scratch.cleanup()

    def _add_library(self, version: str, build_data: dict[str, Any]) -> None:
        target = _target()
        compiler = native.find_compiler(target, zig_only=_named_target() is not None)
        if version == "editable":
            library = Path(self.root, _FOLDER, target.library_name)
        else:
            self._scratch = tempfile.TemporaryDirectory(prefix="samevec-")
            library = Path(self._scratch.name, target.library_name)
            build_data["force_include"][str(library)] = f"{_FOLDER}/{library.name}"
        native.build(target, library, compiler=compiler)
        self.app.display_info(f"{library.name}: {target}, {library.stat().st_size:,} bytes, by {compiler.version}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform_tag(target)}"


def _named_target() -> str | None:
    return os.environ.get("SAMEVEC_BUILD_TARGET") or None


def _target() -> native.Target:
    name = _named_target()
    if name is None:
        return native.host_target()
    if name not in native.TARGETS:
        raise native.BuildError(f"SAMEVEC_BUILD_TARGET={name}: there is {' and '.join(native.TARGETS)}")
    return native.TARGETS[name]


def _platform_tag(target: native.Target) -> str:
    # What zig builds runs on every Linux of its age; what the system's compiler builds is for this machine.
    if _named_target() is not None:
        return f"{native.MANYLINUX}_{target.machine}"
    return f"linux_{target.machine}" if target.system == "linux" else next(iter(platform_tags()))
