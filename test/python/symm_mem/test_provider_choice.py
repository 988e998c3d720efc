"""How a provider of symmetric memory is chosen: really, once, and without half a choice."""

import types

import pytest
import torch
import torch.distributed as dist

from errors import message_of
from harness import DEVICE, run_ranks

pytestmark = pytest.mark.timeout(60)

TORCH_NAMES = {"native": "SYMM", "cuda": "CUDA", "nccl": "NCCL", "nvshmem": "NVSHMEM"}
NAMES = list(TORCH_NAMES)


def by_environment(rank):
    import torch_symm

    tensor = torch_symm.empty(3, device=DEVICE)
    return torch_symm.memory_provider(), torch_symm.is_symmetric(tensor)


def test_the_environment_chooses():
    env = {"SYMM_MEMORY_PROVIDER": "native"}
    assert run_ranks(by_environment, 1, env=env, backend="gloo") == [("native", True)]


def recorded(rank):
    """Python's choice is the one that C++ code of the process sees, and the other way round."""
    import torch_symm
    from torch_symm._registration import load

    seen = [load().memory_provider_choice()]
    torch_symm.memory_provider("native")
    seen.append(load().memory_provider_choice())
    torch_symm.empty(3, device="cpu")
    seen.append(load().memory_provider_choice())
    load().record_memory_provider("native", used=False)
    seen.append(load().memory_provider_choice())
    texts = [
        message_of(ValueError, load().record_memory_provider, "x", used=False),
        message_of(NotImplementedError, load().record_memory_provider, "cuda", used=False),
        message_of(RuntimeError, torch_symm.memory_provider, "cuda"),
    ]
    return seen, texts


def test_python_and_cpp_have_one_choice():
    seen, texts = run_ranks(recorded, 1, backend="gloo")[0]
    assert seen == [("", False), ("native", False), ("native", True), ("native", True)]
    assert "'x'" in texts[0]
    assert all("'native' is in use" in text and "'cuda'" in text for text in texts[1:]), texts


def by_a_choice_of_cpp(rank):
    import torch_symm
    from torch_symm._registration import load

    load().record_memory_provider("nvshmem", used=True)
    return torch_symm.memory_provider(), message_of(
        RuntimeError, torch_symm.memory_provider, "native"
    )


def test_a_choice_of_cpp_holds_in_python():
    name, text = run_ranks(by_a_choice_of_cpp, 1, backend="gloo")[0]
    assert name == "nvshmem"
    assert "'nvshmem' is in use" in text


def by_a_wrong_variable(rank):
    import torch_symm

    texts = [message_of(ValueError, torch_symm.empty, 3, device=DEVICE)]
    texts.append(message_of(ValueError, torch_symm.memory_provider))
    torch_symm.memory_provider("native")  # an explicit choice does not look at the variable
    return texts


def test_a_wrong_variable_raises_and_lists_the_names():
    env = {"SYMM_MEMORY_PROVIDER": "ncl"}
    for text in run_ranks(by_a_wrong_variable, 1, env=env, backend="gloo")[0]:
        assert "SYMM_MEMORY_PROVIDER" in text
        assert "'ncl'" in text
        assert all(name in text for name in NAMES), text


def unknown_names(rank):
    import torch_symm

    return [message_of(ValueError, torch_symm.memory_provider, name) for name in ("", "NCCL", "x")]


def test_unknown_names_raise_and_list_the_known_ones():
    for name, text in zip(("", "NCCL", "x"), run_ranks(unknown_names, 1)[0], strict=True):
        assert repr(name) in text
        assert all(known in text for known in NAMES), text


def not_built_in(rank):
    import torch_symm

    texts = [message_of(RuntimeError, torch_symm.memory_provider, name) for name in NAMES[1:]]
    before = torch_symm.memory_provider()
    torch_symm.empty(3, device="cpu")
    return before, torch_symm.memory_provider(), texts


@pytest.mark.cpu("a torch with CUDA has some of them")
def test_what_is_not_built_in_raises_and_names_what_is():
    before, after, texts = run_ranks(not_built_in, 1)[0]
    assert before == after == "native"
    for name, text in zip(NAMES[1:], texts, strict=True):
        assert f"{name!r} cannot be used here" in text, text
        assert text.endswith("usable: native"), text


class Registry:
    """Stands in for torch's registry of allocators in a torch with CUDA, NCCL and NVSHMEM."""

    def __init__(self, selected="CUDA"):
        self.selected, self.in_use, self.failures = selected, False, 0
        self.calls = []

    def set_backend(self, name):
        self.calls.append(name)
        if self.failures:
            self.failures -= 1
            raise RuntimeError(f"{name} could not be set up")
        if name != self.selected and self.in_use:
            raise RuntimeError("Backend can not be changed after use.")
        self.selected = name

    def get_backend(self, device):
        return self.selected if str(device).startswith("cuda") else "SYMM"


class Compiled:
    """Stands in for torch_symm._C in a process that has made no choice yet."""

    def __init__(self):
        self.choice, self.problem = ("", False), ""

    def device_library_problem(self, kind):
        return self.problem

    def memory_provider_choice(self):
        return self.choice

    def record_memory_provider(self, name, used):
        self.choice = (name, used)


@pytest.fixture
def registry(monkeypatch):
    """The process has made no choice yet, and torch has every provider."""
    import torch.distributed._symmetric_memory as symm_mem

    from torch_symm import _registration

    stand_in, compiled = Registry(), Compiled()
    monkeypatch.setattr(symm_mem, "set_backend", stand_in.set_backend)
    monkeypatch.setattr(symm_mem, "get_backend", stand_in.get_backend)
    monkeypatch.setattr(symm_mem, "is_nvshmem_available", lambda: True)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    stand_in.compiled = compiled
    for name in ("load", "loaded"):
        monkeypatch.setattr(_registration, name, lambda: compiled)
    monkeypatch.delenv("SYMM_MEMORY_PROVIDER", raising=False)
    return stand_in


