"""The Triton kernels compiled ahead of time for GPUs, without one."""
