"""Models of other packages on the kernels of this one; none of these packages is a dependency."""
