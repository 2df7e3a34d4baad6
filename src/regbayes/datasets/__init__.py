"""Data: the sets that the paper uses, generators that draw from the models' own priors, and a reader of ARFF files."""

from __future__ import annotations

from regbayes.datasets._files import ChecksumWarning, DataError, DataNotFoundError, cache_folder
from regbayes.datasets.arff import ArffError, ArffTable, label_names, read_arff
from regbayes.datasets.generators import make_ibp_classification, make_ibp_multitask
from regbayes.datasets.loaders import (
    load_20newsgroups,
    load_emotions,
    load_flickr,
    load_landmine,
    load_movie_reviews,
    load_scene,
    load_scene15,
    load_school,
    load_trecvid2003,
    load_yeast,
)

__all__ = [
    "ArffError",
    "ArffTable",
    "ChecksumWarning",
    "DataError",
    "DataNotFoundError",
    "cache_folder",
    "label_names",
    "load_20newsgroups",
    "load_emotions",
    "load_flickr",
    "load_landmine",
    "load_movie_reviews",
    "load_scene",
    "load_scene15",
    "load_school",
    "load_trecvid2003",
    "load_yeast",
    "make_ibp_classification",
    "make_ibp_multitask",
    "read_arff",
]
