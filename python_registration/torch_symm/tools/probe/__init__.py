"""Which operations of torch.distributed capture into a CUDA graph, checked by value.

Run it with ``python -m torch_symm.probe --help``. Every operation is called eagerly, captured on a
side stream and replayed several times; before each replay the captured tensors get new inputs and
poisoned outputs, and after it the outputs are compared with values that were worked out on the
host. Nothing runs between replay and comparison that could put a right value where the replay left
a wrong one.

Operations share a set of rank processes only as long as nothing goes wrong in it: after any
verdict but a good one, and after a death or a hang, the next operation gets fresh processes.

    config      what one run examines, validated
    operations  the operations: those of the bench, and further forms of them
    fused       those of torch_symm.ops, for groups of symm
    verdict     what can come of an examination, and which rank's result counts
    examine     the examination of one operation on one rank
    worker      what every rank executes
    launch      sets of ranks, one after the other where an operation fails
    report      the results as they come, and the summary
"""
