"""Random programs around products, compiled twenty to a module and compared with fp64."""
