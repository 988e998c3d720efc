"""Models of the chunk pipelines: the algorithms' own operations, as an executor carries them out.

The operations come from trace_algorithms.cpp, so step numbers and their order are those of
kernels/algorithms. What an operation does to memory is said here: that of HostExecutor, with one
counter a rank, which all peers read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from program import ACQUIRE, RELEASE, Program, Thread

# Where counters wrap that are too narrow, in steps.
NARROW = 32
SLOTS = 8  # kSlots of kernels/protocol/signal.hpp; test_model_sites.py compares

Operation = tuple[str, ...]


@dataclass(frozen=True)
class Call:
    """One collective call; `ranks` holds each rank's operations."""

    name: str
    world_size: int
    in_place: bool
    root: int
    ranks: list[list[Operation]] = field(compare=False, hash=False)

    @property
    def steps(self) -> int:
        """The numbers that the call occupies, as the executor's took() counts them."""
        counted = {"open": 1, "publish": 1, "done": 1, "await": 2}
        return 1 + max(int(op[counted[op[0]]]) for op in self.ranks[0] if op[0] in counted)


def parse_calls(text: str) -> dict[tuple[str, int, bool, int], Call]:
    """The calls that trace_algorithms.cpp has printed, by name, ranks, in place, root."""
    calls: dict[tuple[str, int, bool, int], Call] = {}
    for line in text.splitlines():
        words = tuple(line.split())
        if words[0] == "call":
            key = (words[1], int(words[2]), words[3] == "1", int(words[4]))
            calls.setdefault(key, Call(*key, ranks=[])).ranks.append([])
        else:
            calls[key].ranks[-1].append(words)
    return calls


class PipelineModel:
    """Builds the program in which every rank carries out the calls one after the other."""

    def __init__(
        self,
        calls: list[Call],
        every_message: bool = False,
        early_done: int = 0,
        narrow: str = "",
    ) -> None:
        """every_message: waits may end on any message that ends them, else on the oldest such.

        Faults to plant: early_done: `done` is told for so many steps too many. narrow: counters
        that wrap at NARROW, "signals" or the "credit" that a rank remembers.
        """
        self._narrow_credit = NARROW if narrow == "credit" else 0
        self._calls = calls
        self._early_done = early_done
        self._world = calls[0].world_size
        names = " ".join(dict.fromkeys(call.name for call in calls))
        place = " in place" if calls[0].in_place else ""
        self.program = Program(f"host {names}{place}, {self._world} ranks")
        self.program.first_choice_only = not every_message
        self.program.wrap = NARROW if narrow == "signals" else 0
        self._versions = self._list_versions()
        for rank in range(self._world):
            _Rank(self, rank).run()

    def _list_versions(self) -> dict[tuple[object, int, int], int]:
        """(cell, call, step) to the version that its owner has published with that step."""
        versions = {}
        for owner in range(self._world):
            count: Counter[object] = Counter()
            epoch = 0
            for number, call in enumerate(self._calls):
                published = 0
                count.update(own_memory(call, owner))
                for op in call.ranks[owner]:
                    if is_write(op):
                        count[cell_of(op, epoch)] += 1
                    if op[0] == "publish":
                        for cell, version in count.items():
                            for step in range(published, int(op[1]) + 1):
                                versions[cell, number, step] = version
                        published = int(op[1]) + 1
                epoch += call.steps
        return versions

    @property
    def calls(self) -> list[Call]:
        return self._calls

    @property
    def early_done(self) -> int:
        return self._early_done

    def has_credit(self, credit: int, needed: int) -> bool:
        """Whether the remembered credit allows what needs `needed`, as has_reached() says."""
        if self._narrow_credit == 0:
            return credit >= needed
        return (credit - needed) % self._narrow_credit < self._narrow_credit // 2

    def version(self, cell: object, call: int, step: int) -> int:
        return self._versions[cell, call, step]


def is_write(op: Operation) -> bool:
    """Whether the operation writes shared data; all_to_all writes the head of a slot it opened."""
    return op[0] == "write"


