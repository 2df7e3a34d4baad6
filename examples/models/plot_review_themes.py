"""
Topics that predict a rating
============================

Find the topics of reviews that are associated with many or few stars.

A topic model explains the words, most of which are unrelated to the stars. A regression on all words predicts the stars
and gives a long list of weights. :class:`~regbayes.MedLDARegressor` learns topics *jointly* with a regression on them.
"""

# %%
# Simulated hotel reviews
# -----------------------
# Two in three words are about one of four kinds of trip, which have no effect. The other words are about two of six
# aspects: friendly staff and a good breakfast raise the stars, noise and dirt lower them, the pool and the network
# have no effect.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import RidgeCV

from regbayes import MedLDARegressor
from regbayes.plots import TopWordsDisplay

TRIPS = {
    "beach": "beach sea sand sun swim boat palm towel surf shore",
    "city": "museum square cathedral metro gallery street market bridge tower opera",
    "mountains": "trail summit snow ski lift valley lake forest cabin hike",
    "business": "conference meeting taxi airport desk projector client invoice badge schedule",
}
ASPECTS = {  # words of each aspect, and its effect on the stars
    "staff": (1.2, "friendly helpful smile welcome kind attentive"),
    "breakfast": (0.8, "breakfast fresh coffee fruit delicious buffet"),
    "noise": (-1.2, "noisy loud thin walls sleepless shouting"),
    "dirt": (-1.6, "dirty stain smell mould hair dusty"),
    "pool": (0.0, "pool sauna gym lounger slide jacuzzi"),
    "network": (0.0, "wifi password router signal laptop connection"),
}
FILLERS = ["the", "and", "was", "we", "in", "of", "to", "our", "a", "it", "for", "with"]


def draw_reviews(n: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Draw reviews with most words about the trip, and stars that depend on the other words."""
    rng = np.random.default_rng(seed)
    texts, stars = [], []
    for _ in range(n):
        trip = TRIPS[rng.choice(list(TRIPS))].split()
        aspects = [ASPECTS[name] for name in rng.choice(list(ASPECTS), 2, replace=False)]
        words = [*rng.choice(FILLERS, 25), *rng.choice(trip, 24)]
        for _, theme in aspects:
            words += rng.choice(theme.split(), 6).tolist()
        rng.shuffle(words)
        texts.append(" ".join(words))
        stars.append(np.clip(3 + sum(effect for effect, _ in aspects) + 0.5 * rng.standard_normal(), 1, 5))
    return texts, np.round(stars, 1)


texts, stars = draw_reviews(600, seed=0)
new_texts, new_stars = draw_reviews(400, seed=1)

# %%
# Fit topics and stars together
# -----------------------------
# The weight of a topic is the number of stars, relative to the mean, of a review that is about this topic alone.
# Reviews are mixtures, so the weights are larger than the effects above.

vectorizer = CountVectorizer(stop_words="english", min_df=3)
X, X_new = vectorizer.fit_transform(texts), vectorizer.transform(new_texts)
words = vectorizer.get_feature_names_out()
model = MedLDARegressor(12, inference="variational", random_state=0).fit(X, stars)

shares = model.transform(X).mean(axis=0)
print("weight  share  words of the topic")
for topic in np.argsort(-model.coef_features_):
    named = ", ".join(model.top_words(6, vocabulary=words)[topic])
    print(f"{model.coef_features_[topic]:+6.2f}  {shares[topic]:5.3f}  {named}")

TopWordsDisplay.from_estimator(model, feature_names=words)
plt.show()

# %%
# Staff and breakfast are at the top of the list, noise and dirt at its end, trips around zero.
#
# Compare with two baselines
# --------------------------
# Topics learned without the stars describe the trips and predict less well. Topics learned with the stars predict about
# as well as a weight for every word, and there are only a few to interpret. The reviews are simulated, so this is an
# illustration and not a benchmark.

unsupervised = LatentDirichletAllocation(12, random_state=0).fit(X)
regression = RidgeCV(np.logspace(-3, 3, 13)).fit(unsupervised.transform(X), stars)
ridge = RidgeCV(np.logspace(-1, 4, 11)).fit(X, stars)
print("R² on 400 new reviews")
print(f"  12 topics without the stars, then ridge  {regression.score(unsupervised.transform(X_new), new_stars):.2f}")
print(f"  12 topics with the stars                 {model.score(X_new, new_stars):.2f}")
print(f"  ridge on {len(words)} words                        {ridge.score(X_new, new_stars):.2f}")

# %%
# Before you use it
# -----------------
# - Topics are not causes. Guests who write about dirt gave few stars, but cleaning need not raise the stars.
# - Another ``random_state`` may give other topics. Fit several, and compare them.
# - With few reviews, check the cross-validated R² first (:class:`~regbayes.MedLDARegressorCV`). Near zero, do not
#   read the weights.
# - On the command line, ``regbayes fit reviews.csv --text review --target stars --output reviews.model`` fits such a
#   model to a CSV file, and ``regbayes report`` writes a page with its topics and reviews.
