"""The device profiles from end to end on a machine without the device: ONNX Runtime pretends, the CPU computes.

Everything but the provider is real: export, placement check, gate, receipts, choice, serving objects, memory that is
full. What only hardware can show, its arithmetic and its speed, no test here claims.
"""

from __future__ import annotations

import ctypes
import json
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pytest
from e2e_tools import EMBEDDER, LOCK, RERANKER, TOYS, Done, ToyHome, copy_home
from pretend_gpu import COREML, CPU, CUDA, Opened, pretended, pretended_cdll

import samevec
from samevec.cli.main import main
from samevec.cli.profile_choice import resolve_profile
from samevec.errors import ArtifactMissingError, ProviderUnavailableError, ReceiptMissingError, SessionRunError
from samevec.gate import reference_of
from samevec.opening import open_candidate
from samevec.parity.compare import compare
from samevec.parity.gate import run_gate
from samevec.runtime.providers import detect as providers
from samevec.runtime.providers.profiles import GPU_BUDGET_TOKENS, get_profile
from samevec.runtime.sessions.fallback import FallbackSession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from samevec.parity.verdict import Verdict
    from samevec.runtime.providers.profiles import Profile

pytestmark = pytest.mark.model

TEXTS = [f"text number {i} " * (1 + i % 5) for i in range(12)]
PAIRS = [(f"query {i}", f"document {i} " * (1 + i % 4)) for i in range(12)]
CUDA_OPTIONS = {
    "device_id": "0",
    "use_tf32": "0",
    "gpu_mem_limit": str(8 * 2**30),
    "arena_extend_strategy": "kSameAsRequested",
}


@dataclass
class Pretended:
    """What the machine pretends to have; `made` are the sessions that were opened, newest last."""

    settings: dict[str, str]
    made: list[Opened]


def _pretend(patch: pytest.MonkeyPatch, provider: str) -> Pretended:
    settings = {"PRETEND_PROVIDER": provider}
    found = pretended(onnxruntime, settings)
    for name, value in found.items():
        patch.setattr(onnxruntime, name, value)
    patch.setattr(ctypes, "CDLL", pretended_cdll(settings))
    providers.read_facts.cache_clear()
    providers._nvidia_driver.cache_clear()
    return Pretended(settings, found["InferenceSession"].made)


@pytest.fixture(autouse=True)
def _forget_the_machine() -> Iterator[None]:
    yield
    providers.read_facts.cache_clear()
    providers._nvidia_driver.cache_clear()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    return _pretend(monkeypatch, CUDA)


