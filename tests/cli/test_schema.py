"""Tables to inputs: what is learned from the training table, and what becomes of others."""

from __future__ import annotations

import numpy as np
import pytest

from regbayes.cli.errors import BadDataError
from regbayes.cli.schema import CategoryColumn, NumberColumn, learn_schema
from regbayes.cli.tables import Table


def table(**columns) -> Table:
    arrays = []
    for values in columns.values():
        text = any(isinstance(value, str) for value in values)
        array = np.empty(len(values), dtype=object if text else float)
        array[:] = list(values) if text else [np.nan if value is None else value for value in values]
        arrays.append(array)
    return Table(tuple(columns), tuple(arrays), "a table")


def learn(given: Table, **options):
    said: list[str] = []
    return learn_schema(given, given.names, said.append, **options), said


def unheard(text: str) -> None:
    raise AssertionError(text)


def test_numbers_are_standardised():
    rng = np.random.default_rng(0)
    given = table(a=rng.normal(5, 3, 50), b=rng.normal(-1, 0.01, 50))
    schema, said = learn(given)
    X = schema.encode(given, unheard)
    np.testing.assert_allclose(X.mean(axis=0), 0, atol=1e-10)
    np.testing.assert_allclose(X.std(axis=0), 1)
    assert not said
    raw, _ = learn(given, standardize=False)
    np.testing.assert_array_equal(raw.encode(given, unheard)[:, 0], given.column("a"))


def test_missing_numbers_take_the_median_and_are_marked():
    schema, _ = learn(table(a=[1, 2, None, 10, 3]))
    (column,) = schema.columns
    assert column.fill == 2.5
    assert schema.encoded_names == ["a", "a is missing"]
    X = schema.encode(table(a=[None, 2.5]), unheard)
    assert X[0, 0] == X[1, 0]
    assert X[:, 1].tolist() == [1, 0]


def test_categories():
    given = table(two=["x", "y", "x", "x"], three=["a", "c", "b", "b"], hole=["p", None, "q", "p"])
    schema, _ = learn(given)
    assert schema.encoded_names == ["two=y", "three=a", "three=b", "three=c", "hole=q", "hole is missing"]
    np.testing.assert_array_equal(
        schema.encode(given, unheard),
        [[0, 1, 0, 0, 0, 0], [1, 0, 0, 1, 0, 1], [0, 0, 1, 0, 1, 0], [0, 0, 1, 0, 0, 0]],
    )


def test_unknown_categories_are_none_of_the_known_ones_and_said():
    schema, _ = learn(table(a=["x", "y", "z", "x"]))
    said: list[str] = []
    X = schema.encode(table(a=["new", "z", "newer"]), said.append)
    np.testing.assert_array_equal(X, [[0, 0, 0], [0, 0, 1], [0, 0, 0]])
    assert said == [
        "column 'a': categories that were not there in training ('new', 'newer') in 2 rows count as none of the known "
        "ones"
    ]


def test_rare_categories_of_many_are_known_without_a_column():
    values = [f"c{i}" for i in range(60) for _ in range(3 if i < 50 else 2)]
    schema, _ = learn(table(a=values))
    assert len(schema.encoded_names) == 50
    assert not schema.encode(table(a=["c55"]), unheard).any()


def test_columns_that_say_nothing_are_left_out():
    n = 120
    given = table(
        same=[4.0] * n,
        word=["x"] * n,
        empty=[None] * n,
        name=[f"row {i}" for i in range(n)],
        huge=[1e200, -1e200] * (n // 2),
        good=[i % 7 for i in range(n)],
    )
    schema, said = learn(given)
    assert schema.names == ["good"]
    assert said == [
        "left out, constant: 'same', 'word'",
        "left out, without a single value: 'empty'",
        "left out, text that is different in most rows: 'name'",
        "left out, with numbers beyond 1e+100: 'huge'",
    ]
    with pytest.raises(BadDataError, match="no column left"):
        learn(table(same=[1.0, 1.0]))


def test_numbers_that_name_categories():
    given = table(code=[10, 20, 30, 10])
    schema, _ = learn(given, categorical=["code"])
    assert schema.encoded_names == ["code=10", "code=20", "code=30"]
    np.testing.assert_array_equal(schema.encode(table(code=["20", "10"]), unheard), [[0, 1, 0], [1, 0, 0]])


def test_new_tables_may_have_other_columns_in_any_order_but_none_missing():
    given = table(a=[1, 2, 4], b=["x", "y", "x"])
    schema, _ = learn(given)
    more = table(z=[0, 0, 0], b=["x", "y", "x"], a=[1, 2, 4])
    np.testing.assert_array_equal(schema.encode(more, unheard), schema.encode(given, unheard))
    with pytest.raises(BadDataError, match=r"lacks columns that the model was fitted to: 'b'\. It has 'a'"):
        schema.encode(table(a=[1]), unheard)


def test_a_column_that_changed_its_type():
    number = NumberColumn("a", 0.0, 0.0, 1.0, False)
    np.testing.assert_array_equal(number.encode(np.array(["1", None], dtype=object), unheard), [[1], [0]])
    with pytest.raises(BadDataError, match="'a' held numbers in training, but row 2 holds 'many'"):
        number.encode(np.array(["1", "many"], dtype=object), unheard)
    category = CategoryColumn("b", ("1", "2.5"), (), False)
    np.testing.assert_array_equal(category.encode(np.array([2.5, 1.0]), unheard), [[0, 1], [1, 0]])


def test_infinite_values_count_as_missing():
    schema, _ = learn(table(a=[1, 2, 3, np.inf]))
    said: list[str] = []
    X = schema.encode(table(a=[-np.inf, 2]), said.append)
    assert X[0].tolist() == [X[1, 0], 1]
    assert said == ["column 'a': 1 infinite values count as missing"]


def test_whole_numbers_that_rise_from_row_to_row_are_pointed_out():
    rng = np.random.default_rng(0)
    rising = np.cumsum(rng.integers(1, 3, size=12))
    given = table(id=rising, sorted=np.sort(rng.normal(size=12)), counts=rng.permutation(rising))
    schema, said = learn(given)
    assert said == [
        "whole numbers that rise from row to row: 'id'. If they only number the rows: --ignore them",
    ]
    assert "id" in schema.names  # it may be a year
    assert not learn(table(id=[1, 2, 3, 4, 5]))[1]
    assert not any("rise" in text for text in learn(given, categorical=["id"])[1])
