"""Log densities that run without a compiler: a tape of PyTensor's operations, and the loop that runs any tape."""
