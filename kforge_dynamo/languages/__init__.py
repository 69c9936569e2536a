"""The programming models that kernels are written in; one file each, `table` lists them."""
