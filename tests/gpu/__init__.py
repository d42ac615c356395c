"""The kernels for GPUs, on machines that have none."""
