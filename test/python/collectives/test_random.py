"""Random sequences of collectives over random groups, against the sequential model.

One example is a program: a list of groups and a list of calls that every rank carries out in
order. Hypothesis shrinks a failing program to a short one. The examples are the same on every run
(derandomize); SYMM_RANDOM_EXAMPLES asks for more.
"""

import os

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from harness import WORLD_SIZE, expect_no_mismatch, run_ranks
from random_programs import ANY_CALL, ANY_DTYPE, EDGES, carry_out, ops_of

EXAMPLES = int(os.environ.get("SYMM_RANDOM_EXAMPLES", "12"))
SIZES = st.one_of(
    st.integers(0, 5),
    st.integers(0, 3000),
    st.sampled_from(EDGES),
)


@st.composite
def programs(draw):
    world_size = draw(st.integers(2, WORLD_SIZE))
    ranks = st.lists(st.integers(0, world_size - 1), min_size=1, max_size=world_size, unique=True)
    groups = draw(st.lists(ranks, min_size=0, max_size=3))
    steps = []
    for salt in range(draw(st.integers(5, 25))):
        collective = draw(st.integers(0, len(ANY_CALL) - 1))
        dtype = draw(st.sampled_from(ANY_DTYPE))
        steps.append(
            {
                "collective": collective,
                "group": draw(st.integers(-1, len(groups) - 1)),
                "dtype": dtype,
                "op": draw(st.sampled_from(ops_of(collective, dtype))),
                "count": draw(SIZES),
                "aligned": draw(st.booleans()),
                "async_op": draw(st.booleans()),
                "salt": salt,
            }
        )
    return world_size, groups, steps


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
