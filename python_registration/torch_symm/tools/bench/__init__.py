"""Benchmark of the collectives of a c10d backend, with the columns and checks of nccl-tests.

Run it with ``python -m torch_symm.bench --help``. The backend under test is only a name that is
given to ``torch.distributed``; nothing here depends on which backend answers to it.

    config       what one run measures, validated
    contender    backends in processes of their own, with other settings
    pattern      inputs whose result is exact in any order, and their expected results
    collectives  one class per collective: buffers, the call, the expected result, its bandwidth
    barrier      whether a barrier waits for its last rank
    mpi          the same operations by MPI, and ranks that mpirun starts
    timing       how one operation is called and timed: on the host, eagerly, from a graph
    session      the groups of a rank, and agreement between the ranks
    measure      timing blocks and correctness checks of one size
    worker       what every rank executes
    launch       sets of ranks, one after the other where a backend fails
    report       text and tables
    plot         a picture of the results
"""
