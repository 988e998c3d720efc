"""Processes for the tools and the tests of a backend: one process a rank, supervised.

A tool's process starts the ranks and never joins a group itself, so a rank that dies or hangs
costs its own piece of work and not the tool: it ends the set of ranks and starts a fresh one for
what is left. Under torchrun every process that it started watches one rank.

    launched    what torchrun (or the like) has started, read from the environment
    process     what runs in a rank's process, and what it tells its supervisor
    supervisor  starts a set of ranks, listens to them, ends them
    job         sets of ranks, one after the other, that do what a tool's job asks for
    session     what the work of one rank shares: its device and the control group
    device      the device of a rank
    graph       capture of a CUDA graph that survives a failing operation
"""
