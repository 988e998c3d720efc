"""Random sequences of collectives over random groups, against the sequential model.

One example is a program: a list of groups and a list of calls that every rank carries out in
order. Hypothesis shrinks a failing program to a short one. The examples are the same on every run
(derandomize); SYMM_RANDOM_EXAMPLES asks for more.
"""

import os

import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import calls
import model
from call import Call
from harness import (
    IS_SYMM,
    ON_CUDA,
    WORLD_SIZE,
    expect_no_mismatch,
    new_group_in_order,
    run_ranks,
)

EXAMPLES = int(os.environ.get("SYMM_RANDOM_EXAMPLES", "12"))
ANY_CALL = [f for f in calls.EVERY_CALL if IS_SYMM or f not in calls.GLOO_LACKS]
ANY_CALL = [f for f in ANY_CALL if not ON_CUDA or f not in calls.NOT_ON_CUDA]
SIZES = st.one_of(
    st.integers(0, 5),
    st.integers(0, 3000),
    st.sampled_from([4095, 4096, 4097, 65535, 65536, 65537, 131071, 600001]),
)


@st.composite
def programs(draw):
    world_size = draw(st.integers(2, WORLD_SIZE))
    ranks = st.lists(st.integers(0, world_size - 1), min_size=1, max_size=world_size, unique=True)
    groups = draw(st.lists(ranks, min_size=0, max_size=3))
    steps = []
    for salt in range(draw(st.integers(5, 25))):
        collective = draw(st.integers(0, len(ANY_CALL) - 1))
        dtype = draw(st.sampled_from(model.DTYPES if IS_SYMM else model.GLOO_DTYPES))
        every_op = model.OPS if IS_SYMM else model.GLOO_OPS
        ops = [op for op in every_op if calls.accepts(ANY_CALL[collective], op, dtype)]
        steps.append(
            {
                "collective": collective,
                "group": draw(st.integers(-1, len(groups) - 1)),
                "dtype": dtype,
                "op": draw(st.sampled_from(ops)),
                "count": draw(SIZES),
                "aligned": draw(st.booleans()),
                "async_op": draw(st.booleans()),
                "salt": salt,
            }
        )
    return world_size, groups, steps


def carry_out(rank, world_size, groups, steps):
    everybody = (dist.group.WORLD, list(range(world_size)))
    made = [new_group_in_order(ranks) for ranks in groups]
    problems = []
    for number, step in enumerate(steps):
        fields = dict(step)
        collective = ANY_CALL[fields.pop("collective")]
        index = fields.pop("group")
        group, ranks = everybody if index < 0 else made[index]
        if rank not in ranks or (len(ranks) == 1 and collective in calls.NEEDS_A_PEER):
            continue
        if collective in calls.POINT_TO_POINT:
            fields["count"] = min(fields["count"], 70000)  # they keep many buffers at a time
        call = Call(group=group, ranks=ranks, me=ranks.index(rank), **fields)
        collective(call)
        problems += [f"step {number} {collective.__name__} {line}" for line in call.finish()]
    return problems


@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(programs())
def test_random_programs(program):
    world_size, groups, steps = program
    expect_no_mismatch(run_ranks(carry_out, world_size, world_size, groups, steps, timeout=20))
