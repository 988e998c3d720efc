"""The models by protocol, with the bounds in which they are searched."""

from __future__ import annotations

from dataclasses import dataclass, field

import messages
import protocols
from lane_calls import (
    all_gather,
    all_reduce,
    all_reduce_of_one_hop,
    broadcast,
    gather,
    reduce,
    reduce_of_pair,
    reduce_scatter,
    reduce_to_root,
    scatter,
)
from lanes import LaneModel, lane_direct, lane_given_up, lane_sizes
from pipelines import Call, PipelineModel
from program import Program

EPOCHS = 3
# Of two ranks, in which a wait may end on any message that ends it. The others have too many states
# for that; their waits end on the oldest such message, which brings the least knowledge.
EVERY_MESSAGE = {"barrier", "all_gather_short", "broadcast_short"}


@dataclass
class Family:
    """Models of one protocol. Every site of theirs must be needed by one of them.

    `planted`: models with a fault that is no missing order, which must be found as well.
    """

    name: str
    models: list[Program]
    planted: list[Program] = field(default_factory=list)


def named(program: Program, fault: str) -> Program:
    """The program under a name that tells its planted fault."""
    program.name = f"{program.name} / {fault}"
    return program


def pipeline_family(calls: dict[tuple[str, int, bool, int], Call]) -> Family:
    """Chunk pipelines and barriers of the host: every algorithm three times."""
    family = Family("pipelines", [])
    for (name, world, _, root), call in calls.items():
        every = world == 2 and name in EVERY_MESSAGE
        if name.endswith("_short") and world > 2:
            continue
        if root == (world - 1 if is_rooted(name) else 0):
            family.models.append(PipelineModel([call] * EPOCHS, every).program)
    for world in (2, 3):
        rooted = [calls["broadcast", world, False, root] for root in range(world)]
        mixed = [rooted[0], calls["all_reduce_ring", world, False, 0], rooted[1]]
        family.models.append(PipelineModel(mixed).program)
    for name, world in (("broadcast", 2), ("broadcast", 3), ("gather", 2), ("scatter", 3)):
        early = PipelineModel([calls[name, world, False, 0]] * EPOCHS, early_done=1)
        family.planted.append(named(early.program, "done told a step too early"))
    # Rank 0 publishes alone for long; then rank 1 does, whose own counters stood still.
    from_0, from_1 = (calls["broadcast", 2, False, root] for root in range(2))
    for narrow, before in (("signals", 2), ("credit", 3)):
        late = PipelineModel([from_0] * before + [from_1] * 2, narrow=narrow)
        family.planted.append(named(late.program, f"narrow {narrow}"))
    return family


def is_rooted(name: str) -> bool:
    """Whether the collective has a root."""
    return name in {
        "broadcast",
        "broadcast_short",
        "gather",
        "scatter",
        "reduce_one_shot",
        "reduce_two_shot",
    }


def wire_family() -> Family:
    """Collectives over a wire: from and to everybody, from a root, to a root, and one by one."""
    calls = protocols.wire_calls
    all_of, from_, to = protocols.everybody, protocols.one_to_all, protocols.all_to_one
    rooted = [from_(2, 0)] * 5
    mixed = [all_of(2), from_(2, 0), from_(2, 0), to(2, 0), from_(2, 0), all_of(2)]
    mixed_of_3 = [from_(3, 0), all_of(3), to(3, 1), from_(3, 2)]
    pairs = [{(0, 1), (1, 0)}] * 2 + [{(1, 2), (2, 1)}] * 2 + [{(0, 1), (1, 0)}]
    return Family(
        "wire calls",
        [
            calls("everybody", 2, [all_of(2)] * 5),
            calls("one root", 2, rooted),
            calls("mixed", 2, mixed, words=1),
            calls("everybody", 3, [all_of(3)] * 4, words=1),
            calls("one root", 3, [from_(3, 0)] * 5, words=1),
            calls("to a root", 3, [to(3, 0)] * 4, words=1),
            calls("mixed", 3, mixed_of_3, words=1),
            calls("shares of some pairs", 3, pairs, words=1),
        ],
        [
            named(calls("one root", 2, rooted, sets=1), "one box a sender"),
            named(calls("everybody", 3, [all_of(3)] * 5, sets=1, words=1), "one box a sender"),
            named(calls("one root", 2, rooted, fault="split"), "data beside the word of its epoch"),
            named(calls("one root", 2, rooted, fault="early"), "done before the reads"),
            named(calls("mixed", 2, mixed, fault="heard"), "who was heard is taken to have ended"),
            named(calls("one root", 2, rooted, fault="silent"), "no done of who was not heard"),
            named(
                calls("shares of some pairs", 3, pairs, words=1, fault="absent"),
                "no done of who has no part",
            ),
        ],
    )


def lane(name: str, *facts: object, **options: object) -> Program:
    """A LaneModel's program, under a name that tells its planted fault."""
    program = LaneModel(name, *facts, **options).program
    return named(program, str(options["fault"])) if "fault" in options else program


