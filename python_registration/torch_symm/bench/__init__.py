"""Benchmark of the collectives of a c10d backend, with the columns and checks of nccl-tests.

Run it with ``python -m torch_symm.bench --help``. The backend under test is only a name that is
given to ``torch.distributed``; nothing here depends on which backend answers to it.

    config       what one run measures, validated
    pattern      inputs whose result is exact in any order, and their expected results
    collectives  one class per collective: buffers, the call, the expected result
    bandwidth    algorithm and bus bandwidth as nccl-tests defines them
    measure      timing blocks and correctness checks of one size
    worker       what every rank executes
    launch       local processes, or the processes that torchrun started
    report       text, tables and JSON
    plot         a picture of the results
"""
