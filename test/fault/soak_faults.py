"""Soaks: random programs for a time that is given, each result compared bit by bit with the
sequential model; and the C++ soak in builds with sanitizers."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import random_programs
from harness import WORLD_SIZE
from rank_processes import describe, start_ranks
from trials import LONG, Progress, Trial, fresh_setup

ROOT = Path(__file__).resolve().parents[2]
EPISODE = 30.0  # seconds that the same processes live
HANG = 60.0
FIRST_SEED = int(os.environ.get("SYMM_SOAK_SEED", "1"))
STRIDE = 1_000_000  # seeds between two episodes


def _episode(rank, setup, progress, seed):
    """Programs until the injector ends it: [(seconds, steps, problems)]."""
    torch.set_num_threads(1)
    setup.join(rank)
    done = []
    while len(done) < progress.end():
        start = time.monotonic()
        program = random_programs.random_program(seed + len(done), setup.world_size)
        problems = random_programs.carry_out(rank, *program)
        done.append((time.monotonic() - start, len(program[2]), problems))
        progress.set(rank, len(done))
        progress.choose_end(rank, len(done), 3)
    return done


def random_programs_of(seed: int, world: int, seconds: float) -> Iterator[Trial]:
    """One episode; a Trial for each program."""
    progress, told, end = Progress(world), 0, time.monotonic() + seconds
    with fresh_setup(world, LONG) as setup:
        ranks = start_ranks(_episode, world, (setup, progress, seed))
        last_step = time.monotonic()
        while len(ranks.running()) == world and time.monotonic() - last_step < HANG:
            ranks.listen(0.02)
            if time.monotonic() > end:
                progress.ask_to_end()
            while told < progress.furthest() - 1:
                told, last_step = told + 1, time.monotonic()
                yield Trial(True, [])  # what was wrong with it is told at the end
        reports = ranks.finish(HANG if len(ranks.running()) < world else 0)
    if not all(report.returned for report in reports):
        yield Trial(False, [], f"seeds from {seed}, {world} ranks: {describe(reports)}")
        return
    lists = [report.value for report in reports]
    problems = [
        f"seed {seed + number}, {world} ranks: rank {rank}: {line}"
        for rank, programs in enumerate(lists)
        for number, (_, _, lines) in enumerate(programs)
        for line in lines
    ]
    seconds = [took for took, _, _ in lists[0]]
    for _ in range(len(seconds) - told - 1):
        yield Trial(True, [])
    facts = {"calls": sum(steps for _, steps, _ in lists[0])}
    yield Trial(not problems, seconds, "\n".join(problems[:20]), facts)


def random_programs_for(minutes: float) -> Iterator[Trial]:
    """Episodes of new processes, with 2 to WORLD_SIZE ranks in turn."""
    end, calls, episode = time.monotonic() + 60 * minutes, 0, 0
    worlds = list(range(2, WORLD_SIZE + 1))
    while (left := end - time.monotonic()) > 0 or episode == 0:
        world = worlds[episode % len(worlds)]
        seed = FIRST_SEED + episode * STRIDE
        for trial in random_programs_of(seed, world, min(left, EPISODE)):
            calls += trial.facts.pop("calls", 0)
            trial.facts = {"seeds": f"{FIRST_SEED} + {STRIDE} * episode + program"}
            trial.facts |= {"episodes": episode + 1, "calls": calls}
            yield trial
        episode += 1


# The builds of `make asan` and `make tsan`.
SANITIZERS = {"asan": "address,undefined", "tsan": "thread"}
PROGRAM = "symm_multirank_tests"


def _build(name: str) -> Path:
    """The multi-rank tests with that sanitizer; compiles what is not up to date."""
    folder = ROOT / "build" / name
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DSYMM_BUILD_TORCH=OFF", "-DSYMM_BUILD_PYTHON=OFF"]
    options += [f"-DSYMM_SANITIZE={SANITIZERS[name]}", f"-DPython3_EXECUTABLE={sys.executable}"]
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *options]
    compile_it = ["cmake", "--build", str(folder), "--target", PROGRAM, "-j", str(os.cpu_count())]
    for command in (configure, compile_it):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}{done.stderr}")
    return folder / "test" / PROGRAM


def under(name: str) -> Callable[[float], Iterator[Trial]]:
    """The C++ soak in that build, in runs of a minute with seeds of their own."""

    def run(minutes: float) -> Iterator[Trial]:
        try:
            program = _build(name)
        except (OSError, RuntimeError) as error:
            yield Trial(False, [], str(error))
            return
        end, number, calls = time.monotonic() + 60 * minutes, 0, 0
        while (left := end - time.monotonic()) > 0:
            seconds, seed = min(60.0, left), FIRST_SEED + number
            env = {**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"}
            env |= {"SYMM_SOAK_SECONDS": str(max(1, round(seconds))), "SYMM_SOAK_SEED": str(seed)}
            command, start = [str(program), "--gtest_filter=Soak.*"], time.monotonic()
            try:
                done = subprocess.run(
                    command, env=env, capture_output=True, text=True, timeout=seconds + 4 * HANG
                )
                failed = done.returncode != 0
                output = done.stdout + done.stderr
            except subprocess.TimeoutExpired as error:
                failed, output = True, f"it hung: {error}"
            took = time.monotonic() - start
            calls += sum(int(n) for n in re.findall(r"(\d+) calls a rank", output))
            facts = {"seeds": f"{FIRST_SEED} to {seed}", "calls": calls}
            yield Trial(not failed, [took], f"seed {seed}: {output[-4000:]}", facts)
            number += 1

    return run
