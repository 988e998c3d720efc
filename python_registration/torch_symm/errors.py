"""The exceptions of wrong arguments.

Backends of PyTorch do not agree on the type of such an exception: ``ValueError``, ``TypeError`` for
a dtype, ``RuntimeError`` where a check of PyTorch's own C++ code finds it. Programs catch what
their backend raises, so these are all of that. Failures of a group are
``torch.distributed.DistBackendError``, and what symm does not have is ``NotImplementedError``; both
are ``RuntimeError`` in PyTorch already.
"""


class InvalidArgumentError(ValueError, RuntimeError):
    """An argument of a collective, a message or a handle is wrong. Nothing was sent, and the group
    goes on."""


class InvalidTypeError(InvalidArgumentError, TypeError):
    """The same where the dtype of a tensor is not that of the call's others."""
