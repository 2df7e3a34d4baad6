"""The scikit-learn classes that can be saved as parts of a pipeline around an estimator.

The list is closed: the attributes of these classes are numbers, strings, arrays and one another. Parts with a user's
function are not saved. Strings that control what is read or run are restricted to listed values. For example, a regular
expression of an untrusted file can take forever, ``input="filename"`` opens files, and a cache is a folder of pickles.

Attributes of these classes may differ between versions of scikit-learn. Parameters that a file lacks take their
defaults.
"""

from __future__ import annotations

from typing import Any

from sklearn import compose, decomposition, feature_selection, impute, pipeline, preprocessing
from sklearn.feature_extraction import DictVectorizer, text
from sklearn.utils._metadata_requests import MetadataRequest, MethodMetadataRequest

from regbayes._registry import persistable

__all__ = ["PLAIN", "TOKEN_PATTERNS"]

# scikit-learn's default pattern, and words that begin with a letter
TOKEN_PATTERNS = (r"(?u)\b\w\w+\b", r"(?u)\b[^\W\d_]\w+\b")

PLAIN: tuple[type, ...] = (
    compose.ColumnTransformer,
    decomposition.PCA,
    decomposition.TruncatedSVD,
    feature_selection.VarianceThreshold,
    impute.MissingIndicator,
    impute.SimpleImputer,
    pipeline.FeatureUnion,
    preprocessing.Binarizer,
    preprocessing.LabelBinarizer,
    preprocessing.LabelEncoder,
    preprocessing.MaxAbsScaler,
    preprocessing.MinMaxScaler,
    preprocessing.Normalizer,
    preprocessing.OneHotEncoder,
    preprocessing.OrdinalEncoder,
    preprocessing.PolynomialFeatures,
    preprocessing.PowerTransformer,
    preprocessing.QuantileTransformer,
    preprocessing.RobustScaler,
    preprocessing.StandardScaler,
    text.TfidfTransformer,
)

_CALLBACKS = ("_skl_callbacks",)
_WORDS: dict[str, tuple[str | None, ...]] = {
    "input": ("content",),
    "preprocessor": (None,),
    "tokenizer": (None,),
    "analyzer": ("word", "char", "char_wb"),
    "token_pattern": (*TOKEN_PATTERNS, None),
}


def _check_vectorizer(vectorizer: Any) -> None:
    """Raise ValueError unless words have the column numbers 0, 1, ..., which SciPy's compiled code does not check."""
    words = getattr(vectorizer, "vocabulary_", None)
    if words is not None and sorted(words.values()) != list(range(len(words))):
        raise ValueError("the numbers of the words in vocabulary_ must be 0, 1, ...")
    if not 1 <= getattr(vectorizer, "n_features", 1) < 2**31:
        raise ValueError(f"n_features must be between 1 and 2**31 - 1; got {vectorizer.n_features!r}")


def _class_name(owner: Any) -> str:
    return owner if isinstance(owner, str) else type(owner).__name__


for _cls in PLAIN:
    persistable(_cls, skip=_CALLBACKS)
persistable(DictVectorizer, skip=_CALLBACKS, check=_check_vectorizer)
for _cls in (text.CountVectorizer, text.HashingVectorizer, text.TfidfVectorizer):
    persistable(_cls, skip=_CALLBACKS, only=_WORDS, check=_check_vectorizer)
persistable(pipeline.Pipeline, skip=_CALLBACKS, only={"memory": (None,)})
persistable(preprocessing.FunctionTransformer, skip=_CALLBACKS, only={"func": (None,), "inverse_func": (None,)})
# requests of set_fit_request; the owner, which is the estimator itself, is used in messages only
for _cls in (MetadataRequest, MethodMetadataRequest):
    persistable(_cls, replace={"owner": _class_name})
