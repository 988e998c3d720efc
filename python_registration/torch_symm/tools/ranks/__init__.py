"""Processes for the tools that measure and examine a backend: one process a rank, watched.

A tool's process starts the ranks and never joins a group itself, so a rank that dies or hangs
costs its own piece of work and not the tool: the supervisor ends the set of ranks and starts a
fresh one for what is left. Under torchrun every process that it started watches one rank.

    launched    what torchrun (or the like) has started, read from the environment
    process     what runs in a rank's process, and what it tells its watcher
    supervisor  starts sets of ranks, watches them, ends them
    device      the device of a rank
    graph       capture of a CUDA graph that survives a failing operation
"""
