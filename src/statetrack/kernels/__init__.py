"""The native kernels as seen from Python.

`interface.h` declares their arguments, `interface` reads it, `library` loads the compiled code and
calls it, `program` records several calls to run them as one, `operators` registers kernels with
torch and `transforms` says when they cannot serve.
"""
