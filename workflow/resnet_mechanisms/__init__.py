"""Why do residual networks work? Residual Alignment, shattered gradients and degradation, measured.

The library behind the workflow. It knows nothing of Snakemake and can be used from a notebook; each
module opens with what it computes, from which paper and in which convention.

    from resnet_mechanisms import residual_alignment
"""

__version__ = "0.1.0"
__all__ = ["residual_alignment"]


def __getattr__(name):
    # Not before it is asked for: torch takes seconds, and much of the library does without.
    if name == "residual_alignment":
        from .analysis import residual_alignment

        return residual_alignment
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
