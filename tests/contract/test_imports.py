"""Which module may import which, read from the sources; and what an import really loads, asked in a fresh process."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PACKAGE = Path(__file__).resolve().parents[2] / "samevec"
ROOMS = ("export", "parity", "runtime", "server")
HEAVY = ("torch", "transformers", "optimum", "sentence_transformers", "onnx")
MAY_IMPORT_TORCH = ("samevec.export", "samevec.parity.reference.pytorch", "samevec.parity.reference.torch_session")
#: What each room may import of the others; a prefix stands for everything under it.
ALLOWED = {
    "runtime": (),
    "parity": ("samevec.runtime",),
    "server": ("samevec.runtime", "samevec.parity.receipt", "samevec.parity.probe"),
    "export": ("samevec.runtime", "samevec.parity"),
}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def under(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def imported_names(path: Path) -> Iterator[str]:
    """Every module a source names: import statements anywhere, for types too, and import_module with a fixed name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            # `from samevec.parity import receipt` names a module too
            yield from (
                f"{node.module}.{alias.name}" for alias in node.names if f"{node.module}.{alias.name}" in SOURCES
            )
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__", "find_spec"):
                yield str(node.args[0].value)


def test_the_sources_are_found() -> None:
    assert {"samevec", "samevec.runtime.engine", "samevec.parity.receipt", "samevec.export"} < set(SOURCES)
    assert set(ALLOWED) == set(ROOMS)


def test_imports_between_rooms_point_one_way() -> None:
    offenders = []
    for module, path in SOURCES.items():
        room = module.split(".")[1] if "." in module else ""
        if room not in ROOMS:
            continue
        others = tuple(f"samevec.{other}" for other in ROOMS if other != room)
        # A package itself holds nothing but a docstring: naming it is naming what is taken from it.
        offenders += [
            f"{module} imports {name}"
            for name in imported_names(path)
            if under(name, others) and not under(name, ALLOWED[room]) and name != "samevec.parity"
        ]
    assert offenders == []


def importers(modules: Iterable[str], forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{module} imports {name}"
        for module in modules
        for name in imported_names(SOURCES[module])
        if under(name, forbidden)
    ]


def test_only_export_and_the_torch_backend_name_torch() -> None:
    assert importers((module for module in SOURCES if not under(module, MAY_IMPORT_TORCH)), HEAVY) == []


def test_the_runtime_imports_no_web_framework_and_no_command_line() -> None:
    runtime = (module for module in SOURCES if module.startswith("samevec.runtime"))
    assert importers(runtime, ("fastapi", "starlette", "uvicorn", "click", "rich")) == []


def reads_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "os" and "environ" in {alias.name for alias in node.names}
    return isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb")


def test_settings_is_the_sole_reader_of_the_environment() -> None:
    offenders = [
        f"{module}: line {getattr(node, 'lineno', 0)}"
        for module, path in SOURCES.items()
        if module != "samevec.settings"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if reads_environment(node)
    ]
    assert offenders == []


def loaded_after(modules: list[str], watched: tuple[str, ...]) -> set[str]:
    """Import modules in a fresh interpreter and say which watched packages came with them."""
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print(*[name for name in {watched!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120, cwd=PACKAGE.parent
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


SERVING = [
    name
    for name in SOURCES
    if name in ("samevec", "samevec.load", "samevec.gate", "samevec.opening", "samevec.settings", "samevec.machine")
    or under(name, ("samevec.server", "samevec.runtime", "samevec.cli"))
]


def test_serving_loads_no_torch() -> None:
    assert loaded_after(SERVING, HEAVY) == set()


def test_everything_outside_the_torch_backend_loads_no_torch() -> None:
    modules = [name for name in SOURCES if not under(name, MAY_IMPORT_TORCH) and not name.endswith("__main__")]
    assert loaded_after(modules, HEAVY) == set()


def test_import_samevec_is_light() -> None:
    watched = (*HEAVY, "onnxruntime", "fastapi", "uvicorn", "click", "huggingface_hub", "samevec.server")
    assert loaded_after(["samevec"], watched) == set()