def lane_family() -> Family:
    """Lanes of two ranks, one slice of three ranks, and what serves several peers from one rank."""
    mixed = [all_reduce([1, 2]), all_gather([2, 1]), scatter([0, 2], 0), reduce([1, 1], 1)]
    pair = [gather([0, 3], 0), gather([0, 0], 0), gather([0, 4], 0)]
    each = [all_gather([3, 3]), all_gather([2, 3])]
    slice_0 = [all_reduce([2, 0, 0], [0])] * 2
    return Family(
        "lanes",
        [
            lane("a piece to one rank", 2, pair, wide="sender placer", wrap=8),
            lane("all_gather", 2, each),
            lane("all_reduce", 2, [all_reduce([2, 2])] * 2),
            lane("mixed calls", 2, mixed),
            lane("all_gather, a chunk a call", 2, [all_gather([1, 1])] * 4),
            lane("reduce, a chunk a call", 2, [reduce_of_pair(1)] * 4),
            lane(
                "reduce to a root without a slice", 3, [reduce_to_root([0, 1, 1], 0)] * 2, peers=2
            ),
            lane("reduce", 2, [reduce_of_pair(2)] * 2),
            lane("a slice of all_reduce", 3, slice_0, wide="middle"),
            lane("broadcast", 3, [broadcast([0, 2, 2], 0)] * 2),
            lane("scatter", 3, [scatter([0, 3, 1], 0)] * 2, wide="sender", peers=2),
            lane("gather", 3, [gather([0, 3, 1], 0)] * 2, wide="placer", peers=2),
            lane_sizes([7, 9], [1, 2]),
            lane_sizes([7, 9, 0], [2, 1, 1]),
            lane_direct([4, 2]),
            lane_direct([1, 1, 3]),
            lane_given_up(),
        ],
        [
            lane("all_gather", 2, each, fault="posted early"),
            lane("all_gather", 2, each, fault="freed early"),
            lane("all_gather", 2, each, fault="a credit too many"),
            lane("all_gather", 2, each, fault="counts begin anew"),
            lane("a chunk a call", 2, [all_gather([1, 1])] * 4, fault="last slot kept"),
            lane("all_gather", 2, each, fault="one header a pair"),
            lane("all_gather", 2, each, fault="places first"),
            lane("reduce_scatter", 3, [reduce_scatter([3, 3, 3])], peers=2, fault="peers apart"),
            named(lane("all_reduce", 2, [all_reduce_of_one_hop([1, 1])]), "in place in one hop"),
            named(lane_sizes([7, 9, 0], [2, 1, 1], "header"), "one header a pair"),
            named(lane_sizes([7, 9, 0], [2, 1, 1], "silent"), "no chunk of an empty piece"),
            named(lane_direct([4, 2], "late"), "a target before the user's work"),
            named(lane_direct([1, 1, 3], "unnumbered"), "a target that names no call"),
        ],
    )


def lanes_of_three_family() -> Family:
    """Three ranks whose warps serve two peers at once, and two whose waits end on any message."""
    return Family(
        "lanes of three ranks",
        [
            lane("all_gather", 2, [all_gather([2, 2])] * 2, every_message=True),
            lane("reduce, a chunk a call", 2, [reduce_of_pair(1)] * 4, every_message=True),
            lane("all_gather", 3, [all_gather([3, 1, 2])], peers=2),
            lane("reduce_scatter", 3, [reduce_scatter([3, 3, 3])], peers=2),
            lane("two slices of all_reduce", 3, [all_reduce([1, 1, 0])], peers=2),
        ],
    )


def families(calls: dict[tuple[str, int, bool, int], Call]) -> list[Family]:
    """All protocols."""
    return [
        pipeline_family(calls),
        Family(
            "meetings of blocks",
            [protocols.meetings(2, threads=2, calls=3), protocols.meetings(3, threads=1)],
            [
                named(protocols.meetings(2, 2, fault="no barrier"), "no block barrier"),
                named(protocols.meetings(3, 1, fault="leaves alone"), "ranks that leave alone"),
            ],
        ),
        wire_family(),
        Family(
            "wire barriers",
            [protocols.copy_barriers(2), protocols.copy_barriers(3, calls=2)],
        ),
        Family(
            "messages",
            [
                messages.box_pipeline(4, 12),
                messages.message_chunks(2, 6, 1, 1, wide=True),
                messages.message_chunks(4, 8, 2, 3),
                messages.message_chunks(4, 12, 2, 2, wrap=8),
                messages.message_chunks(2, 6, 3, 1),
                messages.message_forms("LSSLSLLS", 2, 2),
                messages.message_forms("LMSLLMLS", 2, 2),
            ],
            [
                named(messages.box_pipeline(4, 12, "no barrier"), "a box freed by one thread"),
                *[
                    named(messages.message_chunks(4, 8, 2, 3, fault=fault), fault)
                    for fault in ["one count", "posted early", "freed early", "a credit too many"]
                ],
                *[
                    named(messages.message_forms(forms, 2, 2, "no position"), f"{forms} by arrival")
                    for forms in ["LS", "SL"]
                ],
            ],
        ),
        lane_family(),
        lanes_of_three_family(),
        Family(
            "signal pads",
            [
                protocols.pad_messages(),
                protocols.pad_barriers(2, False),
                protocols.pad_barriers(3, False),
                protocols.pad_barriers(3, True),
                protocols.pad_given_up(),
            ],
            [
                named(protocols.pad_barriers(2, False, fault="blind"), "puts that do not wait"),
                named(protocols.pad_barriers(3, False, fault="blind"), "puts that do not wait"),
                named(protocols.pad_given_up(withdraws=False), "a signal that is not withdrawn"),
            ],
        ),
        Family(
            "mailboxes",
            [
                protocols.mailbox_pipeline(name, 2, 6)
                for name in ("envelope", "clear-to-send", "data")
            ]
            + [protocols.mailbox_trays(2, 5)],
            [named(protocols.mailbox_trays(2, 5, copied_late=True), "a copy after its answer")],
        ),
        Family(
            "memory of a rank that gives up",
            [protocols.reads_of_a_rank_that_gives_up()],
            [
                named(protocols.reads_of_a_rank_that_gives_up("before"), "a look before the reads"),
                named(protocols.reads_of_a_rank_that_gives_up("after"), "told before the look"),
            ],
        ),
        Family("device call records", [protocols.device_records()]),
        Family("reports", [protocols.report()]),
        Family("sleep and wake", [protocols.wake_up()]),
    ]
