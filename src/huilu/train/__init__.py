"""The learner: from a claim's episodes to updated weights, and the state that lets it go on after a crash.

Called by `assembly.model`, in the model process. It samples nothing, judges nothing, decides no release, and knows no
algorithm by name: `algo` says what to compute, this room computes it.
"""
