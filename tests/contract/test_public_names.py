"""Public names: listed, sorted, and really there."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import samevec

PACKAGE = Path(__file__).resolve().parents[2] / "samevec"
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.name != "__main__.py"
)


def source(module: str) -> ast.Module:
    path = PACKAGE.parent / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def sort_key(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest, as ruff's RUF022 sorts them."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)


def all_of(tree: ast.Module) -> list[str] | None:
    """The names in a module's __all__, or None if it has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return list(ast.literal_eval(node.value))
    return None


def list_problems(module: str) -> list[str]:
    tree = source(module)
    names = all_of(tree)
    if names is None:
        # Only a private module, or a package or module that defines nothing of its own, may leave it out.
        defined = any(isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign) for node in tree.body)
        private = module.rpartition(".")[2].startswith("_")
        return [f"{module} has no __all__"] if defined and not private else []
    loaded = importlib.import_module(module)
    problems = [f"{module} has no {name}" for name in names if not hasattr(loaded, name)]
    if names != sorted(set(names), key=sort_key):
        problems.append(f"{module}: __all__ is not sorted, or names something twice")
    return problems


def test_every_list_of_names_is_sorted_and_importable() -> None:
    assert [problem for module in MODULES for problem in list_problems(module)] == []


def test_modules_take_from_each_other_only_what_is_listed() -> None:
    listed = {module: all_of(source(module)) for module in MODULES}
    offenders = []
    for module in MODULES:
        for node in ast.walk(source(module)):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("samevec"):
                continue
            # A module with a name of its own for private use, such as _version, may do without a list.
            allowed = listed[str(node.module)]
            names = {alias.name for alias in node.names if f"{node.module}.{alias.name}" not in MODULES}
            if allowed is not None and not names <= set(allowed):
                offenders.append(f"{module} imports {sorted(names - set(allowed))} of {node.module}")
    assert offenders == []


def test_the_library_is_these_names() -> None:
    assert samevec.__all__ == ["Embedder", "Ranked", "Reranker", "__version__", "load_embedder", "load_reranker"]
    assert all(hasattr(samevec, name) for name in samevec.__all__)
