"""Profiles: everything that may move a bit is in the record receipts bind."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from samevec.errors import ConfigError
from samevec.runtime.batching.cost import COSTS, GPU_COSTS, NATIVE_COSTS
from samevec.runtime.providers.profiles import PROFILES, Profile, get_profile


def test_cpu_is_the_native_librarys_and_requires_equal_bits() -> None:
    cpu = get_profile("cpu")
    assert (cpu.provider, cpu.graph_form, cpu.pad_to_multiple) == ("CPUExecutionProvider", "native", 1)
    assert cpu.is_native
    assert cpu.memory_arena
    assert not cpu.memory_pattern
    assert cpu.bit_identical_groupings
    # Spinning ends with the run: an idle server uses no core.
    assert cpu.session_config["session.intra_op.allow_spinning"] == cpu.session_config["session.force_spinning_stop"]


def test_portable_is_of_standard_operators_and_proved_by_tolerance() -> None:
    portable = get_profile("portable")
    assert (portable.provider, portable.graph_form, portable.pad_to_multiple) == ("CPUExecutionProvider", "plain", 1)
    assert [name for name, profile in PROFILES.items() if profile.is_native] == ["cpu"]
    assert not portable.bit_identical_groupings


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


def test_a_profile_that_is_gone_says_what_took_its_place() -> None:
    with pytest.raises(ConfigError, match="cpu-compact is gone: cpu is as small now; export again with --profile cpu"):
        get_profile("cpu-compact")


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
    # These are bound beside the record, say what the gate asks for, or move no bit.
    apart = {"name", "provider", "provider_options", "bit_identical_groupings", "costs"}
    base = get_profile("cpu")
    for name in {field.name for field in fields(Profile)} - apart:
        other = replace(base, **{name: changed(getattr(base, name))})
        assert other.session_options() != base.session_options(), name


def test_the_table_cannot_be_changed_by_accident() -> None:
    with pytest.raises(TypeError):
        PROFILES["cpu"] = PROFILES["cpu"]  # type: ignore[index]
    with pytest.raises(TypeError):
        PROFILES["cpu"].session_config["x"] = "1"  # type: ignore[index]


def test_cuda_computes_in_float32_within_a_bound_one_run_at_a_time() -> None:
    cuda = get_profile("cuda")
    assert (cuda.provider, cuda.graph_form) == ("CUDAExecutionProvider", "cuda")
    assert dict(cuda.provider_options) == {
        "device_id": "0",
        "use_tf32": "0",
        "gpu_mem_limit": "8589934592",
        "arena_extend_strategy": "kSameAsRequested",
    }
    assert cuda.single_run
    assert cuda.io_binding
    assert (cuda.token_budget, cuda.most_cpu_percent, cuda.fallback) == (16_384, 0, "cpu")
    assert cuda.costs is GPU_COSTS
    assert not cuda.bit_identical_groupings  # reported, not required


def test_coreml_computes_in_float32_in_static_shapes_without_the_neural_engine() -> None:
    coreml = get_profile("coreml")
    assert (coreml.provider, coreml.graph_form) == ("CoreMLExecutionProvider", "plain")
    assert dict(coreml.provider_options) == {
        "ModelFormat": "MLProgram",
        "MLComputeUnits": "CPUAndGPU",
        "RequireStaticInputShapes": "1",
        "EnableOnSubgraphs": "0",
        "AllowLowPrecisionAccumulationOnGPU": "0",
    }
    assert coreml.single_run
    assert coreml.static_shapes
    assert (coreml.most_cpu_percent, coreml.fallback) == (10, "")
    assert not coreml.bit_identical_groupings


@pytest.mark.parametrize("name", ["cpu", "portable"])
def test_receipts_of_cpu_profiles_know_nothing_of_devices(name: str) -> None:
    record = get_profile(name).session_options()
    assert not {"io_binding", "static_shapes", "token_budget", "most_cpu_percent", "fallback"} & set(record)
    assert get_profile(name).costs is (NATIVE_COSTS if name == "cpu" else COSTS)
