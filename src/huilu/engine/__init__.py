"""The embedded inference engine: continuous batching over a paged, prefix-shared KV cache, on the learner's weights.

Called by `assembly.model`. To read in one sitting, in this order: `blocks` (which block is whose), `requests`,
`scheduler` (who computes what next), `attention` (pages, and attention over them), `sampler`, `engine` (the step
that joins them). Nothing here trains, serves HTTP, or copies weights.
"""
