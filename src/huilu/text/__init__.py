"""The text room: tokeniser, chat template and stop strings, by `tokenizers` and `jinja2`; no torch, no transformers.

Called by the control plane, the engine and the servers. Ids that were sampled are never tokenised again here.
"""
