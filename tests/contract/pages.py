"""Renders what docs/ repeats from the code; ``python tests/contract/pages.py`` writes it there, a test compares."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from samevec import errors
from samevec.cli.main import cli
from samevec.errors import SamevecError, exit_code
from samevec.server.error_map import HTTP_STATUS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
_START, _END = "<!-- generated: {name} -->", "<!-- end -->"
_STATED_DEFAULT = re.compile(r"\s*\[default: (.*)\]$")


def commands(
    group: click.Group = cli, path: tuple[str, ...] = ("samevec",)
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that can be run, with the words that name it."""
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def flags(command: click.Command) -> list[click.Option]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Option)]


def _value(flag: click.Option, context: click.Context) -> str:
    """What follows the flag on a command line, as --help writes it."""
    if flag.is_flag:
        return ""
    if isinstance(flag.type, click.Choice):
        return " " + "|".join(str(choice) for choice in flag.type.choices)
    return " " + flag.make_metavar(context).removesuffix(" RANGE")


def _default(flag: click.Option) -> str:
    """The flag's default, or the one its help states because it is decided elsewhere."""
    stated = _STATED_DEFAULT.search(flag.help or "")
    if stated is not None:
        return f"`{stated[1]}`"
    if flag.is_flag or flag.multiple or not isinstance(flag.default, str | int | float):
        return ""
    return f"`{flag.default}`"


def _row(flag: click.Option, context: click.Context) -> str:
    cells = [
        f"`{' '.join(flag.opts)}{_value(flag, context)}`",
        _default(flag),
        f"`{flag.envvar}`" if flag.envvar else "",
        _STATED_DEFAULT.sub("", flag.help or ""),
    ]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def cli_page() -> str:
    """A section a command: its help, and a table of its flags."""
    sections = []
    for path, command in commands():
        context = click.Context(command, info_name=path[-1])
        arguments = [p.make_metavar(context) for p in command.params if isinstance(p, click.Argument)]
        words = inspect.cleandoc(command.help or "").replace("\b\n", "")
        lines = [f"## `{' '.join(path)}`", "", words]
        if arguments:
            lines += ["", f"Argument: `{' '.join(arguments)}`"]
        lines += ["", "| flag | default | environment | meaning |", "|---|---|---|---|"]
        lines += [_row(flag, context) for flag in flags(command)]
        sections.append("\n".join(lines))
    return "\n\n".join(sections)


def errors_tree() -> str:
    """The tree in the docstring of samevec.errors."""
    docstring = inspect.cleandoc(errors.__doc__ or "")
    _, _, rest = docstring.partition("::\n")
    tree = re.match(r"(?:\s*\n)*((?:  .*\n)+)", rest)
    assert tree is not None, "samevec.errors has no tree in its docstring"
    return "```text\n" + inspect.cleandoc(tree[1]) + "\n```"


def error_numbers() -> str:
    """Exit code and HTTP status of every class."""
    lines = ["| class | exit code | HTTP status | error type |", "|---|---|---|---|"]
    for cls, status in HTTP_STATUS.items():
        code = "" if cls.__module__ != SamevecError.__module__ else str(exit_code(_blank(cls)))
        lines.append(f"| `{cls.__name__}` | {code} | {status.status} | `{status.kind}` |")
    return "\n".join(lines)


def _blank(cls: type[SamevecError]) -> SamevecError:
    return cls.__new__(cls)


#: Page to the parts in it that are rendered.
PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "docs/cli.md": {"commands": cli_page},
    "docs/errors.md": {"tree": errors_tree, "numbers": error_numbers},
}


def rendered(page: str) -> str:
    """The page as it should be: its own words, with every rendered part replaced."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for name, render in PAGES[page].items():
        start = _START.format(name=name)
        before, found, rest = text.partition(start)
        assert found, f"{page} has no {start}"
        _, found, after = rest.partition(_END)
        assert found, f"{page} has no {_END} after {start}"
        text = f"{before}{start}\n\n{render()}\n\n{_END}{after}"
    return text


def main() -> None:
    for page in PAGES:
        (ROOT / page).write_text(rendered(page), encoding="utf-8")
        sys.stdout.write(f"wrote {page}\n")


if __name__ == "__main__":
    main()
