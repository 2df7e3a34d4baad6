"""Tables as they are: dates, money, percents, comments, huge numbers, weights, and classes that are new."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import StratifiedKFold

from cli_tools import run_here
from regbayes import ILSVMClassifierCV, feature_stability, load
from regbayes.cli.dates import expand_dates, find_dates
from regbayes.cli.inputs import TableInputs
from regbayes.cli.tables import read_table

ONE = ("--n-components", 3, "--max-iter", 3, "--no-cv", "--C", 1)


def read(tmp_path, text: str, name: str = "t.csv", **options):
    (tmp_path / name).write_text(text)
    return read_table(str(tmp_path / name), **options)


@pytest.mark.parametrize(
    ("texts", "number"),
    [
        (["$1,234", "$5.50", "-$7", "($2)"], [1234, 5.5, -7, -2]),
        (["1,234", "5", "1,234,567.5"], [1234, 5, 1234567.5]),
        (["61.5%", "2 %", "-3%"], [61.5, 2, -3]),
        (["€ 3", "4 €", "-5"], [3, 4, -5]),
        (["1.037,72 €", "5 €", "-2,5 €"], [1037.72, 5, -2.5]),
        (["1.234,5", "2.000", "7"], [1234.5, 2000, 7]),
        (["12,5%", "3 %"], [12.5, 3]),
    ],
)
def test_numbers_with_signs_around_them(tmp_path, texts, number):
    rows = "\n".join(f'"{text}",x' for text in [*texts, ""])
    table = read(tmp_path, f"a,b\n{rows}\n")
    np.testing.assert_array_equal(table.column("a"), [*number, np.nan])
    assert f"column 'a' is read as numbers: {texts[0]!r} is {number[0]:g}" in table.remarks
    assert not table.notes


@pytest.mark.parametrize("texts", [["1,23", "4"], ["5%", "6"], ["$", "4"], ["1,2345", "3"], ["(5", "3"], ["12-3", "4"]])
def test_what_only_looks_like_a_number_stays_text(tmp_path, texts):
    table = read(tmp_path, "a,b\n" + "\n".join(f'"{text}",x' for text in texts) + "\n")
    assert table.column("a").tolist() == texts
    assert not table.remarks


def test_between_semicolons_a_comma_is_decimal(tmp_path):
    table = read(tmp_path, "a;b;c\n1.234,5;$1,234.50;2,5 €\n7;$2;3 €\n")
    assert table.column("a").tolist() == [1234.5, 7]
    assert table.column("b").tolist() == [1234.5, 2]
    assert table.column("c").tolist() == [2.5, 3]


@pytest.mark.parametrize(("name", "is_a"), [("t.xlsx", "a spreadsheet"), ("t.JSON", "JSON"), ("t.pkl.gz", "a pickle")])
def test_files_of_other_programs_are_named(tmp_path, name, is_a):
    run = run_here("fit", _written(tmp_path, name), "-t", "y", "-o", tmp_path / "m")
    assert run.code == 3
    assert f"looks like {is_a}, which is not read here: save the table as CSV" in run.err


def _written(folder, name):
    (folder / name).write_bytes(b"PK\x03\x04")
    return folder / name


def test_infinite_numbers_are_missing_on_the_page_too(tmp_path):
    rows = "\n".join(f"{i % 7},{'inf' if i == 3 else i % 5},{'no' if i % 2 else 'yes'}" for i in range(40))
    (tmp_path / "t.csv").write_text(f"a,b,y\n{rows}\n")
    run = run_here("fit", tmp_path / "t.csv", "-t", "y", "-o", tmp_path / "m", *ONE)
    assert run.code == 0, run.err
    assert "column 'b': 1 infinite value counts as missing" in run.err
    assert "invalid value" not in run.err
    effects = load(tmp_path / "m").report.effects
    assert np.isfinite(effects.sizes).all()


@pytest.mark.parametrize(("last", "remedy", "rarest"), [("", "--kind regressor", "5"), ("th", "names of rows", "10th")])
def test_a_class_for_every_row_is_doubted(tmp_path, last, remedy, rarest):
    rows = "\n".join(f"{i % 7},{i % 5},{i % 15}{last}" for i in range(20))
    (tmp_path / "t.csv").write_text(f"a,b,y\n{rows}\n")
    run = run_here("fit", tmp_path / "t.csv", "-t", "y", "-o", tmp_path / "m", *ONE)
    assert run.code == 0, run.err
    assert "15 classes in 20 rows" in run.err
    assert remedy in run.err
    assert "unique classes" not in run.err  # scikit-learn's words for it
    searched = run_here(
        "fit", tmp_path / "t.csv", "-t", "y", "-o", tmp_path / "m", "--n-components", 2, "--max-iter", 2
    )
    assert f"(the rarest, '{rarest}', has 1)" in searched.err


def test_comments_and_a_line_that_tells_the_delimiter(tmp_path):
    table = read(tmp_path, "# by a program; today\nsep=;\n# more\na;b\n1;x\n# half\n2;y\n")
    assert table.names == ("a", "b")
    table = read(tmp_path, "sep=;\n# by a program, today\na;b\n1,5;x\n# half\n2;y\n")
    assert table.column("a").tolist() == [1.5, 2]
    assert table.column("b").tolist() == ["x", "y"]
    assert any("2 left out" in remark for remark in table.remarks)
    assert read(tmp_path, "#id,a\n1,2\n3,4\n").names == ("#id", "a")  # as many fields as the rows: names
    assert read(tmp_path, 'a,b\n"one\n# two",1\n').column("a").tolist() == ["one\n# two"]
    assert read(tmp_path, "a,tag\n1,x\n#3,y\n").column("a").tolist() == ["1", "#3"]


def test_lines_of_errors_are_those_of_the_file(tmp_path):
    with pytest.raises(Exception, match="line 5: 3 fields"):
        read(tmp_path, "# one\n# two\na,b\n1,2\n1,2,3\n")


def test_whole_numbers_that_would_lose_digits_are_names(tmp_path):
    ids = [str(2**53 + 1 + 2 * i) for i in range(4)]
    table = read(tmp_path, "id,n,big\n" + "\n".join(f"{i},{k},{10**k}" for k, i in enumerate(ids, start=16)) + "\n")
    assert table.column("id").tolist() == ids
    assert table.column("big").dtype == float  # exact as they are
    assert any("more than 15 digits" in remark for remark in table.remarks)
    mixed = read(tmp_path, f"id\n1\n{2**53}\n{ids[1]}\n")
    assert any(f"more than 15 digits, like {ids[1]}," in remark for remark in mixed.remarks)
    long = read(tmp_path, "id\n" + "9" * 400 + "\n" + "8" * 400 + "\n")
    assert long.column("id").dtype == object


def test_a_column_that_is_mostly_empty_is_not_one_of_numbers(tmp_path):
    rows = ["PG-13,1", *[",2"] * 30, "R,3"]
    table = read(tmp_path, "rating,x\n" + "\n".join(rows) + "\n")
    assert not table.notes
    mostly = read(tmp_path, "a,x\n" + "\n".join([*["5,1"] * 30, "many,2"]) + "\n")
    assert "holds numbers, except 'many' and the like in 1 of 31 rows" in mostly.notes[0]


DATES = {
    "2020-02-29": "2020-02-29",
    "2020-02-29T13:30:00Z": "2020-02-29 13:30",
    "2020-02-29 13:30": "2020-02-29 13:30",
    "2020/02/29": "2020-02-29",
    "29.02.2020": "2020-02-29",
    "02/29/2020": "2020-02-29",
    "29/02/2020": "2020-02-29",
    "29 Feb 2020": "2020-02-29",
    "February 29, 2020": "2020-02-29",
    "02/29/2020 01:30 PM": "2020-02-29 13:30",
}


@pytest.mark.parametrize("text", DATES)
def test_dates_become_what_they_are_made_of(text):
    when = pd.Timestamp(DATES[text])
    found = find_dates([text, None, text])
    made = expand_dates("day", [text, None], found)
    assert made["day: year"][0] == when.year
    assert made["day: month"].tolist() == ["February", None]
    assert made["day: weekday"].tolist() == ["Saturday", None]
    assert made["day: elapsed"][0] == 0
    assert np.isnan(made["day: elapsed"][1])
    assert ("day: hour" in made) == (when.hour > 0)
    if when.hour:
        assert made["day: hour"][0] == 13.5


@pytest.mark.parametrize(
    "texts", [["1-2", "3-4"], ["A1", "B2"], ["2020-13-01"], ["2020-01-01", "soon"], ["1.2.3"], [None]]
)
def test_other_texts_are_no_dates(texts):
    assert find_dates(texts) is None


def test_days_before_months_where_the_numbers_say_so():
    assert find_dates(["03/04/2020", "13/04/2020"])["format"] == "%d/%m/%Y"
    assert find_dates(["03/04/2020", "05/06/2020"])["format"] == "%m/%d/%Y"  # said, with --categorical as the way out


def test_dates_are_inputs_and_new_ones_too(tmp_path):
    days = pd.date_range("2020-01-30", periods=40, freq="D")
    table = read(tmp_path, "day,x\n" + "\n".join(f"{day:%Y-%m-%d},{i % 3}" for i, day in enumerate(days)) + "\n")
    inputs = TableInputs().fit(table.frame)
    names = inputs.get_feature_names_out().tolist()
    assert "day: elapsed" in names
    assert "day: weekday=Monday" in names
    assert "day: month=March" in names
    assert "day: year" not in names  # the same in all rows
    X = inputs.encode(table)
    elapsed = X[:, names.index("day: elapsed")]
    np.testing.assert_allclose(np.diff(elapsed), np.diff(elapsed)[0])
    assert inputs.columns_ == ["day", "x"]
    new = read(tmp_path, "day,x\n2020-02-03,1\nlater,1\n", "new.csv")
    with pytest.warns(UserWarning, match="'later' is not written as in training"):
        Z = inputs.encode(new)
    assert Z[0, names.index("day: weekday=Monday")] == 1
    assert Z[0, names.index("day: elapsed")] == pytest.approx(elapsed[4])
    frame = new.frame.iloc[:1].assign(day=pd.to_datetime(["2020-02-03"]))  # a data frame in Python
    np.testing.assert_allclose(inputs.transform(frame), Z[:1])
    as_names = TableInputs(categorical=("day",)).fit(table.frame)
    assert "day" not in as_names.dates_


def test_outliers_are_warned_of():
    values = np.r_[np.arange(50.0), 1e12]
    assert "holds 1e+12" in TableInputs().fit(pd.DataFrame({"a": values})).doubts_[0]
    assert not TableInputs().fit(pd.DataFrame({"a": np.r_[np.arange(50.0), 500.0]})).doubts_
    assert not TableInputs(standardize=False).fit(pd.DataFrame({"a": values})).doubts_


# On the command line


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("readings")
    rng = np.random.default_rng(0)
    n = 60
    frame = pd.DataFrame({"a": rng.standard_normal(n), "b": rng.standard_normal(n)}).round(3)
    frame["day"] = pd.date_range("2021-03-01", periods=n).strftime("%d.%m.%Y")
    frame["price"] = [f"${1000 + 37 * i:,}" for i in range(n)]
    frame["times"] = rng.integers(0, 4, n)
    frame["kind"] = np.where(frame.a > 0, "yes", "no")
    frame["grade"] = (frame.a > 0).astype(int) + (frame.b > 0)
    frame["mark"] = np.where(np.arange(n) < 8, np.arange(n) + 3, frame.grade)
    frame.to_csv(place / "t.csv", index=False)
    return place


def test_a_fit_says_how_it_read_the_columns(folder):
    drop = ("--ignore", "grade", "--ignore", "mark", "--ignore", "times")
    done = run_here("fit", folder / "t.csv", "-t", "kind", *drop, "-o", folder / "m", *ONE)
    assert done.code == 0, done.err
    assert "'day' holds dates, like '01.03.2021': year, month, weekday and elapsed (days since 2021-03-01)" in done.err
    assert "column 'price' is read as numbers: '$1,000' is 1000" in done.err
    assert run_here("predict", folder / "m", folder / "t.csv").code == 0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_weights_are_those_of_the_estimator_and_of_the_scores(folder):
    drop = ("--ignore", "grade", "--ignore", "mark", "--ignore", "day", "--ignore", "price")
    frame = pd.read_csv(folder / "t.csv")
    done = run_here(
        "fit", folder / "t.csv", "-t", "kind", "--weight", "times", *drop, "-o", folder / "w", "--json", *ONE
    )
    assert done.code == 0, done.err
    kept = frame[frame.times > 0]
    assert done.json["rows"] == len(kept)
    assert f"{60 - len(kept)} of 60 rows have no weight and are left out" in done.err
    by_class = kept.groupby("kind").times.sum()
    assert done.json["baseline_score"] == pytest.approx(by_class.max() / by_class.sum())
    model = load(folder / "w")
    assert model.inputs.get_feature_names_out().tolist() == ["a", "b"]
    again = clone(model.estimator).fit(model.inputs.transform(kept), kept.kind, sample_weight=kept.times)
    np.testing.assert_allclose(again.coef_features_, model.estimator.coef_features_)
    judged = run_here("evaluate", folder / "w", folder / "t.csv", "--json").json
    frame.loc[frame.index.repeat(frame.times)].drop(columns="times").to_csv(folder / "repeated.csv", index=False)
    as_rows = run_here("evaluate", folder / "w", folder / "repeated.csv", "--json").json
    assert judged["scores"] == pytest.approx(as_rows["scores"])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_weights_choose_the_settings_too(folder):
    drop = ("--ignore", "grade", "--ignore", "mark", "--ignore", "day", "--ignore", "price")
    search = ("--folds", 2, "--n-components", 2, "--max-iter", 2, "--C", 1, "--json")
    done = run_here("fit", folder / "t.csv", "-t", "kind", "--weight", "times", *drop, "-o", folder / "w", *search)
    assert done.code == 0, done.err
    kept = pd.read_csv(folder / "t.csv").query("times > 0")
    model = load(folder / "w")
    X, weights = model.inputs.transform(kept), kept.times.to_numpy(float)
    folds = StratifiedKFold(2, shuffle=True, random_state=0)
    search = ILSVMClassifierCV(2, Cs=[1.0], max_iter=2, cv=folds, random_state=0).fit(X, kept.kind, weights)
    assert done.json["cross_validation"]["mean"] == pytest.approx(search.best_score_)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_weights_are_those_of_the_fits_that_features_may_come_back_in(folder):
    drop = ("--ignore", "grade", "--ignore", "mark", "--ignore", "day", "--ignore", "price")
    more = ("--stability", 3, "--json", *ONE)
    done = run_here("fit", folder / "t.csv", "-t", "kind", "--weight", "times", *drop, "-o", folder / "w", *more)
    assert done.code == 0, done.err
    kept = pd.read_csv(folder / "t.csv").query("times > 0")
    model = load(folder / "w")
    given = (model.estimator, model.inputs.transform(kept), kept.kind.to_numpy())
    options = {"n_resamples": 3, "random_state": 0}
    found = feature_stability(*given, **options, sample_weight=kept.times.to_numpy(float))
    plain = feature_stability(*given, **options)
    lowest = [row["lowest_likeness"] for row in done.json["stability"]["features"]]
    np.testing.assert_allclose(lowest, found.table()["lowest_likeness"])
    assert not np.allclose(lowest, plain.table()["lowest_likeness"])


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_of_a_useless_model_of_weighed_rows_it_is_said_that_they_may_be_cells(tmp_path):
    cells = [f"{sex},{age},{answer},{9 + (age == 'old')}" for sex in "mf" for age in ("old", "new") for answer in "yn"]
    (tmp_path / "cells.csv").write_text("\n".join(["sex,age,answer,n", *cells]) + "\n")
    given = (tmp_path / "cells.csv", "-t", "answer", "-o", tmp_path / "m", "--json", "--folds", 2, *ONE[:4], "--C", 1)
    for weight, said in ((("--weight", "n"), True), (("--ignore", "n"), False)):
        done = run_here("fit", *given, *weight)
        assert done.json["no_better_than_baseline"], done.err
        assert any("folds leave out whole cells: --no-cv" in told for told in done.json["warnings"]) is said


@pytest.mark.parametrize(
    ("column", "message"),
    [("kind", "should hold numbers, but it has"), ("b", "weights are numbers of 0 or more"), ("c", "no column 'c'")],
)
def test_weights_that_are_none(folder, column, message):
    done = run_here("fit", folder / "t.csv", "-t", "grade", "--weight", column, "-o", folder / "x", *ONE)
    assert done.code == 3
    assert message in done.err


def test_new_classes_in_evaluate_are_errors_and_are_said(folder):
    options = ("--ignore", "mark", "--ignore", "day", "--ignore", "price", "--ignore", "times", *ONE)
    for target, ignored, new in (("kind", "grade", "perhaps"), ("grade", "kind", "7"), ("grade", "kind", "seven")):
        run_here("fit", folder / "t.csv", "-t", target, "--ignore", ignored, "-o", folder / "m", *options)
        frame = pd.read_csv(folder / "t.csv", dtype=str)
        frame.loc[:2, target] = new
        frame.to_csv(folder / "new.csv", index=False)
        done = run_here("evaluate", folder / "m", folder / "new.csv", "--json")
        assert done.code == 0, done.err
        assert any(f"not there in training ({new!r}), in 3 rows" in warning for warning in done.json["warnings"])
        recalls = {detail["class"]: detail["recall"] for detail in done.json["details"]}
        assert recalls[new] == 0


def test_several_targets_of_few_numbers_name_the_way_out(folder):
    done = run_here(
        *("fit", folder / "t.csv", "-t", "mark", "-t", "times", "-o", folder / "x", "--folds", 2),
        *("--n-components", 2, "--max-iter", 2, "--C", 1, "--temperature", 0.1, "--features-only"),
    )
    message = " ".join(done.err.split())
    assert "--kind regressor" in message
