"""Which themes in reviews drive the rating? Topics that are learned together with it: MedLDA, on made-up hotel reviews.

The page docs/problems/themes.md walks through it. The reviews are drawn here, so that the truth is known. --write says
in which folder to put them as CSV files, for the command line.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import RidgeCV

from regbayes import MedLDARegressor

TRIPS = {
    "beach": "beach sea sand sun swim boat palm towel surf shore",
    "city": "museum square cathedral metro gallery street market bridge tower opera",
    "mountains": "trail summit snow ski lift valley lake forest cabin hike",
    "business": "conference meeting taxi airport desk projector client invoice badge schedule",
}
ASPECTS = {  # a theme of few words, and what it does to the stars
    "staff": (1.2, "friendly helpful smile welcome kind attentive"),
    "breakfast": (0.8, "breakfast fresh coffee fruit delicious buffet"),
    "noise": (-1.2, "noisy loud thin walls sleepless shouting"),
    "dirt": (-1.6, "dirty stain smell mould hair dusty"),
    "pool": (0.0, "pool sauna gym lounger slide jacuzzi"),
    "network": (0.0, "wifi password router signal laptop connection"),
}
FILLERS = ["the", "and", "was", "we", "in", "of", "to", "our", "a", "it", "for", "with"]


def draw_reviews(n: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Draw reviews, most of whose words are about the trip, and stars that depend on the rest."""
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


def write(folder: Path) -> None:
    for name, n, seed in (("reviews.csv", 600, 0), ("new-reviews.csv", 400, 1)):
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["review", "stars"])
            writer.writerows(zip(*draw_reviews(n, seed), strict=True))
        print(f"{folder / name}: {n} reviews")


def show() -> None:
    texts, stars = draw_reviews(600, seed=0)
    new_texts, new_stars = draw_reviews(400, seed=1)

    vectorizer = CountVectorizer(stop_words="english", min_df=3)
    X, X_new = vectorizer.fit_transform(texts), vectorizer.transform(new_texts)
    words = vectorizer.get_feature_names_out()

    model = MedLDARegressor(12, inference="variational", random_state=0).fit(X, stars)

    print("weight  share  words of the topic")
    for topic in np.argsort(-model.coef_features_):
        share = model.transform(X)[:, topic].mean()
        named = ", ".join(model.top_words(6, vocabulary=words)[topic])
        print(f"{model.coef_features_[topic]:+6.2f}  {share:5.3f}  {named}")

    plain = LatentDirichletAllocation(12, random_state=0).fit(X)
    after = RidgeCV(np.logspace(-3, 3, 13)).fit(plain.transform(X), stars)
    ridge = RidgeCV(np.logspace(-1, 4, 11)).fit(X, stars)
    print()
    print("R² on 400 other reviews")
    print(
        f"  12 topics found without the stars, then a regression   {after.score(plain.transform(X_new), new_stars):.2f}"
    )
    print(f"  12 topics found with the stars                         {model.score(X_new, new_stars):.2f}")
    print(f"  a weight for each of {len(words)} words                          {ridge.score(X_new, new_stars):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the reviews as CSV files, and do no more")
    options = parser.parse_args()
    if options.write is not None:
        write(options.write)
    else:
        show()


if __name__ == "__main__":
    main()
