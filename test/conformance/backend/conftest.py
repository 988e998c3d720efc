"""The pytest process is the zygote of the ranks, as in test/python."""

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
