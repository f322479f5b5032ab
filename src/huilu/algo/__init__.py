"""The algorithms: advantages, losses, KL, aggregation, filters, packing. Pure functions, no state, no I/O, no model.

Called by `train`, which executes them without knowing an algorithm's name, and by whoever draws tasks (`filters`).
`losses`, `kl` and `methods` need torch; `advantages`, `aggregation`, `filters` and `packing` are plain Python.
A new algorithm is its settings in `config.tree`, one function, and one line in `methods.METHODS`.
"""
