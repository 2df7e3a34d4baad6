"""The data sets of the paper: loaders, and where their files are found or fetched."""

from __future__ import annotations

from regbayes_paper.data.files import ChecksumWarning, DataError, DataNotFoundError, cache_folder
from regbayes_paper.data.loaders import (
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
    "ChecksumWarning",
    "DataError",
    "DataNotFoundError",
    "cache_folder",
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
]
