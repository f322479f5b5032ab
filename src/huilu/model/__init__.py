"""The model room: one decoder for the Llama family, its checkpoint formats, and the checks before loading them.

Called by `train`, `engine` and `assembly`. `decoder` and `hf` need torch; `spec`, `weights`, `gguf` and `resolve` do
not, so a small process can convert and check a model before anything heavy starts. Nothing here samples, learns or
serves.
"""
