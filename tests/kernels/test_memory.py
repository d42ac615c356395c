"""A kernel whose working memory cannot be allocated raises MemoryError and goes on to serve."""

from __future__ import annotations

import subprocess
import sys

import pytest

from statetrack.kernels.library import WHY_MISSING

pytest.importorskip("resource")

# One backward pass needs 2 x 128 MB; before it the process is limited to what it has and 16 MB.
LIMITED = """
import resource
import torch
from statetrack.ops import delta_rule

threads = int({threads})
torch.set_num_threads(threads)
warm = [torch.ones(2, 4, 2, 8) for _ in range(3)]
delta_rule(*warm, torch.ones(2, 4, 2), backend="native")  # its threads start

shape = 1, 2, 2, 2048
q, k, v = ((torch.arange(2 * 2 * 2048.0) % n / n).view(shape).requires_grad_() for n in (3, 5, 7))
beta = torch.full((1, 2, 2), 1e-3)
o, _ = delta_rule(q, k, v, beta, backend="native")
used = next(int(line.split()[1]) for line in open("/proc/self/status") if "VmSize" in line)
limits = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used * 1024 + (16 << 20), limits[1]))
try:
    torch.autograd.grad(o.sum(), (q, k, v), retain_graph=True)
    print("no error")
except MemoryError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, limits)
got = torch.autograd.grad(o.sum(), (q, k, v))
o, _ = delta_rule(q, k, v, beta, backend="torch")
expected = torch.autograd.grad(o.sum(), (q, k, v))
print(all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(got, expected, strict=True)))
"""


@pytest.mark.skipif(WHY_MISSING is not None, reason=f"no library: {WHY_MISSING}")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("threads", [1, 2])
def test_no_memory_for_a_kernel(threads):
    code = LIMITED.format(threads=threads)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "no memory for the native kernel recurrence_backward\nTrue\n"
