"""Why do residual networks work? Residual Alignment, shattered gradients and degradation, measured.

The library behind the workflow. It knows nothing of Snakemake and can be used from a notebook; each
module opens with what it computes, from which paper and in which convention.
"""

__version__ = "0.1.0"
