"""How a provider of symmetric memory is chosen: really, once, and without half a choice.

test/libtorch/memory_provider_test.cpp has what needs a torch with CUDA, NCCL and NVSHMEM, over
stand-ins for those.
"""

import os
import threading
import time

import pytest
import torch

from errors import message_of
from harness import DEVICE, PROCESSES, run_ranks

pytestmark = pytest.mark.timeout(60)

NAMES = ["native", "cuda", "nccl", "nvshmem"]


def by_environment(rank):
    import torch_symm

    tensor = torch_symm.empty(3, device=DEVICE)
    return torch_symm.memory_provider(), torch_symm.is_symmetric(tensor)


def test_the_environment_chooses():
    env = {"SYMM_MEMORY_PROVIDER": "native"}
    assert run_ranks(by_environment, 1, fresh=PROCESSES, env=env, backend="gloo") == [
        ("native", True)
    ]


def in_an_allocation(rank):
    """What `load().allocate_from_provider` does around Python code that allocates."""
    import torch_symm
    from torch_symm._registration import load

    def fails():
        raise MemoryError("there is none")

    cpu, seen, asked = torch.device("cpu"), [], []
    text = message_of(MemoryError, load().allocate_from_provider, cpu, "empty", fails)
    os.environ["SYMM_MEMORY_PROVIDER"] = "nccl"
    seen.append(torch_symm.memory_provider())  # the failure has left the choice open
    os.environ["SYMM_MEMORY_PROVIDER"] = "native"
    other = threading.Thread(target=lambda: asked.append(torch_symm.memory_provider()))

    def allocates():
        other.start()
        time.sleep(0.05)  # the other thread waits for the choice, and lets this one go on
        return torch_symm.memory_provider()

    seen.append(load().allocate_from_provider(cpu, "empty", allocates))
    other.join()
    os.environ["SYMM_MEMORY_PROVIDER"] = "nccl"
    seen.append(torch_symm.memory_provider())  # now the choice stands
    return text, seen, asked


def test_python_code_inside_an_allocation():
    text, seen, asked = run_ranks(in_an_allocation, 1, fresh=PROCESSES, backend="gloo")[0]
    assert text == "MemoryError: there is none"
    assert seen == ["nccl", "native", "native"]
    assert asked == ["native"]


def by_a_wrong_variable(rank):
    import torch_symm

    texts = [message_of(ValueError, torch_symm.empty, 3, device=DEVICE)]
    texts.append(message_of(ValueError, torch_symm.memory_provider))
    torch_symm.memory_provider("native")  # an explicit choice does not look at the variable
    return texts


def test_a_wrong_variable_raises_and_lists_the_names():
    env = {"SYMM_MEMORY_PROVIDER": "ncl"}
    for text in run_ranks(by_a_wrong_variable, 1, fresh=PROCESSES, env=env, backend="gloo")[0]:
        assert "SYMM_MEMORY_PROVIDER" in text
        assert "'ncl'" in text
        assert all(name in text for name in NAMES), text


def unknown_names(rank):
    import torch_symm

    return [message_of(ValueError, torch_symm.memory_provider, name) for name in ("", "NCCL", "x")]


def test_unknown_names_raise_and_list_the_known_ones():
    for name, text in zip(
        ("", "NCCL", "x"), run_ranks(unknown_names, 1, fresh=PROCESSES)[0], strict=True
    ):
        assert repr(name) in text
        assert all(known in text for known in NAMES), text


def not_built_in(rank):
    import torch_symm

    choose = torch_symm.memory_provider
    texts = [message_of(NotImplementedError, choose, name) for name in NAMES[1:]]
    before = torch_symm.memory_provider()
    torch_symm.empty(3, device="cpu")
    return before, torch_symm.memory_provider(), texts


@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="a torch with CUDA has some of them")
@pytest.mark.cpu("a torch with CUDA has some of them")
def test_what_is_not_built_in_raises_and_names_what_is():
    before, after, texts = run_ranks(not_built_in, 1, fresh=PROCESSES)[0]
    assert before == after == "native"
    for name, text in zip(NAMES[1:], texts, strict=True):
        assert f"{name!r} cannot be used here" in text, text
        assert text.endswith("usable: native"), text
