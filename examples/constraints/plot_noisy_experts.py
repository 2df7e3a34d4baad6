"""
Experts of unknown reliability
==============================

Learn how much each piece of knowledge counts.

Eight experts each state an expectation. Two of them are badly wrong, and nobody knows which. A hard constraint for
each statement would follow the wrong ones too. This example learns a weight for each statement together with the
posterior: robust RegBayes, as the paper calls it in remark 3.
"""

# %%
# The statements
# --------------
# Five quantities have a wide Gaussian posterior. Each statement is the value of a linear combination of them, with a
# small error, except for two statements that are off by five.

import matplotlib.pyplot as plt
import numpy as np

from regbayes import E, Gaussian, empirical_bayes, regularize


def simulate(seed):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=5)
    combinations = rng.normal(size=(8, 5))
    stated = combinations @ truth + rng.normal(scale=0.1, size=8)
    stated[[1, 6]] += 5 * rng.choice([-1, 1], size=2)
    return truth, Gaussian(np.zeros(5), np.ones(5)), combinations, stated


truth, posterior, combinations, stated = simulate(0)

# %%
# Learned weights
# ---------------
# Statement :math:`l` has an error :math:`e_l \sim N(0, s_l)` whose variance has an inverse gamma prior. The constraint
# :math:`E[a_l \cdot x + e_l] = b_l` is hard, but a large variance lets the error absorb the statement. It equals a soft
# constraint :math:`E[a_l \cdot x] = b_l` with the penalty :math:`1 / (2 s_l)` for the squared miss.
# ``empirical_bayes`` alternates the posterior of quantities and errors with the variances that maximize the expected
# log-density, and never increases the objective.

SHAPE, SCALE = 1.0, 0.02  # of the inverse gamma prior


class Errors:
    """Quantities with one error for each statement; the parameters are the variances of the errors."""

    def __init__(self, posterior):
        self.quantities = posterior

    def posterior(self, variances):
        mean = np.append(self.quantities.mean, np.zeros(len(variances)))
        log_prior = -np.sum((SHAPE + 1) * np.log(variances) + SCALE / variances)
        return Gaussian(mean, np.append(self.quantities.covariance, variances), log_evidence=log_prior)

    def update(self, q):
        d = self.quantities.size
        second_moment = q.mean[d:] ** 2 + q.covariance[d:]
        return (second_moment / 2 + SCALE) / (SHAPE + 1.5)


def learn(posterior, combinations, stated):
    features = np.hstack([combinations, np.eye(len(stated))])
    return empirical_bayes(Errors(posterior), np.full(len(stated), 1.0), E(features) == stated)


fit = learn(posterior, combinations, stated)
print(f"{fit.status} after {fit.n_iter} iterations")
print("statement  stated  fitted  standard deviation of the error")
fitted = combinations @ fit.regularized.posterior.mean[:5]
for i, row in enumerate(zip(stated, fitted, np.sqrt(fit.theta), strict=True)):
    print("{:9d} {:7.2f} {:7.2f} {:7.2f}".format(i, *row))

# %%
# The same solution follows from soft constraints with the learned penalties.

penalties = 0.5 / fit.theta
soft = [(E(a) == b).soft(p, power=2) for a, b, p in zip(combinations, stated, penalties, strict=True)]
print(np.allclose(regularize(posterior, soft).posterior.mean, fit.regularized.posterior.mean[:5], atol=1e-6))

# %%
# Compared with equal weights
# ---------------------------
# Over 50 simulated problems, the learned weights are compared with the same small penalty, and the same large one, for
# all statements. In some problems the alternation ends where a wrong statement is trusted, so the errors of learned
# weights vary most. The problems have few wrong statements, all of them far off. They do not show what happens if most
# statements are wrong, or all are slightly wrong, or how the weights depend on the prior of the variances.


def error(mean, truth):
    return np.sqrt(np.mean((mean - truth) ** 2))


errors = {"equal, small": [], "equal, large": [], "learned": []}
for seed in range(50):
    truth, posterior, combinations, stated = simulate(seed)
    for name, penalty in [("equal, small", 0.5), ("equal, large", 50.0)]:
        result = regularize(posterior, (E(combinations) == stated).soft(penalty, power=2))
        errors[name].append(error(result.posterior.mean, truth))
    learned = learn(posterior, combinations, stated).regularized.posterior.mean[:5]
    errors["learned"].append(error(learned, truth))

for name, values in errors.items():
    print(f"{name:12s} {np.mean(values):.2f} ± {np.std(values) / np.sqrt(50):.2f}")
fig, ax = plt.subplots(figsize=(5, 3), layout="constrained")
ax.boxplot(list(errors.values()), tick_labels=list(errors), widths=0.5)
ax.set(xlabel="weights of the statements", ylabel="root mean squared error")
plt.show()
