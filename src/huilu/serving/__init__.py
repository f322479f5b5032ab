"""How the rest of a run reaches a model: the protocol of the model process and its client. No torch."""
