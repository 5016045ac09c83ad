"""Chooses a command's profile: the named one, if this machine can run it, or the best that suits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from samevec.errors import ArtifactMissingError, NotReadyError, ProviderUnavailableError
from samevec.gate import state_of
from samevec.opening import locate
from samevec.runtime.providers.detect import (
    AUTO_ORDER,
    ProfileState,
    choose_profile,
    profile_problem,
    read_facts,
    require_provider,
)
from samevec.runtime.providers.profiles import PROFILES, PROFILES_GONE, get_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from samevec.lock import LockedModel
    from samevec.runtime.providers.detect import ProviderFacts

__all__ = ["AUTO", "GOOD_ENOUGH", "Purpose", "resolve_profile"]

#: The name that asks for a choice of profile.
AUTO = "auto"

Purpose = Literal["export", "parity", "serve", "prove and serve"]

#: Gate states that a chosen profile's models may have, by the purpose.
GOOD_ENOUGH: dict[Purpose, tuple[str, ...]] = {
    "export": ("passed", "failed", "stale", "missing", "not exported"),
    "parity": ("passed", "failed", "stale", "missing"),
    "serve": ("passed",),
    "prove and serve": ("passed", "stale", "missing"),
}


def resolve_profile(
    requested: str,
    entries: Sequence[LockedModel],
    *,
    home: Path,
    purpose: Purpose,
    say: Callable[[str], None],
    facts: ProviderFacts | None = None,
) -> str:
    """Return the profile to run under; loads no model.

    :data:`AUTO` chooses the best one whose provider is here and whose models' gate states suit the purpose (to serve: a
    passed receipt for every model), and prints the choice, and why nothing better was chosen.

    Raises
    ------
    ConfigError
        The profile was removed.
    ProviderUnavailableError, NativeLibraryError
        There is no such profile, or this machine cannot run it; with the reason.
    NotReadyError
        No profile suits; with the reason for each.
    """
    if requested != AUTO:
        if requested not in PROFILES and requested not in PROFILES_GONE:
            known = ", ".join((AUTO, *sorted(PROFILES)))
            raise ProviderUnavailableError(requested, f"there is no such profile; choose one of: {known}")
        require_provider(get_profile(requested), facts)
        return requested
    facts = read_facts() if facts is None else facts
    states = [_profile_state(name, entries, home, facts) for name in AUTO_ORDER]
    choice = choose_profile(states, allowed=GOOD_ENOUGH[purpose])
    if choice.profile is None:
        raise NotReadyError(f"{choice.words}; run: samevec export, or name a profile to see what it needs")
    say(f"samevec: {choice.words}")
    return choice.profile


def _profile_state(name: str, entries: Sequence[LockedModel], home: Path, facts: ProviderFacts) -> ProfileState:
    problem = profile_problem(get_profile(name), facts)
    gates = {} if problem else {entry.name: _gate(name, entry, home) for entry in entries}
    return ProfileState(profile=name, problem=problem, gates=gates)


def _gate(profile: str, entry: LockedModel, home: Path) -> str:
    try:
        return state_of(locate(entry, get_profile(profile), home=home)).state
    except ArtifactMissingError:
        return "not exported"
