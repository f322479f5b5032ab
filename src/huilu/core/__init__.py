"""The nouns, ids, ports and pure state machines that every room shares; no I/O, no torch."""
