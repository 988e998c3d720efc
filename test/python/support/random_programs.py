"""Programs of random calls over random groups, carried out against the sequential model.

A program is (world size, groups as lists of ranks, steps as dicts), the same on every rank.
Hypothesis shrinks those that tests draw; their examples are the same on every run, and
SYMM_RANDOM_EXAMPLES asks for more.
"""

import os
import random

import torch.distributed as dist
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

import calls
import model
from call import Call
from harness import IS_SYMM, new_group_in_order

ANY_CALL = [f for f in calls.EVERY_CALL if IS_SYMM or f not in calls.GLOO_LACKS]
ANY_DTYPE = model.DTYPES if IS_SYMM else model.GLOO_DTYPES
EDGES = [4095, 4096, 4097, 65535, 65536, 65537, 131071, 600001]


def ops_of(collective: int, dtype) -> list[str]:
    """What ANY_CALL[collective] may be asked for."""
    every_op = model.OPS if IS_SYMM else model.GLOO_OPS
    return [op for op in every_op if calls.accepts(ANY_CALL[collective], op, dtype)]


def random_program(seed: int, world_size: int):
    """The program of that seed, for soaks; tests draw theirs so that they can be shrunk."""
    rng = random.Random(seed)
    ranks = range(world_size)
    groups = [rng.sample(ranks, rng.randint(1, world_size)) for _ in range(rng.randint(0, 3))]
    steps = []
    for salt in range(rng.randint(5, 25)):
        collective, dtype = rng.randrange(len(ANY_CALL)), rng.choice(ANY_DTYPE)
        sizes = [rng.randint(0, 5), rng.randint(0, 3000), rng.choice(EDGES)]
        steps.append(
            {
                "collective": collective,
                "group": rng.randrange(-1, len(groups)),
                "dtype": dtype,
                "op": rng.choice(ops_of(collective, dtype)),
                "count": rng.choice(sizes),
                "aligned": rng.random() < 0.5,
                "async_op": rng.random() < 0.5,
                "salt": salt,
            }
        )
    return world_size, groups, steps


SIZES = st.one_of(st.integers(0, 5), st.integers(0, 3000), st.sampled_from(EDGES))


def examples(usual: int):
    """The settings of a test that draws programs."""
    return settings(
        max_examples=int(os.environ.get("SYMM_RANDOM_EXAMPLES", usual)),
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@st.composite
def programs(draw, world_sizes):
    """(world size, groups as lists of ranks, steps)."""
    world_size = draw(world_sizes)
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


@st.composite
def programs_over_hosts(draw, world_sizes):
    """(hosts, one letter a rank, at least two of them; groups; steps)."""
    world_size, groups, steps = draw(programs(world_sizes))
    letters = st.lists(st.sampled_from("abc"), min_size=world_size, max_size=world_size)
    hosts = "".join(draw(letters.filter(lambda drawn: len(set(drawn)) > 1)))
    return hosts, groups, steps


def carry_out(rank, world_size, groups, steps) -> list[str]:
    """What was found wrong with the calls of `rank`."""
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
    for group, ranks in made:
        if rank in ranks:
            dist.destroy_process_group(group)
    return problems