CUDA = types.SimpleNamespace(type="cuda")
CPU = types.SimpleNamespace(type="cpu")


@pytest.mark.parametrize("name", NAMES)
def test_a_choice_is_selected_in_torch(registry, name):
    from torch_symm import provider

    assert provider.memory_provider(name) == name
    assert registry.selected == TORCH_NAMES[name]
    assert provider.memory_provider() == name
    with provider.allocating(CUDA, "empty") as used:
        assert used.name == name
    assert registry.selected == TORCH_NAMES[name]


@pytest.mark.parametrize("device", [CPU, CUDA], ids=["cpu", "cuda"])
def test_the_default_is_selected_in_torch_too(registry, device):
    from torch_symm import provider

    with provider.allocating(device, "empty"):
        assert registry.selected == "SYMM"
    with pytest.raises(RuntimeError, match="'native' is in use"):
        provider.memory_provider("cuda")


def test_a_choice_may_change_until_the_first_allocation(registry):
    from torch_symm import provider

    for name in ("nccl", "cuda", "native", "nvshmem"):
        provider.memory_provider(name)
        assert registry.selected == TORCH_NAMES[name]
    with provider.allocating(CUDA, "empty"):
        pass
    with pytest.raises(RuntimeError, match="'nvshmem' is in use"):
        provider.memory_provider("native")
    assert provider.memory_provider("nvshmem") == "nvshmem"


def test_setup_that_fails_leaves_nothing_and_can_be_tried_again(registry):
    from torch_symm import provider

    provider.memory_provider("cuda")
    registry.failures = 2
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"'nccl' .*NCCL could not be set up"):
            provider.memory_provider("nccl")
        assert provider.memory_provider() == "cuda"
        assert registry.selected == "CUDA"
    assert provider.memory_provider("nccl") == "nccl"
    assert registry.selected == "NCCL"


def test_an_allocation_that_fails_leaves_the_choice_open(registry):
    from torch_symm import provider

    with pytest.raises(MemoryError):
        with provider.allocating(CUDA, "empty"):
            raise MemoryError
    assert provider.memory_provider("cuda") == "cuda"


def test_memory_that_torch_has_in_use_with_another_is_an_error(registry):
    from torch_symm import provider

    registry.in_use = True
    with pytest.raises(RuntimeError, match=r"'native' \(SYMM\) and keeps CUDA"):
        with provider.allocating(CUDA, "empty"):
            pytest.fail("the allocation went on")
    assert provider.memory_provider("cuda") == "cuda"


def test_a_choice_that_torch_ignores_is_an_error(registry, monkeypatch):
    import torch.distributed._symmetric_memory as symm_mem

    from torch_symm import provider

    monkeypatch.setattr(symm_mem, "set_backend", lambda name: None)
    with pytest.raises(RuntimeError, match="keeps CUDA although NCCL was selected"):
        provider.memory_provider("nccl")
    assert provider.memory_provider() == "native"


def test_a_choice_made_in_torch_is_not_overridden_by_default(registry):
    from torch_symm import provider

    registry.selected = "NCCL"
    with pytest.raises(RuntimeError, match="set to NCCL"):
        with provider.allocating(CUDA, "empty"):
            pytest.fail("the allocation went on")
    assert registry.selected == "NCCL"
    provider.memory_provider("nccl")
    with provider.allocating(CUDA, "empty") as used:
        assert used.name == "nccl"


def test_what_a_provider_cannot_do_names_those_that_can(registry):
    from torch_symm import provider

    provider.memory_provider("nvshmem")
    for capability, able in [("barrier", "native and cuda"), ("views", "native")]:
        with pytest.raises(NotImplementedError, match=f"'nvshmem' has no x; {able} can"):
            provider.require(capability, "x", "f")
    with pytest.raises(NotImplementedError, match="no memory on cpu; providers that have: native"):
        with provider.allocating(CPU, "empty"):
            pytest.fail("the allocation went on")


def test_the_library_for_gpus_is_missing(registry):
    from torch_symm import provider

    registry.compiled.problem = "there is no library"
    with pytest.raises(NotImplementedError, match="there is no library"):
        with provider.allocating(CUDA, "empty"):
            pytest.fail("the allocation went on")
    with provider.allocating(CPU, "empty"):
        pass
    assert registry.calls == []  # what torch has on GPUs is left alone


def test_who_has_mapped_memory_of_another_provider_is_not_guessed(registry, monkeypatch):
    import torch.distributed._symmetric_memory as symm_mem

    from torch_symm import _groups, memory, provider

    provider.memory_provider("cuda")
    registry.compiled.is_symmetric = lambda tensor, name: False
    group = types.SimpleNamespace(group_name="some group")
    monkeypatch.setattr(_groups, "resolve", lambda given, caller: group)
    known = torch.empty(1)
    knows = lambda tensor: tensor is known  # noqa: E731
    monkeypatch.setattr(symm_mem, "is_symm_mem_tensor", knows, raising=False)  # not in torch 2.11
    assert memory.is_symmetric(known)
    assert not memory.is_symmetric(torch.empty(1))
    assert not memory.is_symmetric(torch.empty(1), "some group")
    with pytest.raises(NotImplementedError, match=r"'cuda' has no record .* native can"):
        memory.is_symmetric(known, "some group")
