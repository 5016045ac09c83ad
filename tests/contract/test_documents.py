"""What the documents say about the code is what the code says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pages
import pytest

from samevec.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = dict(pages.commands())
MARKDOWN = sorted(
    ROOT / line
    for line in subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.splitlines()
) or sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md")])

# What belongs to one machine, or says where packages come from.
_MACHINE_PATHS = re.compile(r"(?<![\w.~$}/-])/(?:work|root|tmp|opt|farm|home)/[\w.-]+")
_REGISTRIES = re.compile(r"--(?:extra-)?index-url|--find-links|pypi\.org/simple|/simple/|files\.pythonhosted\.org")
_SAMEVEC_LINE = re.compile(r"^\s*(?:[A-Z_]+=\S+ )*(?:\$ )?samevec ((?:[a-z]+ ?)+)(.*)$")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", sorted(pages.PAGES))
def test_what_a_page_repeats_is_what_the_code_says(page: str) -> None:
    assert (ROOT / page).read_text(encoding="utf-8") == pages.rendered(page), (
        "out of date; write it again with: python tests/contract/pages.py"
    )


def test_the_page_of_commands_lists_every_command_and_flag() -> None:
    text = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    for path, command in COMMANDS.items():
        _, found, rest = text.partition(f"## `{' '.join(path)}`\n")
        assert found, path
        section = rest.partition("\n## ")[0]
        for flag in pages.flags(command):
            for name in flag.opts:
                assert f"`{name}" in section, (path, name)
            if flag.envvar:
                assert f"`{flag.envvar}`" in section, (path, flag.envvar)


def test_every_flag_has_its_environment_variable() -> None:
    for path, command in COMMANDS.items():
        for flag in pages.flags(command):
            expected = "SAMEVEC_" + flag.opts[0].lstrip("-").replace("-", "_").upper()
            assert flag.envvar == expected, (path, flag.opts)


def documented_commands(path: Path) -> list[tuple[str, str]]:
    """Lines of shell blocks that call samevec: its words, and what follows them."""
    found = []
    for kind, block in _FENCE.findall(path.read_text(encoding="utf-8")):
        if kind not in ("sh", "bash", "console"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            match = _SAMEVEC_LINE.match(line.partition(" #")[0])
            if match:
                found.append((match[1].strip(), match[2]))
    return found


def command_problem(words: str, rest: str) -> str:
    """Why a command line that a document shows would be refused; empty where it would not."""
    path = next((p for p in COMMANDS if words.split()[: len(p) - 1] == list(p[1:])), None)
    if path is None:
        return "there is no such command"
    known = {name for flag in pages.flags(COMMANDS[path]) for name in flag.opts} | {"--help", "-h"}
    unknown = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", rest)) - known
    return f"unknown flags {sorted(unknown)}" if unknown else ""


def test_documented_commands_exist_with_their_flags() -> None:
    offenders = [
        f"{page.name}: samevec {words}: {problem}"
        for page in MARKDOWN
        for words, rest in documented_commands(page)
        if (problem := command_problem(words, rest))
    ]
    assert offenders == []


def test_the_readme_shows_the_four_uses_and_both_set_up_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"\nmake {target}" in text
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    shown = {words.split()[0] for words, _ in documented_commands(ROOT / "README.md")}
    assert {"export", "parity", "serve"} <= shown <= set(cli.commands)


def test_make_targets_that_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in MARKDOWN:
        named = set(re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert named <= targets, (page.name, named - targets)


def found_in_documents(pattern: re.Pattern[str]) -> Iterator[tuple[Path, str]]:
    for page in MARKDOWN:
        for match in pattern.finditer(page.read_text(encoding="utf-8")):
            yield page, match[1] if match.re.groups else match[0]


def test_no_document_holds_a_machine_path_or_a_registry() -> None:
    assert [*found_in_documents(_MACHINE_PATHS), *found_in_documents(_REGISTRIES)] == []


def test_relative_links_lead_somewhere() -> None:
    links = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
    dead = [(page.name, target) for page, target in found_in_documents(links) if not (page.parent / target).exists()]
    assert dead == []


def names_a_test(reference: str) -> bool:
    file, _, name = reference.partition("::")
    path = ROOT / file
    return path.is_file() and (not name or f"\ndef {name}(" in path.read_text(encoding="utf-8"))


def test_tests_that_documents_name_exist() -> None:
    named = found_in_documents(re.compile(r"`(tests/[\w/]+\.py(?:::\w+)?)`"))
    assert [(page.name, reference) for page, reference in named if not names_a_test(reference)] == []


def test_constraints_are_normalised_sorted_and_without_addresses() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    pattern = re.compile(r"([a-z0-9]+(?:-[a-z0-9]+)*)==[\w.+]+")
    names = []
    for pin in pins:
        match = pattern.fullmatch(pin)
        assert match is not None, pin
        names.append(match[1])
    assert names == sorted(names)
    assert not re.search(r"://|@|^-", "\n".join(pins), re.MULTILINE)


def test_every_module_that_a_document_names_exists() -> None:
    absent = [
        (page.name, name)
        for page in MARKDOWN
        for name in re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.py)`", page.read_text(encoding="utf-8"))
        if not (ROOT / name).exists() and not (ROOT / "samevec" / name).exists()
    ]
    assert absent == []


def test_the_architecture_is_a_page_and_the_readme_is_short() -> None:
    lines = {name: (ROOT / name).read_text(encoding="utf-8").count("\n") for name in ("ARCHITECTURE.md", "README.md")}
    assert max(lines.values()) <= 120, lines
