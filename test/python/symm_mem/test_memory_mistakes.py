"""What a mistake raises is the same in Python and in C++: memory_mistakes.json says what, and
test/libtorch/mistakes_test.cpp makes the same ones."""

import json
import os
from pathlib import Path

import pytest
import torch

from harness import run_ranks

TEST = next(folder for folder in Path(__file__).parents if folder.name == "test")
EXPECTED = json.loads((TEST / "support" / "memory_mistakes.json").read_text())


def mistakes(rank):
    from torch_symm import SymmetricTensor, memory_provider

    found = {}

    def make(mistake, call, *args, **kwargs):
        try:
            call(*args, **kwargs)
        except Exception as error:
            # The types of wrong arguments are more than C++ has.
            kind = ValueError if isinstance(error, ValueError) else type(error)
            found[mistake] = {"exception": kind.__name__, "text": str(error)}

    make("choose an unknown provider", memory_provider, "ncl")
    os.environ["SYMM_MEMORY_PROVIDER"] = "ncl"
    make("set the variable to an unknown provider", memory_provider)
    del os.environ["SYMM_MEMORY_PROVIDER"]
    make("choose a provider that this torch has not", memory_provider, "cuda")
    empty = SymmetricTensor.empty
    make("allocate on a device without symmetric memory", empty, 3, device="meta")
    make("allocate on a GPU that this torch has not", empty, 3, device="cuda:0")

    shared = SymmetricTensor.empty((4, 5), device="cpu")
    make("choose another provider after an allocation", memory_provider, "cuda")
    make("share with an unknown group", SymmetricTensor, shared.local, "no such group")
    make("share a tensor that is not contiguous", SymmetricTensor, shared.local.t())
    make("share ordinary memory", SymmetricTensor, torch.ones(7))
    make("read the tensor of no rank", shared.remote, 1)
    make("read the signal pad of no rank", shared.signal_pad, -1)
    make("signal no rank", shared.put_signal, 1)
    make("wait for no rank", shared.wait_signal, 1)
    return found


@pytest.mark.timeout(60)
@pytest.mark.cpu("the table is that of a torch without CUDA")
@pytest.mark.skipif(torch.backends.cuda.is_built(), reason="this torch has CUDA")
def test_mistakes_raise_what_they_raise_in_cpp():
    assert run_ranks(mistakes, 1, fresh=True)[0] == EXPECTED
