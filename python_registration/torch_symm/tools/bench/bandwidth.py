"""Algorithm bandwidth and bus bandwidth, as nccl-tests defines them.

Algorithm bandwidth is the size of the operation divided by its time. Bus bandwidth multiplies it
by a factor that makes the figure comparable with the speed of the links, whatever the number of
ranks ``n``:

    all_reduce                               2 (n - 1) / n
    all_gather, reduce_scatter, all_to_all     (n - 1) / n
    gather, scatter                            (n - 1) / n
    broadcast, reduce, sendrecv              1
    barrier                                  no bytes, hence 0

The size is that of the larger buffer of a rank: the whole vector for all_reduce, reduce,
broadcast and sendrecv, and the concatenation of all ranks' shares for the others.
"""

_FACTORS_OF_RANKS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "sendrecv": lambda n: 1.0,
    "barrier": lambda n: 0.0,
}


def bus_factor(collective: str, world_size: int) -> float:
    """Return the factor from algorithm bandwidth to bus bandwidth."""
    return _FACTORS_OF_RANKS[collective](world_size)


def bandwidths(
    collective: str, world_size: int, size_bytes: int, time_us: float
) -> tuple[float, float]:
    """Return algorithm and bus bandwidth in GB/s (10^9 bytes) of one call of ``time_us``."""
    algorithm = size_bytes / (time_us * 1e3) if time_us > 0 else 0.0
    return algorithm, algorithm * bus_factor(collective, world_size)
