"""Profiles: everything that may move a bit is in the record receipts bind."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from samevec.errors import ConfigError
from samevec.runtime.profiles import PROFILES, Profile, get_profile


def test_cpu_is_the_profile_design_describes() -> None:
    cpu = get_profile("cpu")
    assert (cpu.provider, cpu.graph_form, cpu.pad_to_multiple) == ("CPUExecutionProvider", "fused", 4)
    assert cpu.memory_arena
    assert not cpu.memory_pattern
    assert cpu.bit_identical_groupings
    # Spinning ends with the run: an idle server uses no core.
    assert cpu.session_config["session.intra_op.allow_spinning"] == cpu.session_config["session.force_spinning_stop"]


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_every_profile_is_named_as_it_is_listed_and_can_be_written_down(name: str) -> None:
    profile = get_profile(name)
    assert profile.name == name
    assert profile.pad_to_multiple >= 1
    assert json.loads(json.dumps(profile.session_options())) == profile.session_options()


def test_an_unknown_profile_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        get_profile("tpu")
    assert str(caught.value) == f"profile 'tpu' is not known; choose one of: {', '.join(sorted(PROFILES))}"


def changed(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, tuple):
        return (*value, "x")
    return value + "x" if isinstance(value, str) else {**value, "x": "1"}


def test_every_option_that_may_move_a_bit_is_in_the_record() -> None:
    # These are bound beside the record, or say what the gate asks for.
    apart = {"name", "provider", "provider_options", "bit_identical_groupings"}
    base = get_profile("cpu")
    for name in {field.name for field in fields(Profile)} - apart:
        other = replace(base, **{name: changed(getattr(base, name))})
        assert other.session_options() != base.session_options(), name


def test_the_table_cannot_be_changed_by_accident() -> None:
    with pytest.raises(TypeError):
        PROFILES["cpu"] = PROFILES["cpu"]  # type: ignore[index]
    with pytest.raises(TypeError):
        PROFILES["cpu"].session_config["x"] = "1"  # type: ignore[index]
