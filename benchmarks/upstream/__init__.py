"""PyTorch's own tests of torch.compile, run with kforge in Inductor's place."""
