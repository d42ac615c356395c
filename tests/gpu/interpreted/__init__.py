"""Kernels run by Triton's interpreter; `make test-gpu` sets TRITON_INTERPRET=1."""
