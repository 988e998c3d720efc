import os
import sys
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

_here = Path(__file__).resolve().parent
sys.path[:0] = [str(_here), str(_here.parent / "python")]
