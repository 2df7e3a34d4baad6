"""Test pipelines of scikit-learn estimators, of which a fixed list is supported."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfTransformer, TfidfVectorizer
from sklearn.feature_selection import VarianceThreshold
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    KBinsDiscretizer,
    LabelBinarizer,
    LabelEncoder,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)
from sklearn.utils._metadata_requests import MetadataRequest

import regbayes
from persistence_tools import assert_same, craft, round_trip
from regbayes._registry import _BY_CLASS
from regbayes.estimators import _scikit_learn_parts
from regbayes.persistence import PersistenceError, load, save

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4))
HOLES = np.where(RNG.random(X.shape) < 0.2, np.nan, X)
WORDS = RNG.choice(np.array(["red", "green", "blue"], dtype=object), size=(30, 2))
WORDS[3, 0] = np.nan
TEXTS = [" ".join(RNG.choice(["the", "cat", "sat", "on", "a", "mat", "and", "7", "owls"], 6)) for _ in range(30)]
COUNTS = scipy.sparse.csr_matrix(RNG.poisson(1.0, size=(30, 5)))
LABELS = RNG.choice(["yes", "no", "perhaps"], 30)

PARTS = {
    "mean": (SimpleImputer(add_indicator=True), HOLES),
    "most frequent": (SimpleImputer(strategy="most_frequent"), WORDS),
    "constant": (SimpleImputer(strategy="constant", fill_value="none"), WORDS),
    "indicator": (MissingIndicator(features="all"), HOLES),
    "standard": (StandardScaler(), X),
    "standard with holes": (StandardScaler(), HOLES),
    "standard sparse": (StandardScaler(with_mean=False), COUNTS),
    "min max": (MinMaxScaler(clip=True), X),
    "max abs": (MaxAbsScaler(), COUNTS),
    "robust": (RobustScaler(), X),
    "power": (PowerTransformer(), X),
    "quantile": (QuantileTransformer(n_quantiles=10, random_state=np.random.RandomState(0)), X),
    "normalizer": (Normalizer(), X),
    "binarizer": (Binarizer(threshold=0.3), X),
    "polynomial": (PolynomialFeatures(2, interaction_only=True), X),
    "one hot": (OneHotEncoder(handle_unknown="ignore"), WORDS),
    "one hot infrequent": (OneHotEncoder(min_frequency=11, handle_unknown="infrequent_if_exist", drop="first"), WORDS),
    "one hot of integers": (OneHotEncoder(dtype=int, sparse_output=False), (3 * X).astype(int)),
    "one hot of categories": (
        OneHotEncoder(categories=[["red", "green", "blue", np.nan]] * 2, drop="if_binary"),
        WORDS,
    ),
    "ordinal": (OrdinalEncoder(dtype=np.int32, encoded_missing_value=-2), WORDS),
    "ordinal of unknown": (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan), WORDS),
    "label": (LabelEncoder(), LABELS),
    "label binarizer": (LabelBinarizer(sparse_output=True), LABELS),
    "function": (FunctionTransformer(), X),
    "count": (CountVectorizer(), TEXTS),
    "count chosen": (CountVectorizer(max_features=4, min_df=2, ngram_range=(1, 2), stop_words=["the"]), TEXTS),
    "count letters": (CountVectorizer(analyzer="char_wb", vocabulary=["a", "t"], dtype=np.float32), TEXTS),
    "count our words": (CountVectorizer(token_pattern=_scikit_learn_parts.TOKEN_PATTERNS[1]), TEXTS),
    "tf-idf": (TfidfVectorizer(stop_words="english", sublinear_tf=True), TEXTS),
    "tf-idf of counts": (TfidfTransformer(), COUNTS),
    "hashing": (HashingVectorizer(n_features=16), TEXTS),
    "dict": (DictVectorizer(), [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]),
    "variance": (VarianceThreshold(), X),
    "pca": (PCA(2), X),
    "svd": (TruncatedSVD(2, random_state=0), COUNTS),
    "union": (FeatureUnion([("a", StandardScaler()), ("b", make_pipeline(MinMaxScaler(), PCA(1))), ("c", "drop")]), X),
    "pipeline": (Pipeline([("fill", SimpleImputer()), ("nothing", "passthrough"), ("scale", StandardScaler())]), HOLES),
    "columns": (
        ColumnTransformer(
            [
                ("number", StandardScaler(), [0]),
                ("slice", "passthrough", slice(1, 2)),
                ("mask", MinMaxScaler(), X[0] > 0),
            ],
            remainder="passthrough",
        ),
        X,
    ),
}


def same_output(found, expected) -> None:
    if scipy.sparse.issparse(expected):
        assert (found != expected).nnz == 0
        expected, found = expected.toarray(), found.toarray()
    assert_same(np.asarray(found), np.asarray(expected))


@pytest.mark.filterwarnings("ignore:Your stop_words may be inconsistent")
@pytest.mark.parametrize(("part", "inputs"), PARTS.values(), ids=PARTS)
def test_loaded_estimator_transforms_as_before(part, inputs, tmp_path):
    assert type(round_trip(part, tmp_path)) is type(part)  # an unfitted estimator can be saved, too
    part.fit(inputs)
    found = round_trip(part, tmp_path)
    assert vars(found).keys() == vars(part).keys()
    same_output(found.transform(inputs), part.transform(inputs))
    if hasattr(part, "get_feature_names_out"):
        assert_same(found.get_feature_names_out(), part.get_feature_names_out())


def test_parts_cover_registered_scikit_learn_classes():
    listed = {cls for cls in _BY_CLASS if cls.__module__.startswith("sklearn.")}
    assert listed - {type(part) for part, _ in PARTS.values()} == {
        MetadataRequest,
        type(MetadataRequest(owner="a").fit),
    }


@pytest.fixture
def frame():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(
        {"age": HOLES[:, 0], "height": HOLES[:, 1], "colour": WORDS[:, 0], "text": TEXTS, "weight": X[:, 3]}
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::regbayes.TruncationWarning")
def test_pipeline_with_column_transformer_round_trips(frame, tmp_path):
    columns = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler()), ["age"]),
            ("colours", make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()), ["colour"]),
            ("places", OrdinalEncoder(encoded_missing_value=-1), ["colour"]),
            ("words", TfidfVectorizer(max_features=5), "text"),
            ("rest", "passthrough", ["weight"]),
        ],
        sparse_threshold=0,
        verbose_feature_names_out=False,
    )
    model = Pipeline([("columns", columns), ("model", regbayes.ILSVMClassifier(3, max_iter=3, random_state=0))])
    model.fit(frame, LABELS)
    found = round_trip(model, tmp_path)
    assert_same(found.predict(frame), model.predict(frame))
    assert_same(found.decision_function(frame), model.decision_function(frame))
    assert_same(found[0].transform(frame), model[0].transform(frame))
    assert_same(found[0].get_feature_names_out(), model[0].get_feature_names_out())
    changed = frame.assign(colour="pink")  # the loaded encoder raises for unknown categories
    with pytest.raises(ValueError, match="unknown categories"):
        found.predict(changed)


class Own(BaseEstimator):
    """User-defined estimator that is not registered."""


REFUSED = {
    "not on the list": (KBinsDiscretizer(), r"KBinsDiscretizer, which cannot be saved: register its class"),
    "own": (Own(), r"Own, which cannot be saved: register its class"),
    "function": (
        FunctionTransformer(np.log1p),
        r"FunctionTransformer\.func may be None in a file, not <ufunc 'log1p'>",
    ),
    "arguments of functions": (FunctionTransformer(kw_args={"a": len}), r"kw_args\['a'\] is a callable"),
    "names": (FunctionTransformer(feature_names_out=lambda *_: []), "feature_names_out is a callable"),
    "tokenizer": (CountVectorizer(tokenizer=str.split), r"CountVectorizer\.tokenizer may be None in a file"),
    "analyzer": (HashingVectorizer(analyzer=str.split), r"analyzer may be 'word' or 'char' or 'char_wb' in a file"),
    "pattern": (CountVectorizer(token_pattern=r"(a+)+$"), r"token_pattern may be .* in a file, not '\(a\+\)\+\$'"),
    "stop words": (CountVectorizer(stop_words={"a"}), r"stop_words has type builtins.set.*convert it to a list"),
    "cache": (Pipeline([("a", PCA())], memory="/tmp/cache"), r"Pipeline\.memory may be None in a file"),
    "columns": (ColumnTransformer([("a", PCA(), make_column_selector())]), r"transformers\[0\]\[2\] is a callable"),
    "deep inside": (
        Pipeline([("a", ColumnTransformer([("b", FunctionTransformer(len), [0])]))]),
        r"Pipeline\.steps\[0\]\[1\]\.transformers\[0\]\[1\]\.func may be None in a file",
    ),
}


@pytest.mark.parametrize(("part", "message"), REFUSED.values(), ids=REFUSED)
def test_save_of_code_in_estimator_raises(part, message, tmp_path):
    with pytest.raises(PersistenceError, match=message):
        save(part, tmp_path / "file")


STRANGERS = {
    "not on the list": ({"object": ["sklearn.KBinsDiscretizer", {}]}, r"unknown type 'sklearn\.KBinsDiscretizer'"),
    "a type for a function": (
        {"object": ["sklearn.FunctionTransformer", {"func": {"type": "builtins.int"}}]},
        r"the object\.func may be None in a file",
    ),
    "a slow pattern": (
        {"object": ["sklearn.TfidfVectorizer", {"token_pattern": "(a+)+$"}]},
        r"the object\.token_pattern may be",
    ),
    "a method": ({"object": ["sklearn.StandardScaler", {"transform": 1}]}, "would hide a method"),
    "a property": ({"object": ["sklearn.TfidfVectorizer", {"idf_": 1}]}, "would hide a method or property"),
    "deep inside": (
        {"object": ["sklearn.Pipeline", {"steps": [{"tuple": ["a", {"object": ["sklearn.SelectKBest", {}]}]}]}]},
        r"unknown type 'sklearn\.SelectKBest' at the object\.steps\[0\]\[1\]",
    ),
}


@pytest.mark.parametrize(("tree", "message"), STRANGERS.values(), ids=STRANGERS)
def test_load_of_code_in_estimator_raises(tree, message, tmp_path):
    with pytest.raises(PersistenceError, match=message):
        load(craft(tmp_path / "file", tree))


def test_load_fills_missing_parameters_of_scikit_learn(tmp_path):
    found = load(craft(tmp_path / "file", {"object": ["sklearn.TfidfVectorizer", {"min_df": 2}]}))
    assert found.get_params() == TfidfVectorizer(min_df=2).get_params()
