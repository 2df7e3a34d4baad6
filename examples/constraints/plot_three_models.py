"""
Hard and soft constraints on three models
=========================================

With three models a distribution is a point of a triangle, so a constraint can be drawn (figure 1 of the paper).
"""

# %%
# One expectation of three models
# -------------------------------
# A posterior assigns probabilities to three models, each with a score. The constraint is that the expected score is at
# least 1.2.

import matplotlib.pyplot as plt
import numpy as np

from regbayes import E, Finite, regularize

posterior = Finite(["A", "B", "C"], probabilities=[0.60, 0.28, 0.12])
score = {"A": 0.0, "B": 1.0, "C": 2.0}
at_least = E(score.get, name="score") >= 1.2

hard = regularize(posterior, at_least)
print(hard)

# %%
# Soft constraints
# ----------------
# A penalty allows a violation. As the penalty grows, the solution moves from the posterior to the solution of the
# hard constraint, which it reaches when the penalty exceeds the multiplier of the hard constraint.

penalties = [0.2, 0.4, 0.6, 0.8, 1.0, 1.2]
soft = [regularize(posterior, at_least.soft(penalty)) for penalty in penalties]
print("penalty      A      B      C   score  violation  multiplier  KL (nats)")
for penalty, r in zip([*penalties, np.inf], [*soft, hard], strict=True):
    shares = "".join(f"{share:7.3f}" for share in r.posterior.probabilities)
    mean = r.posterior.expectation(score.get)[0]
    print(f"{penalty:7.1f}{shares}{mean:8.3f}{max(0.0, 1.2 - mean):11.3f}{r.multipliers[0]:12.3f}{r.kl:11.3f}")

# %%
# The picture
# -----------
# Shaded parts of the triangle allow violations up to a given size.

CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])  # coordinates of models A, B and C


def feasible(least):
    """Return the corners of the part of the triangle where the expected score is at least ``least``."""
    scores, corners = np.array(list(score.values())), []
    for i, j in ((0, 1), (1, 2), (2, 0)):
        if scores[i] >= least:
            corners.append(CORNERS[i])
        if (scores[i] - least) * (scores[j] - least) < 0:
            t = (least - scores[i]) / (scores[j] - scores[i])
            corners.append((1 - t) * CORNERS[i] + t * CORNERS[j])
    return np.array(corners)


def draw_triangle(ax, title):
    steps = np.arange(1, 100) / 100
    b, c = (grid.ravel() for grid in np.meshgrid(steps, steps))
    b, c = b[b + c < 0.995], c[b + c < 0.995]
    q = np.column_stack([1 - b - c, b, c])
    divergence = np.sum(q * np.log(q / posterior.probabilities), axis=1)
    ax.tricontour(*(q @ CORNERS).T, divergence, levels=[0.02, 0.1, 0.25, 0.5, 0.8], colors="#b0b0b0", linewidths=0.8)
    ax.fill(*CORNERS.T, facecolor="none", edgecolor="black", linewidth=1.2)
    for name, corner, offset in zip("ABC", CORNERS, ((-0.05, -0.05), (0.05, -0.05), (0.0, 0.04)), strict=True):
        ax.text(*(corner + offset), name, ha="center", va="center", fontsize="large")
    ax.set(aspect="equal", xlim=(-0.1, 1.1), ylim=(-0.1, 1.05))
    ax.set_title(title, fontsize="medium")
    ax.axis("off")


fig, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
start, end = posterior.probabilities @ CORNERS, hard.posterior.probabilities @ CORNERS
draw_triangle(left, "hard constraint")
left.fill(*feasible(1.2).T, color="#0072b2", alpha=0.2, linewidth=0)
left.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "#0072b2", "shrinkA": 5, "shrinkB": 5})
draw_triangle(right, "soft constraint")
for violation in (0.6, 0.45, 0.3, 0.15, 0.0):
    right.fill(*feasible(1.2 - violation).T, color="#0072b2", alpha=0.09, linewidth=0)
path = np.array([r.posterior.probabilities for r in soft]) @ CORNERS
right.plot(*np.vstack([start, path]).T, "o-", color="#0072b2", markersize=5, linewidth=1)
for penalty, point in zip(penalties[::2], path[::2], strict=True):
    right.annotate(f"{penalty}", point, xytext=(-8, 5), textcoords="offset points", ha="right", fontsize="small")
for ax in (left, right):
    ax.plot(*start, "o", color="#555555", markersize=8)
    ax.annotate("posterior", start, xytext=(0, -16), textcoords="offset points", ha="center", fontsize="small")
    ax.plot(*end, "o", color="#d55e00", markersize=8)
    ax.annotate("solution", end, xytext=(10, 0), textcoords="offset points", va="center", fontsize="small")
plt.show()

# %%
# Gray lines are contours of the divergence from the posterior. Left: a hard constraint allows one set of
# distributions (shaded), and the solution is its point with the smallest divergence. Right: sets that allow larger
# violations, and the solutions for growing penalties.