@pytest.fixture
def coreml(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    return _pretend(monkeypatch, COREML)


#: What is exported and proved; the toy pair under ``cpu`` is there already.
MADE = ((CUDA, "cuda", EMBEDDER), (CUDA, "cuda", RERANKER), (COREML, "coreml", EMBEDDER))


@pytest.fixture(scope="module")
def made_home(exported: ToyHome, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with proved models of every profile, by the commands that users run."""
    home = copy_home(exported.path, tmp_path_factory.mktemp("devices") / "home")
    for provider, profile, name in MADE:
        with pytest.MonkeyPatch.context() as patch:
            _pretend(patch, provider)
            arguments = ["export", "--lock", "toy", "--profile", profile, "--model", name, "--home", str(home)]
            assert main(arguments) == 0
    return home


@pytest.fixture
def home(made_home: Path, tmp_path: Path) -> Path:
    """A copy that a test may break."""
    return shutil.copytree(made_home, tmp_path / "home")


def forget(home: Path, profile: str, *, artifacts: bool = False) -> None:
    """Remove a profile's receipts, or all of it."""
    for folder in (home / "artifacts").glob(f"*--{profile}--*"):
        shutil.rmtree(folder if artifacts else folder / "receipts")


def encode(home: Path, profile: str) -> Any:
    return samevec.load_embedder(EMBEDDER, profile=profile, home=home, lock="toy").encode(TEXTS)


@pytest.mark.parametrize(("provider", "profile", "name"), MADE)
def test_the_receipt_names_provider_options_and_device(provider: str, profile: str, name: str, made_home: Path) -> None:
    [path] = (made_home / "artifacts").glob(f"{name}--{profile}--*/receipts/*.json")
    bound = json.loads(path.read_text())["binding"]
    assert bound["provider"] == provider
    assert bound["provider_options"] == dict(get_profile(profile).provider_options)
    assert bound["device"].startswith("Pretended GPU (compute 9.0)") == (profile == "cuda")


def test_cuda_gets_its_options_its_whole_budget_and_gives_back_pooled_rows_alone(cuda: Pretended, home: Path) -> None:
    model = samevec.load_embedder(EMBEDDER, profile="cuda", home=home, lock="toy")
    engine = model.engine
    assert (engine.token_budget, engine.pad_to_multiple) == (GPU_BUDGET_TOKENS, 8)
    assert engine.token_budget == 16_384
    assert not engine.overlapping
    found = model.encode(TEXTS)
    [session] = [one for one in cuda.made if one.asked[0] == CUDA]
    assert session.asked == (CUDA, CUDA_OPTIONS)
    assert set(session.bound) == {("embedding", "cpu")}
    assert session.output_shape == ("rows", model.entry.dimensions)
    outcome = compare(encode(home, "cpu"), found, LOCK.tolerance)
    assert outcome.passed, outcome.words


def test_rerankers_run_there_too(cuda: Pretended, home: Path) -> None:
    scores = samevec.load_reranker(RERANKER, profile="cuda", home=home, lock="toy").score(PAIRS)
    expected = samevec.load_reranker(RERANKER, home=home, lock="toy").score(PAIRS)
    outcome = compare(expected[:, None], scores[:, None], LOCK.tolerance)
    assert outcome.passed, outcome.words


def test_coreml_runs_in_fixed_shapes_from_a_cache_beside_the_artifact(coreml: Pretended, home: Path) -> None:
    before = len(coreml.made)
    found = encode(home, "coreml")
    outcome = compare(encode(home, "cpu"), found, LOCK.tolerance)
    assert outcome.passed, outcome.words
    opened = [one for one in coreml.made[before:] if one.asked[0] == COREML]
    assert len(opened) > 1
    [artifact] = (home / "artifacts").glob(f"{EMBEDDER}--coreml--*")
    for session in opened:
        options = dict(session.asked[1])
        cache = options.pop("ModelCacheDirectory")
        assert options == dict(get_profile("coreml").provider_options)
        rows, tokens = session.input_shape
        assert cache.startswith(str(artifact / "machine" / "coreml"))
        assert cache.endswith(f"/{rows}x{tokens}")
        assert session.output_shape[0] == rows


@pytest.mark.parametrize(
    ("provider", "profile", "astray", "words"),
    [
        (CUDA, "cuda", "MultiHeadAttention", r"compute nodes run elsewhere, none may: .*\(MultiHeadAttention\)"),
        (COREML, "coreml", "MatMul", r"compute nodes run elsewhere, at most 10% may: .*\(MatMul\)"),
    ],
    ids=["cuda", "coreml"],
)
def test_compute_nodes_on_the_cpu_are_refused_at_export_and_at_load(
    provider: str,
    profile: str,
    astray: str,
    words: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: Callable[..., Done],
    tmp_path: Path,
) -> None:
    machine = _pretend(monkeypatch, provider)
    machine.settings["PRETEND_ASTRAY"] = astray
    with pytest.raises(ProviderUnavailableError, match=words):
        encode(home, profile)
    where = ("--lock", "toy", "--model", EMBEDDER, "--profile", profile, "--home")
    for command, folder in (("parity", home), ("export", tmp_path / "new")):
        done = cli(command, *where, folder)
        assert done.code == 3
        assert done.complaints[-1].startswith(f"samevec: {provider}: ")
    assert not list((tmp_path / "new" / "artifacts").glob("toy-*"))  # nothing is published


def test_a_named_profile_is_not_served_without_its_own_receipt(cuda: Pretended, home: Path) -> None:
    forget(home, "cuda")
    with pytest.raises(ReceiptMissingError, match="--profile cuda"):
        encode(home, "cuda")


def test_auto_takes_what_is_here_and_proved(cuda: Pretended, home: Path) -> None:
    entries = [LOCK.model(name) for name in TOYS]
    said: list[str] = []

    def choose() -> str:
        return resolve_profile("auto", entries, home=home, purpose="serve", say=said.append)

    assert choose() == "cuda"
    assert said[-1] == "samevec: profile cuda, the best there is"
    forget(home, "cuda")
    assert choose() == "cpu"
    assert said[-1].startswith(f"samevec: profile cpu (not cuda: {EMBEDDER} missing, {RERANKER} missing; coreml: ")
    cuda.settings["PRETEND_DRIVER"] = ""
    providers.read_facts.cache_clear()
    providers._nvidia_driver.cache_clear()
    assert choose() == "cpu"
    assert said[-1].startswith("samevec: profile cpu (not cuda: no NVIDIA device: the driver's library (libcuda)")


def test_auto_serves_nothing_that_was_not_proved(cuda: Pretended, home: Path, cli: Callable[..., Done]) -> None:
    for profile in ("cuda", "coreml", "cpu"):
        forget(home, profile)
    done = cli("serve", "--lock", "toy", "--profile", "auto", "--home", home, "--port", "0")
    assert done.code == 3
    assert f"cuda: {EMBEDDER} missing, {RERANKER} missing" in done.complaints[-1]
    assert f"cpu: {EMBEDDER} missing, {RERANKER} missing" in done.complaints[-1]


def test_a_full_device_halves_and_then_gives_way_to_the_proved_cpu_for_good(cuda: Pretended, home: Path) -> None:
    expected = encode(home, "cpu")
    model = samevec.load_embedder(EMBEDDER, profile="cuda", home=home, lock="toy")
    session = model.engine.session
    assert isinstance(session, FallbackSession)
    cuda.settings["PRETEND_ROWS"] = "2"
    assert compare(expected, model.encode(TEXTS), LOCK.tolerance).passed
    assert (session.provider, session.notice) == (CUDA, None)
    cuda.settings["PRETEND_ROWS"] = "0"
    assert compare(expected, model.encode(TEXTS), LOCK.tolerance).passed
    assert session.provider == CPU
    cuda.settings["PRETEND_ROWS"] = ""  # there is room again, and yet
    [device] = [one for one in cuda.made if one.asked[0] == CUDA]
    runs = len(device.bound)
    assert model.encode(TEXTS).tobytes() == expected.tobytes()
    assert len(device.bound) == runs
    assert session.provider == CPU
    assert "profile cpu, which has passed its own gate here, computes until restart" in (session.notice or "")


@pytest.mark.parametrize(
    ("artifacts", "words"), [(False, "parity has not been proved on this machine"), (True, "nothing exported under")]
)
def test_a_full_device_gives_way_to_nothing_unproved(artifacts: bool, words: str, cuda: Pretended, home: Path) -> None:
    forget(home, "cpu", artifacts=artifacts)
    model = samevec.load_embedder(EMBEDDER, profile="cuda", home=home, lock="toy")
    cuda.settings["PRETEND_ROWS"] = "0"
    with pytest.raises(SessionRunError, match=r"smaller than requested") as caught:
        model.encode(TEXTS[:1])
    assert words in str(caught.value)
    assert not isinstance(caught.value, ArtifactMissingError)
    assert model.engine.session.provider == CUDA


def test_the_gate_reports_bits_that_move_on_cuda_and_passes(cuda: Pretended, home: Path) -> None:
    entry = LOCK.model(EMBEDDER)
    candidate = open_candidate(entry, profile="cuda", home=home)
    cuda.settings["PRETEND_JITTER"] = "1e-7"

    def judge(profile: Profile) -> Verdict:
        reference = reference_of(candidate)
        return run_gate(candidate.model, reference, tolerance=LOCK.tolerance, profile=profile, quick=True)

    verdict = judge(candidate.profile)
    assert verdict.passed, verdict.failures
    assert any("bit" in note for note in verdict.notes)
    strict = judge(replace(candidate.profile, bit_identical_groupings=True))
    assert not strict.passed
    assert any("bit" in failure for failure in strict.failures)


def test_native_runs_keep_their_order_on_either(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = encode(home, "cpu")
    for provider, profile in ((CUDA, "cuda"), (COREML, "coreml")):
        with monkeypatch.context() as patch:
            _pretend(patch, provider)
            model = samevec.load_embedder(EMBEDDER, profile=profile, home=home, lock="toy")
            seen: list[int] = []
            run = type(model.engine.session).run

            def noting(self: Any, features: Any, seen: list[int] = seen, run: Any = run, **how: Any) -> Any:
                seen.extend(features.attention_mask.sum(axis=1).tolist())
                return run(self, features, **how)

            patch.setattr(type(model.engine.session), "run", noting)
            found = model.encode(TEXTS, batch_size=5, policy="native")
        outcome = compare(expected, found, LOCK.tolerance)
        assert outcome.passed, outcome.words
        lengths = np.array([row.n_tokens for row in model.tokenize(TEXTS)])
        order = np.argsort([-len(text) for text in TEXTS], kind="stable")
        assert seen == lengths[order].tolist()
