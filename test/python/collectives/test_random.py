"""Random sequences of collectives over random groups, against the sequential model."""

from hypothesis import given
from hypothesis import strategies as st

from harness import WORLD_SIZE, expect_no_mismatch, run_ranks
from random_programs import carry_out, examples, programs


@examples(12)
@given(programs(st.integers(2, WORLD_SIZE)))
def test_random_programs(program):
    world_size, groups, steps = program
    expect_no_mismatch(run_ranks(carry_out, world_size, world_size, groups, steps, timeout=20))