def cell_of(op: Operation, epoch: int) -> object:
    """The cell that a read or write touches."""
    if op[1] == "memory":
        return ("memory", int(op[2]), int(op[3]))
    return ("slot", int(op[2]), (epoch + int(op[3])) % SLOTS, int(op[4]))


def own_memory(call: Call, rank: int) -> list[object]:
    """The cells of the rank's tensor that the call uses in place."""
    cells = {
        cell_of(op, 0)
        for ops in call.ranks
        for op in ops
        if op[0] in ("read", "write") and op[1] == "memory" and int(op[2]) == rank
    }
    return sorted(cells)


class _Rank:
    """One rank of a PipelineModel."""

    def __init__(self, model: PipelineModel, rank: int) -> None:
        self._model = model
        self._rank = rank
        self._peers = [p for p in range(len(model.calls[0].ranks)) if p != rank]
        self._thread: Thread = model.program.thread()
        self._count: Counter[object] = Counter()
        self._epoch = 0
        self._credit = 0

    def run(self) -> None:
        """All calls."""
        for number, call in enumerate(self._model.calls):
            self._heard: set[int] = set()
            self._step = 0
            for cell in own_memory(call, self._rank):  # the user writes its input
                self._write(cell)
            turns = call.name == "barrier" and number % 2 == 0
            if turns:  # every second barrier stands between a write and its readers
                self._write(("before", self._rank))
            self._thread.write(("record", self._rank, number), number + 1)
            for op in call.ranks[self._rank]:
                self._carry_out(op, number)
            self._end(call)
            for cell in own_memory(call, self._rank):  # the user reads its output
                self._thread.read(cell, self._count[cell])
            for peer in self._peers if turns else []:
                self._thread.read(("before", peer), number // 2 + 1)
            self._epoch += call.steps

    def _write(self, cell: object) -> None:
        self._count[cell] += 1
        self._thread.write(cell, self._count[cell])

    def _end(self, call: Call) -> None:
        target = self._epoch + call.steps
        if call.in_place:
            for peer in self._peers:
                self._await_done(peer, target, "host end")
            self._credit = target

    def _await_done(self, peer: int, target: int, site: str) -> None:
        self._thread.wait_ge(("done", peer), target, ACQUIRE, site, grants=True)

    def _carry_out(self, op: Operation, number: int) -> None:
        if op[0] == "open":
            self._open(int(op[1]))
        elif op[0] == "await":
            self._await(int(op[1]), int(op[2]), number)
        elif op[0] == "publish":
            self._tell("ready", int(op[1]) + 1, "host publish")
        elif op[0] == "done":
            self._tell("done", int(op[1]) + 1 + self._model.early_done, "host read_done")
        elif op[0] == "write":
            self._write(cell_of(op, self._epoch))
        elif op[0] == "read":
            self._read(op, number)

    def _open(self, step: int) -> None:
        needed = self._epoch + step + 1 - SLOTS
        if not self._model.has_credit(self._credit, needed):
            for peer in self._peers:
                self._await_done(peer, needed, "host open_slot")
            self._credit = needed

    def _await(self, peer: int, step: int, number: int) -> None:
        self._thread.wait_ge(("ready", peer), self._epoch + step + 1, ACQUIRE, "host await")
        if peer not in self._heard:
            self._heard.add(peer)
            self._thread.read(("record", peer, number), number + 1)

    def _tell(self, what: str, steps: int, site: str) -> None:
        # The exchange of post() is taken as no more than a release.
        self._thread.store((what, self._rank), self._epoch + steps, RELEASE, site)

    def _read(self, op: Operation, number: int) -> None:
        cell = cell_of(op, self._epoch)
        if int(op[2]) == self._rank:
            self._thread.read(cell, self._count[cell])
        else:
            step = int(op[3]) if op[1] == "slot" else self._step_of(op, number)
            self._thread.read(cell, self._model.version(cell, number, step))

    def _step_of(self, op: Operation, number: int) -> int:
        """The step whose data a read in place takes: that of the last wait for its owner."""
        ops = self._model.calls[number].ranks[self._rank]
        end = next(i for i, other in enumerate(ops) if other is op)
        return max(
            (i, int(o[2])) for i, o in enumerate(ops[:end]) if o[0] == "await" and o[1] == op[2]
        )[1]
