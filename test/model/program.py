"""Programs for the machine of machine.h: a list of instructions for each thread of a model.

Every instruction that orders memory, and every wait that another rank's progress grants, bears the
name of a site: a place in the code (sites.py). Breaking a site gives a mutant of the program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

KINDS = [
    *["LOAD", "STORE", "EXCHANGE", "ADD", "CAS", "TRY", "WAIT_GE", "WAIT_EQ", "FENCE"],
    *["ARRIVE", "DEPART"],
    *["WRITE", "READ", "SKIP_NE", "SKIP_LT", "SKIP", "EXPECT", "SLEEP", "WAKE_IF", "END"],
]
RELAXED, ACQUIRE, RELEASE, SEQ_CST = 0, 1, 2, 4
ORDER_NAMES = {ACQUIRE: "acquire", RELEASE: "release", SEQ_CST: "seq_cst"}


@dataclass(frozen=True)
class Instruction:
    """One instruction. `grants`: a wait without which the thread would be too far ahead.

    A barrier with a site is such a wait.
    """

    kind: str
    a: int = 0
    b: int = 0
    c: int = 0
    order: int = RELAXED
    site: str = ""
    grants: bool = False


@dataclass(frozen=True)
class Mutation:
    """One way to break a site: take an order from it, or the wait itself (order RELAXED)."""

    site: str
    order: int

    def __str__(self) -> str:
        if self.order == RELAXED:
            return f"{self.site}: no wait"
        return f"{self.site}: not {ORDER_NAMES[self.order]}"


@dataclass
class Program:
    """The threads of one model, by the names of its locations and cells.

    `wrap`: where its counters wrap, a power of two; 0 for counters that are wide enough.
    """

    name: str
    threads: list[list[Instruction]] = field(default_factory=list)
    first_choice_only: bool = False
    wrap: int = 0
    locations: dict[object, int] = field(default_factory=dict)
    cells: dict[object, int] = field(default_factory=dict)
    barriers: dict[object, int] = field(default_factory=dict)

    def thread(self) -> Thread:
        """A new thread, without instructions."""
        self.threads.append([])
        return Thread(self, self.threads[-1])

    def mutations(self) -> list[Mutation]:
        """All ways to break one site of this program."""
        found = {}
        for op in (op for thread in self.threads for op in thread if op.site):
            for order in ORDER_NAMES:
                if op.order & order:
                    found[Mutation(op.site, order)] = None
            if op.grants:
                found[Mutation(op.site, RELAXED)] = None
        return list(found)

    def broken(self, mutation: Mutation) -> Program:
        """This program with one site broken."""

        def change(op: Instruction) -> Instruction:
            if op.site != mutation.site:
                return op
            if mutation.order == RELAXED:
                return replace(op, kind="FENCE", order=RELAXED) if op.grants else op
            order = op.order & ~mutation.order
            # Without the one total order an access still acquires and releases.
            return replace(op, order=order | 3 if mutation.order == SEQ_CST else order)

        threads = [[change(op) for op in thread] for thread in self.threads]
        return replace(self, name=f"{self.name} / {mutation}", threads=threads)

    def most_messages(self) -> int:
        """The most that a location can have, of which the first is its initial value."""
        stores = ("STORE", "EXCHANGE", "ADD", "CAS", "TRY")
        places = [op.a for thread in self.threads for op in thread if op.kind in stores]
        return 1 + max((places.count(place) for place in set(places)), default=0)

    def text(self) -> str:
        """What machine.h reads."""
        remembers = any(
            op.kind == "FENCE" and op.order & ACQUIRE for thread in self.threads for op in thread
        )
        lines = [f"{int(self.first_choice_only)} {int(remembers)} {self.wrap}"]
        for thread in self.threads:
            lines.append(str(len(thread) + 1))
            lines.extend(
                f"{KINDS.index(op.kind)} {op.order} {op.a} {op.b} {op.c}"
                for op in (*thread, Instruction("END"))
            )
        return "\n".join(lines) + "\n"


class Thread:
    """Appends instructions to one thread of a program."""

    def __init__(self, program: Program, ops: list[Instruction]) -> None:
        self._program = program
        self._ops = ops

    def _add(self, kind: str, *operands: int, **facts: object) -> None:
        self._ops.append(Instruction(kind, *operands, **facts))

    def _location(self, name: object) -> int:
        return self._program.locations.setdefault(name, len(self._program.locations))

    def _cell(self, name: object) -> int:
        return self._program.cells.setdefault(name, len(self._program.cells))

    def load(self, location: object, register: int, order: int = RELAXED, site: str = "") -> None:
        """register := what the location holds in this thread's eyes."""
        self._add("LOAD", self._location(location), register, order=order, site=site)

    def store(self, location: object, value: int, order: int = RELAXED, site: str = "") -> None:
        """The location := value."""
        self._add("STORE", self._location(location), value % 256, order=order, site=site)

    def exchange(self, location: object, value: int, order: int, site: str = "") -> None:
        """As store, by a read-modify-write."""
        self._add("EXCHANGE", self._location(location), value, order=order, site=site)

    def add(self, location: object, value: int, order: int, site: str = "") -> None:
        """The location += value, by a read-modify-write."""
        self._add("ADD", self._location(location), value, order=order, site=site)

    def swap(self, location: object, expected: int, value: int, order: int, site: str = "") -> None:
        """Tries to swap until the location holds what is expected."""
        self._add("CAS", self._location(location), expected, value, order=order, site=site)

    def try_swap(
        self, location: object, expected: int, value: int, order: int, site: str = ""
    ) -> None:
        """Swaps once if the location holds what is expected; register 3 := what it held."""
        self._add("TRY", self._location(location), expected, value, order=order, site=site)

    def wait_ge(
        self, location: object, value: int, order: int, site: str = "", grants: bool = False
    ) -> None:
        """Polls until the location has reached the value."""
        if value > 0:
            self._add(
                "WAIT_GE", self._location(location), value, order=order, site=site, grants=grants
            )

    def wait_eq(self, location: object, value: int, order: int = RELAXED, site: str = "") -> None:
        """Polls until the location holds exactly the value."""
        self._add("WAIT_EQ", self._location(location), value, order=order, site=site)

    def fence(self, order: int, site: str = "") -> None:
        """A fence of this thread."""
        self._add("FENCE", order=order, site=site)

    def block_barrier(self, name: object, threads: int, site: str = "") -> None:
        """The barrier of a block of threads, or of a warp."""
        index = self._program.barriers.setdefault(name, len(self._program.barriers))
        self._add("ARRIVE", index, site=site, grants=bool(site))
        self._add("DEPART", index, threads, site=site, grants=bool(site))

    def write(self, cell: object, version: int) -> None:
        """Writes data that is not atomic."""
        self._add("WRITE", self._cell(cell), version)

    def read(self, cell: object, version: int) -> None:
        """Reads data that is not atomic, and must find that version of it."""
        self._add("READ", self._cell(cell), version)

    def expect(self, register: int, value: int) -> None:
        """The register must hold the value."""
        self._add("EXPECT", register, value)

    def sleep(self, location: object, register: int) -> None:
        """futex_wait: sleeps unless the location differs from the register."""
        self._add("SLEEP", self._location(location), register, order=SEQ_CST)

    def wake_if(self, register: int) -> None:
        """futex_wake where the register is not 0."""
        self._add("WAKE_IF", register)

    def if_equal(self, register: int, value: int, body: Callable[[], None]) -> None:
        """Runs what `body` appends where the register holds the value."""
        at = len(self._ops)
        self._add("SKIP_NE", register, value)
        body()
        self._ops[at] = replace(self._ops[at], c=len(self._ops))
