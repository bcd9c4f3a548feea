"""Logits β w_j·z of random class weights without the weight vectors: only scalars are drawn for each class.

Seen from a fixed unit vector z, a draw w of a law symmetric about μ is w·z = t cos θ + √(1−t²) sin θ u, where
cos θ = μ·z, t is the draw's cosine to μ and u the first coordinate of a uniform direction on S^(n−2). Given
z, every class has its own t and u: the joint law of independent w_j. Memory is (draws, batch, classes).
"""

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from spaceform.heads._kernels.angle_table import AngleTable, first_coordinate


def weight_logits(
    mu: Float[Tensor, "batch dim"],
    cos: Float[Tensor, "batch draws"],
    sin: Float[Tensor, "batch draws"],
    v: Float[Tensor, "batch pairs dim"],
    weight: Float[Tensor, "classes dim"],
    beta: Float[Tensor, ""],
    table: AngleTable,
    generator: Generator | None,
) -> Float[Tensor, "draws batch classes"]:
    """β w_j·z for z = cos μ ± sin v, with new w_j ~ vMF(w̃_j/‖w̃_j‖, ‖w̃_j‖) for every draw and example.

    Draw s lies on the side of v_s for s < pairs, and of −v_{s − pairs} for the others.
    """
    pairs, draws = v.shape[1], cos.shape[1]
    kappa = torch.linalg.vector_norm(weight, dim=1)
    # The direction of a zero weight does not matter: its draws are uniform.
    inverse = kappa.masked_fill(kappa == 0, torch.inf).reciprocal()
    along, across = (mu @ weight.T).mul_(inverse), torch.matmul(v.transpose(0, 1), weight.T).mul_(inverse)
    c, s = cos.T[..., None], sin.T[..., None]
    angle = c * along
    angle[:pairs].addcmul_(s[:pairs], across)
    angle[pairs:].addcmul_(s[pairs:], across[: draws - pairs], value=-1)
    noise = angle.new_empty(2, *angle.shape).normal_(generator=generator)
    t, rest = table.draw(noise[0], kappa)
    logits = t.mul_(angle)
    rest.mul_(first_coordinate(noise[1], mu.shape[1]))
    return logits.addcmul_(rest, angle.square_().neg_().add_(1).clamp_min_(0).sqrt_()).mul_(beta)
