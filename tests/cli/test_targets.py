"""The target: inferred kind of model and values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from regbayes.cli.errors import BadDataError, UserError
from regbayes.cli.read import Table, make_frame
from regbayes.cli.targets import as_labels, choose_targets, decide, target_values, task_values

COLUMNS = {
    "word": np.array(["a", "b", None, "a"] * 10, dtype=object),
    "flag": np.array([0.0, 1.0, 1.0, 0.0] * 10),
    "grade": np.array([1.0, 2.0, 3.0, np.nan] * 10),
    "stars": np.array([1.0, 2.0, 3.0, 4.0, 5.0] * 8),
    "code": np.array([101.0, 205.0, 999.0, 101.0] * 10),
    "half": np.array([0.5, 1.5, 2.5, 0.5] * 10),
    "amount": np.linspace(0, 1, 40),
    "count": np.arange(40.0),
    "huge": np.geomspace(1.0, 1e200, 40),
    "same": np.ones(40),
    "empty": np.full(40, np.nan),
}
TABLE = Table(make_frame(COLUMNS.items()), "t.csv", groups={"both": ("word", "flag")})


def table_of(source: str = "t.csv", **columns) -> Table:
    return Table(make_frame(columns.items()), source)


@pytest.mark.parametrize(
    ("names", "of_texts", "kind", "said"),
    [
        ("word", False, "classifier", "2 different texts"),
        ("flag", False, "classifier", "2 different whole numbers (--kind regressor if they are quantities)"),
        ("flag", True, "classifier", "2 different whole numbers (--kind regressor if they are quantities)"),
        ("stars", False, "classifier", "5 different whole numbers (--kind regressor if they are quantities)"),
        ("stars", True, "regressor", "5 different whole numbers (--kind classifier if not)"),
        ("grade", True, "regressor", "3 different whole numbers (--kind classifier if not)"),
        ("code", True, "classifier", "3 different whole numbers (--kind regressor if they are quantities)"),
        ("amount", False, "regressor", "40 different numbers"),
        ("count", False, "regressor", "40 different whole numbers"),
        ("half", False, "regressor", "3 different numbers"),
        ("word flag", False, "multilabel", "all 2 targets hold classes"),
        ("amount flag", False, "regressor", "they hold numbers (--kind multilabel if not)"),
        ("stars grade", True, "regressor", "they hold numbers (--kind multilabel if not)"),
        ("stars grade", False, "multilabel", "hold classes (--kind regressor if they are quantities)"),
        ("stars flag", True, "multilabel", "hold classes (--kind regressor if they are quantities)"),
    ],
)
def test_decide_infers_kind_from_target(names, of_texts, kind, said):
    """Few integers are classes; those near zero are ratings if the rows are texts."""
    spec, why = decide(TABLE, tuple(names.split()), of_texts=of_texts)
    assert spec.kind == kind
    assert said in why


def test_decide_accepts_constant_label_among_others():
    both = table_of(flag=COLUMNS["flag"], never=np.zeros(40))
    assert decide(both, ("flag", "never"), None, None)[0].kind == "multilabel"


def test_kind_option_overrides_inferred_kind():
    assert decide(TABLE, ("flag",), "regressor", None)[0].kind == "regressor"
    spec, why = decide(TABLE, ("half",), "classifier", None)
    assert why == "classifier, by --kind"
    assert as_labels(target_values(TABLE, spec)).tolist()[:3] == ["0.5", "1.5", "2.5"]


@pytest.mark.parametrize(
    ("names", "kind", "task", "error", "message"),
    [
        (("empty",), None, None, BadDataError, "'empty' has no value in any row"),
        (("huge",), None, None, BadDataError, "'huge' holds numbers beyond 1e.100; take their logarithm"),
        (("same",), None, None, BadDataError, "the same value in every row"),
        (("same", "same"), "multilabel", None, BadDataError, "the same value in every row"),
        (("word", "same"), None, None, BadDataError, "nothing to learn: 'same'. Leave it out"),
        (("word",), "regressor", None, BadDataError, "'word' is text"),
        (("word", "amount"), None, None, BadDataError, r"hold classes \('word'\) and others numbers"),
        (("word", "flag"), "classifier", None, UserError, "takes one target, but there are 2"),
        (("word", "flag"), None, "grade", UserError, "--task goes with one --target"),
        (("flag",), "multilabel", None, UserError, "takes several targets, but there is one"),
    ],
)
def test_invalid_target_raises(names, kind, task, error, message):
    with pytest.raises(error, match=message):
        decide(TABLE, names, kind, task)


def test_too_many_classes_raise():
    many = table_of(id=[f"row {i}" for i in range(400)])
    with pytest.raises(BadDataError, match="400 different texts in 400 rows: too many for classes"):
        decide(many, ("id",))
    assert decide(many, ("id",), "classifier")[0].kind == "classifier"


def test_choose_targets_selects_columns():
    assert choose_targets(TABLE, ["flag", "word"]) == ("flag", "word")
    assert choose_targets(TABLE, ["both"]) == ("word", "flag")
    assert choose_targets(replace(table_of(x=[0.0], y=[0.0]), targets=("y",)), []) == ("y",)
    with pytest.raises(UserError, match="name the column to predict with --target"):
        choose_targets(TABLE, [])
    with pytest.raises(BadDataError, match=r"--target words: t\.csv has no such column; it has 'word'"):
        choose_targets(TABLE, ["words"])
    with pytest.raises(UserError, match="names a column twice"):
        choose_targets(TABLE, ["flag", "both"])


def test_target_values_keep_training_type():
    spec, _ = decide(TABLE, ("word", "grade"), None, None)
    values = target_values(TABLE, spec)
    assert values[:3, 0].tolist() == ["a", "b", None]
    np.testing.assert_array_equal(values[:4, 1].astype(float), [1, 2, 3, np.nan])
    words, _ = decide(TABLE, ("word",), None, None)
    numbers = table_of("new.csv", word=[1.0, np.nan])
    assert target_values(numbers, words).tolist() == ["1", None]
    grades, _ = decide(TABLE, ("grade",), None, None)
    texts = table_of("new.csv", grade=["good"])
    assert target_values(table_of("new.csv", grade=["good", "2"]), grades).tolist() == ["good", 2.0]  # new class
    amounts, _ = decide(TABLE, ("grade",), "regressor", None)
    with pytest.warns(UserWarning, match="'grade' held numbers in training; 'good' and the like in 1 row"):
        assert np.isnan(target_values(texts, amounts)).all()


def test_missing_task_raises():
    spec, _ = decide(TABLE, ("amount",), None, "flag")
    assert task_values(TABLE, spec).tolist()[:3] == ["0", "1", "1"]
    spec, _ = decide(TABLE, ("amount",), None, "word")
    with pytest.raises(BadDataError, match="'word' is empty in row 3"):
        task_values(TABLE, spec)
    spec, _ = decide(TABLE, ("amount",), None, "nothing")
    with pytest.raises(BadDataError, match=r"--task: t[.]csv has no column 'nothing'"):
        task_values(TABLE, spec)
