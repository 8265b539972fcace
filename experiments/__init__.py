"""Models and measurements built on `remat_lab`; nothing in `remat_lab` or `solvers` depends on this package."""
