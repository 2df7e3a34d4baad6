"""Encoding of table columns as inputs, in training and for new tables."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest

from regbayes.cli.errors import BadDataError
from regbayes.cli.inputs import TableInputs
from regbayes.cli.read import Table, make_frame


def table(**columns) -> Table:
    texts = {name: any(isinstance(value, str) for value in values) for name, values in columns.items()}
    frame = make_frame(
        (name, list(values) if texts[name] else [np.nan if value is None else value for value in values])
        for name, values in columns.items()
    )
    return Table(frame, "a table")


def learn(given: Table, **options) -> TableInputs:
    return TableInputs(**options).fit(given.frame)


def read_csv(text: str) -> Table:
    columns = pd.read_csv(io.StringIO(text), dtype={"wet": str, "word": str}).astype({"wet": object, "word": object})
    return Table(
        make_frame((name, column.where(column.notna(), None).tolist()) for name, column in columns.items()), ""
    )


def names_of(inputs: TableInputs) -> list[str]:
    return inputs.get_feature_names_out().tolist()


def test_numbers_are_standardized():
    rng = np.random.default_rng(0)
    given = table(a=rng.normal(5, 3, 50), b=rng.normal(-1, 0.01, 50))
    inputs = learn(given)
    X = inputs.encode(given)
    np.testing.assert_allclose(X.mean(axis=0), 0, atol=1e-10)
    np.testing.assert_allclose(X.std(axis=0), 1)
    assert not inputs.left_out_
    np.testing.assert_array_equal(learn(given, standardize=False).encode(given)[:, 0], given.column("a"))


def test_missing_numbers_become_median_with_indicator():
    inputs = learn(table(a=[1, 2, None, 10, 3]))
    assert names_of(inputs) == ["a", "a is missing"]
    X = inputs.encode(table(a=[None, 2.5]))
    assert X[0, 0] == X[1, 0]
    assert X[:, 1].tolist() == [1, 0]


def test_text_columns_are_one_hot_encoded():
    given = table(two=["x", "y", "x", "x"], three=["a", "c", "b", "b"], hole=["p", None, "q", "p"])
    inputs = learn(given)
    assert names_of(inputs) == ["two=y", "three=a", "three=b", "three=c", "hole is missing", "hole=p", "hole=q"]
    np.testing.assert_array_equal(
        inputs.encode(given),
        [[0, 1, 0, 0, 0, 1, 0], [1, 0, 0, 1, 1, 0, 0], [0, 0, 1, 0, 0, 0, 1], [0, 0, 1, 0, 0, 1, 0]],
    )


def test_unknown_categories_are_zero_with_warning():
    inputs = learn(table(a=["x", "y", "z", "x"]))
    said = r"'a': categories that were not there in training \('new', 'newer'\) in 2 rows count as none of the known"
    with pytest.warns(UserWarning, match=said):
        X = inputs.encode(table(a=["new", "z", "newer"]))
    np.testing.assert_array_equal(X, [[0, 0, 0], [0, 0, 1], [0, 0, 0]])


def test_rare_categories_share_an_input():
    values = [f"c{i}" for i in range(60) for _ in range(3 if i < 50 else 2)]
    inputs = learn(table(a=values))
    assert len(names_of(inputs)) == 50
    assert names_of(inputs)[-1] == "a=(other)"
    assert inputs.encode(table(a=["c55"]))[0].nonzero()[0].tolist() == [49]


def test_uninformative_columns_are_dropped():
    n = 120
    given = table(
        same=[4.0] * n,
        word=["x"] * n,
        empty=[None] * n,
        name=[f"row {i}" for i in range(n)],
        huge=[1e200, -1e200] * (n // 2),
        good=[i % 7 for i in range(n)],
    )
    inputs = learn(given)
    assert names_of(inputs) == ["good"]
    assert inputs.left_out_ == {
        "constant": ["same", "word"],
        "without a single value": ["empty"],
        "text that is different in most rows": ["name"],
        "with numbers beyond 1e+100": ["huge"],
    }
    assert names_of(learn(table(same=[1.0, 1.0]))) == []


def test_categorical_option_encodes_numbers_as_categories():
    given = table(code=[10, 20, 30, 10])
    inputs = learn(given, categorical=["code"])
    assert names_of(inputs) == ["code=10", "code=20", "code=30"]
    np.testing.assert_array_equal(inputs.encode(table(code=["20", "10"])), [[0, 1, 0], [1, 0, 0]])


def test_new_table_needs_all_columns_in_any_order():
    given = table(a=[1, 2, 4], b=["x", "y", "x"])
    inputs = learn(given)
    more = table(z=[0, 0, 0], b=["x", "y", "x"], a=[1, 2, 4])
    np.testing.assert_array_equal(inputs.encode(more), inputs.encode(given))
    with pytest.raises(BadDataError, match=r"lacks columns that the model was fitted to: 'b'; it has 'a'"):
        inputs.encode(table(a=[1]))


def test_column_with_changed_type_is_converted():
    inputs = learn(table(a=[1.0, 2.0, 3.0], b=["1", "2.5", "1"]), standardize=False)
    assert names_of(inputs) == ["a", "b=2.5"]
    np.testing.assert_array_equal(inputs.encode(table(a=["1", None], b=[2.5, 1.0])), [[1, 1], [2, 0]])
    with pytest.warns(UserWarning, match="'a' held numbers in training; 'many' and the like in 1 row count as missing"):
        np.testing.assert_array_equal(inputs.encode(table(a=["1", "many"], b=["1", "1"])), [[1, 0], [2, 0]])


def test_infinite_values_become_missing():
    inputs = learn(table(a=[1, 2, 3, np.inf]))
    with pytest.warns(UserWarning, match="'-inf' and the like in 1 row count as missing"):
        X = inputs.encode(table(a=[-np.inf, 2]))
    assert X[0].tolist() == [X[1, 0], 1]


def test_encode_accepts_extension_types():
    text = "a,b,wet,word\n1,2.5,True,x\n,3,False,\n2,0.5,True,y\n5,1,True,z\n"
    inputs = TableInputs().fit(read_csv(text).frame)
    wanted = inputs.transform(read_csv(text).frame)
    assert names_of(inputs) == ["a", "b", "a is missing", "wet=True", "word is missing", "word=x", "word=y", "word=z"]
    frame = pd.read_csv(io.StringIO(text))
    for other in (frame, frame.convert_dtypes(), frame.astype({"word": "category"}), frame.astype(object)):
        np.testing.assert_array_equal(inputs.transform(other), wanted)
