"""RA2, swapped: U and V exchanged in the alignment grid, so left and right singular vectors are
compared with each other.
"""

from .ra2_alignment import draw_grid


def draw(inputs):
    """`inputs`: one spectra.nc. Grid of |V_j^T J_i U_j| over all blocks i (rows), j (columns); one
    cell enlarged.
    """
    return draw_grid(
        inputs[0], "alignment_matrix_swapped", r"$|V_j^\top J_i U_j|$", "alignment_swapped"
    )
