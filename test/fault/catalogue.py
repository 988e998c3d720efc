"""Every fault that is injected, by its name: what it is, who injects it, and how often."""

import dataclasses
from collections.abc import Callable, Iterator

import cycle_faults
import graph_faults
import host_faults
import hostile_rank_faults
import hostile_store_faults
import limit_faults
import misuse_faults
import namespace_faults
import order_faults
import process_faults
import repeat_faults
import soak_faults
import stranger_faults
from harness import ON_CUDA
from trials import Trial


@dataclasses.dataclass(frozen=True)
class Fault:
    """`run(trials)` gives a Trial for each; where they are independent, `run(trials, first)` those
    from number `first` on. A soak's trials are the minutes that it takes, and it gives a Trial for
    each program."""

    text: str
    run: Callable[..., Iterator[Trial]]
    whole: int  # trials of --all
    short: int  # of `make test`
    p99_limit: float | None = None  # seconds
    is_soak: bool = False
    is_independent: bool = False


def each(text: str, trial: Callable[[int], Trial], whole: int, short: int, limit=None) -> Fault:
    """A fault whose trials are independent of each other."""

    def run(trials: int, first: int = 0) -> Iterator[Trial]:
        for index in range(first, first + trials):
            try:
                yield trial(index)
            except Exception as error:
                yield Trial(False, [], f"{type(error).__name__}: {error}")

    return Fault(text, run, whole, short, limit, is_independent=True)


KILLED = "kill -9 in a collective", process_faults.killed_in_a_collective
READ = "kill -9 while peers read its memory", process_faults.killed_while_peers_read
AFTER_A_KILL = "fresh processes after it", process_faults.fresh_processes_after_a_kill
STOPPED = "SIGSTOP beyond the time-out", process_faults.stopped_beyond_the_timeout
CONTINUED = "SIGSTOP for T/2, SIGCONT", process_faults.stopped_for_half_the_timeout
IN_SET_UP = "kill -9 in init, split, destroy", process_faults.killed_during_set_up
ENDED = "exit, abort, exception, _exit", process_faults.ended_in_another_way
DIFFERENT = "ranks make different calls", misuse_faults.different_calls
ABORTED = "abort() on one rank", process_faults.aborted_on_one_rank
REBUILT = "group rebuilt after an error", cycle_faults.rebuilt_after_errors
ALL_KILLED = "every rank killed", cycle_faults.every_rank_killed
GROUPS = "new_group and destroy", cycle_faults.groups_made_and_destroyed
LIMITED = "low limits of a process", limit_faults.limited_rank
FORKED = "fork after init", misuse_faults.forked_after_init
AWKWARD = "awkward tensors", misuse_faults.awkward_tensors
ORDERS = "groups in opposite order", order_faults.opposite_orders
STRANGERS = "strangers at the socket", stranger_faults.strangers_during_set_up
STORES = "hostile Store values", hostile_store_faults.hostile_store
RANKS = "hostile ranks", hostile_rank_faults.hostile_rank
CONFINED = "no ptrace, pid namespaces", namespace_faults.confined_ranks
ON_A_HOST = "kill -9 on one of two hosts", host_faults.killed_on_a_host
STORE_GONE = "the Store of two hosts gone", host_faults.store_gone
CUT = "the wire between hosts cut", host_faults.cut_between_hosts
SOAK = "random programs", soak_faults.random_programs_for
SAME_BITS = "same bits every way", repeat_faults.same_bits

ON_CPU = {
    "F1": each(*KILLED, 1000, 11, 0.1),
    "F1-read": each(*READ, 200, 4, 0.1),
    "F3": each(*AFTER_A_KILL, 100, 1),
    "F4": each(*STOPPED, 50, 2, 2.0),
    "F5": each(*CONTINUED, 50, 2),
    "F6": each(*IN_SET_UP, 200, 4, 2.0),
    "F7": each(*ENDED, 100, 4, 0.1),
    "F8": each(*DIFFERENT, 50, 7, 2.0),
    "F9": each(*ABORTED, 100, 3, 1.0),
    "F10": Fault(*REBUILT, 100, 12),
    "F11": Fault(*ALL_KILLED, 1000, 12),
    "F12": Fault(*GROUPS, 10_000, 150),
    "F13": each(*LIMITED, limit_faults.VARIANTS, 8),
    "F14": each(*FORKED, 50, 8),
    "F15": each(*AWKWARD, 50, 12),
    "F16": each(*ORDERS, 60, 4),
    "F17-strangers": each(*STRANGERS, 50, len(stranger_faults.STRANGERS)),
    "F17-stores": each(*STORES, 900, 40),
    "F17-ranks": each(*RANKS, hostile_rank_faults.VARIANTS, 12),
    "F18": each(*CONFINED, 4 * len(namespace_faults.KINDS), len(namespace_faults.KINDS)),
    "F19": each(*ON_A_HOST, 50, 6, 1.0),
    "F19-store": each(*STORE_GONE, 50, 3, 3.0),
    "F20": Fault(*SOAK, 60, 0.05, is_soak=True),
    "F20-asan": Fault("the same in C++, ASan", soak_faults.under("asan"), 60, 0, is_soak=True),
    "F20-tsan": Fault("the same in C++, TSan", soak_faults.under("tsan"), 60, 0, is_soak=True),
    "F21": each(*SAME_BITS, 100, 2),
}
if host_faults.has_wires():  # else this process may not make network namespaces
    ON_CPU["F19-wire"] = each(*CUT, 50, 2, 3.0)
# What a GPU makes different; F4's stopped process would leave its kernels running there, and every
# rank of every trial makes a context first.
OF_CUDA = {
    "F1": each(*KILLED, 100, 11, 1.0),
    "F2": each("kill -9 in a graph's replay", graph_faults.killed_in_a_replay, 100, 9, 1.0),
    "F3": each(*AFTER_A_KILL, 10, 2),
    "F4": each("a rank never calls", misuse_faults.never_called, 11, 2, 2.0),
    "F8": each(*DIFFERENT, 21, 7, 2.0),
    "F9": each(*ABORTED, 21, 3, 1.0),
    "F10": Fault(*REBUILT, 100, 8),
    "F16": each(*ORDERS, 16, 4),
    "F20": Fault(*SOAK, 10, 0.2, is_soak=True),
    "F21": each(*SAME_BITS, 20, 2),
}
FAULTS = OF_CUDA if ON_CUDA else ON_CPU
