"""Average effects agree with finite differences in the user's units and categories."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler

import regbayes
from ilsvm_estimator_tools import ilsvm
from multitask_tools import classifier, groups, labels, numbers, regressor
from regbayes.persistence import save
from regbayes.report import collect
from regbayes.report._columns import Columns
from report_tools import data_of, fitted

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

N = 80


def flowers() -> pd.DataFrame:
    """Data frame with numbers in very different units and two categorical columns."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"mass_g": 4000 + 500 * rng.standard_normal(N), "bill_mm": rng.normal(40, 3, N)})
    frame["place"] = rng.choice(["north", "south", "west"], N, p=[0.5, 0.3, 0.2])
    frame["wild"] = rng.choice(["no", "yes"], N)
    return frame


def encoder() -> Any:
    return make_column_transformer((StandardScaler(), ["mass_g", "bill_mm"]), (OneHotEncoder(), ["place", "wild"]))


def truth(frame: pd.DataFrame) -> np.ndarray:
    noise = np.random.default_rng(1).standard_normal(N)
    return np.asarray((frame.mass_g - 4000) / 500 + 2 * (frame.place == "south") + (frame.bill_mm > 40) + noise)


def saved(estimator, tmp_path):
    save(estimator, tmp_path / "model")
    return regbayes.load(tmp_path / "model")


def slope(ask, frame: pd.DataFrame, name: str, step: float) -> np.ndarray:
    """Return the mean central difference."""
    up, down = frame.assign(**{name: frame[name] + step}), frame.assign(**{name: frame[name] - step})
    return np.atleast_1d(np.mean((ask(up) - ask(down)) / (2 * step), axis=0))


def change(ask, frame: pd.DataFrame, name: str, value: str, instead: str) -> np.ndarray:
    found = ask(frame.assign(**{name: value})) - ask(frame.assign(**{name: instead}))
    return np.atleast_1d(np.mean(found, axis=0))


def check_frame(effects, ask, frame):
    """Check all effects of the four columns of `flowers`."""
    assert set(effects.names) == {"mass_g", "bill_mm", "place", "wild"}
    for i, name in enumerate(effects.names):
        if effects.kinds[i] == "number":
            step = 1e-5 * frame[name].std()
            deviation = frame[name].std(ddof=0)
            assert effects.deviations[i] == pytest.approx(deviation)
            expected = slope(ask, frame, name, step) * deviation
            np.testing.assert_allclose(effects.slopes[i] * deviation, expected, rtol=1e-6, atol=1e-7)
            whole_step = slope(ask, frame, name, deviation / 2) * deviation
            np.testing.assert_allclose(effects.sizes[i], whole_step, rtol=1e-9, atol=1e-11)
            half = deviation / 2
            by_row = ask(frame.assign(**{name: frame[name] + half})) - ask(frame.assign(**{name: frame[name] - half}))
            error = np.atleast_1d(np.std(by_row, axis=0)) / np.sqrt(len(frame))
            np.testing.assert_allclose(effects.errors[i], error, atol=1e-9 * np.abs(by_row).max())
        else:
            usual, *others = effects.categories[i]
            assert usual == frame[name].mode()[0]
            assert {usual, *others} == set(frame[name])
            for place, value in enumerate(others):
                expected = change(ask, frame, name, value, usual)
                np.testing.assert_allclose(effects.changes[i][place], expected, rtol=1e-9, atol=1e-12)
            assert effects.changes[i].shape == effects.change_errors[i].shape
            best = np.abs(effects.changes[i]).argmax(axis=0)[None]
            np.testing.assert_array_equal(effects.sizes[i], np.take_along_axis(effects.changes[i], best, axis=0)[0])
            np.testing.assert_array_equal(
                effects.errors[i], np.take_along_axis(effects.change_errors[i], best, axis=0)[0]
            )


@pytest.mark.parametrize("include_inputs", [False, True])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_effects_of_classifier_pipeline_match_differences(tmp_path, include_inputs, n_classes):
    frame = flowers()
    y = np.array(["a", "b", "c"])[np.digitize(truth(frame), [0.5, 1.5] if n_classes == 3 else [1.0])]
    model = make_pipeline(encoder(), ilsvm(5, include_inputs=include_inputs)).fit(frame, y)
    effects = collect(model, frame, y).effects
    again = saved(model, tmp_path)
    check_frame(effects, again.decision_function, frame)
    assert not effects.linear
    assert effects.n_rows == N
    assert effects.outputs == (("a", "b", "c") if n_classes == 3 else ("b",))
    assert (effects.direct is None) != include_inputs
    if include_inputs:  # the direct part is linear in the inputs
        seen = model[:-1].transform(frame)
        place = effects.names.index("mass_g")
        scale = model[0].named_transformers_["standardscaler"].scale_[0]
        np.testing.assert_allclose(effects.direct[place], model[-1].coef_inputs_[:, 0] / scale)
        island = effects.names.index("place")
        names = model[0].get_feature_names_out().tolist()
        usual, other = (names.index(f"onehotencoder__place_{name}") for name in effects.categories[island][:2])
        coef = model[-1].coef_inputs_
        np.testing.assert_allclose(effects.direct_changes[island][0], coef[:, other] - coef[:, usual])
        assert seen.shape[1] == coef.shape[1]


@pytest.mark.parametrize("include_inputs", [False, True])
def test_effects_of_linear_regressor_are_exact(tmp_path, include_inputs):
    frame = flowers()
    y = pd.Series(100 * truth(frame), name="price")
    model = make_pipeline(encoder(), regressor(include_inputs=include_inputs)).fit(frame, y)
    effects = collect(model, frame, y).effects
    again = saved(model, tmp_path)
    check_frame(effects, again.predict, frame)
    check_frame(effects, lambda rows: again.predict(rows)[:1], frame)
    assert effects.linear
    assert (effects.answer, effects.outputs) == ("price", ("price",))
    assert all(len(grid) == 0 for grid in effects.grids)
    by_row = again.predict(frame.assign(mass_g=frame.mass_g + 1000)) - again.predict(frame)
    np.testing.assert_allclose(by_row, 1000 * effects.slopes[effects.names.index("mass_g"), 0], rtol=1e-9)


def test_effects_of_labels_numbers_and_tasks():
    X, Y = labels(n_rows=90, n_tasks=3)
    effects = collect(model := classifier(include_inputs=True).fit(X, Y), X, Y, target_names=["a", "b", "c"]).effects
    assert effects.linear
    check_rows(effects, model.decision_function, X)
    X, Y = numbers(n_rows=60)
    effects = collect(model := regressor().fit(X, Y), X, Y).effects
    check_rows(effects, model.predict, X)
    X, y, task = groups()
    effects = collect(model := regressor().fit(X, y, task=task), X, y, task=task).effects
    assert effects.outputs == tuple(model.tasks_)

    def of_each_task(rows):
        return np.stack([model.predict(rows, task=np.full(len(rows), one)) for one in model.tasks_], axis=1)

    check_rows(effects, of_each_task, X)


def check_rows(effects, ask, X):
    order = [int(name.removeprefix("input ")) for name in effects.names]
    assert sorted(order) == list(range(X.shape[1]))
    for i, place in enumerate(order):
        step = np.zeros(X.shape[1])
        step[place] = 1e-3
        expected = np.mean((ask(X + step) - ask(X - step)) / 2e-3, axis=0)
        np.testing.assert_allclose(effects.slopes[i], expected, rtol=1e-6, atol=1e-8)
    strongest = np.abs(effects.sizes / ask(X).std(axis=0)).max(axis=1)
    assert np.all(np.diff(strongest) <= 1e-12)  # sorted by decreasing effect


def test_word_effects_are_those_of_one_more_occurrence():
    model, counts, _, _ = fitted("topics")
    effects = data_of("topics").effects
    assert set(effects.kinds) == {"word"}
    words = ["ball", "goal", "law", "vote", "with"]
    some = counts.toarray()[np.unique(np.linspace(0, 59, 40).round().astype(int))]
    for name, found in zip(effects.names, effects.slopes, strict=True):
        more = some + (np.arange(5) == words.index(name))
        assert found[0] == pytest.approx(np.mean(model.predict(more) - model.predict(some)), abs=1e-6)
    assert effects.slopes[effects.names.index("ball"), 0] > 0 > effects.slopes[effects.names.index("law"), 0]
    assert set(collect(model, counts.toarray(), fitted("topics")[2]).effects.kinds) == {"word"}


def test_pixel_effects_are_images():
    effects = data_of("images").effects
    assert effects.pictures.shape == (4, 8, 8)
    place = [int(name.removeprefix("input ")) for name in effects.names]
    flat = np.zeros((4, 64))
    flat[:, place] = effects.sizes.T
    shown = effects.pictures.reshape(4, 64) * effects.picture_limit / 127
    np.testing.assert_allclose(shown, flat, atol=effects.picture_limit / 254 * 1.001)


def test_curves_match_partial_dependence():
    estimator, X, _, _ = fitted("table")
    effects = data_of("table").effects
    rows = X[np.unique(np.linspace(0, len(X) - 1, 100).round().astype(int))]
    for i, place in enumerate([("ash", "hue", "proline").index(name) for name in effects.names]):
        assert len(effects.grids[i]) > 5
        found = []
        for value in effects.grids[i]:
            changed = rows.copy()
            changed[:, place] = value
            found.append(estimator.decision_function(changed).mean(axis=0))
        np.testing.assert_allclose(effects.curves[i], found - np.mean(found, axis=0), atol=1e-12)


def test_columns_mixed_by_pca_have_effects():
    frame = flowers()[["mass_g", "bill_mm"]]
    y = truth(flowers()) > 1
    model = make_pipeline(StandardScaler(), PolynomialFeatures(2, include_bias=False), PCA(3), ilsvm(4)).fit(frame, y)
    data = collect(model, frame, y)
    for i, name in enumerate(data.effects.names):
        deviation = frame[name].std(ddof=0)
        expected = slope(model.decision_function, frame, name, 1e-5 * deviation) * deviation
        np.testing.assert_allclose(data.effects.slopes[i] * deviation, expected, rtol=1e-5, atol=1e-7)
    assert data.features.loading_units is None  # mixed columns have no unit
    assert data.features.loading_names[0][0].startswith("pca")


def test_missing_values_are_compared():
    frame = flowers()
    frame.loc[::7, "bill_mm"] = np.nan
    frame.loc[::9, "place"] = None
    numbers_of = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    encode = make_column_transformer((numbers_of, ["mass_g", "bill_mm"]), (OneHotEncoder(), ["place", "wild"]))
    model = make_pipeline(encode, ilsvm(5)).fit(frame, y := truth(frame) > 1)
    effects, ask = collect(model, frame, y).effects, model.decision_function
    place, bill = effects.names.index("place"), effects.names.index("bill_mm")
    assert effects.categories[bill] == ("its median", "(missing)")
    expected = ask(frame.assign(bill_mm=np.nan)) - ask(frame.assign(bill_mm=frame.bill_mm.median()))
    np.testing.assert_allclose(effects.changes[bill][0, 0], np.mean(expected), rtol=1e-6, atol=1e-9)
    at = effects.categories[place].index("(missing)") - 1
    none = pd.Series([frame.place[0]] * N, dtype=frame.place.dtype)
    expected = ask(frame.assign(place=none)) - ask(frame.assign(place="north"))
    np.testing.assert_allclose(effects.changes[place][at, 0], np.mean(expected), rtol=1e-6, atol=1e-9)
    seen = frame[frame.bill_mm.notna()]
    np.testing.assert_allclose(effects.slopes[bill], slope(ask, seen, "bill_mm", 1e-5), rtol=1e-4)


def test_rows_and_loadings_are_in_user_units():
    frame = flowers()
    y = truth(frame) > 1
    model = make_pipeline(encoder(), ilsvm(5)).fit(frame, y)
    data = collect(model, frame, y)
    names = {"mass_g", "bill_mm", *(f"place = {one}" for one in ("north", "south", "west")), "wild = no", "wild = yes"}
    assert set(data.features.loading_names[0]) == names
    scale = dict(zip(["mass_g", "bill_mm"], model[0].named_transformers_["standardscaler"].scale_, strict=True))
    made = model[0].get_feature_names_out().tolist()
    for place, feature in enumerate(data.features.number):
        found = dict(zip(data.features.loading_names[place], data.features.loading_units[place], strict=True))
        for name, unit in scale.items():
            loading = model[-1].components_[feature, made.index(f"standardscaler__{name}")]
            assert found[name] == pytest.approx(loading * unit)
        shown = data.features.example_input_names[place]
        for example, cells in zip(data.features.examples[place], data.features.example_inputs[place], strict=True):
            row = frame.iloc[int(data.examples.names[example].removeprefix("row "))]
            assert list(cells) == [row[name] for name in shown]
    assert data.examples.input_names == data.effects.names
    for name, cells in zip(data.examples.names, data.examples.inputs, strict=True):
        row = frame.iloc[int(name.removeprefix("row "))]
        assert list(cells) == [row[column] for column in data.examples.input_names]


def test_free_text_is_left_out_of_effects():
    frame = flowers().assign(note=[f"note number {i}" for i in range(N)] * 1)
    many = pd.concat([frame.assign(note=[f"{k} {text}" for text in frame.note]) for k in range(3)], ignore_index=True)
    y = np.tile(truth(flowers()) > 1, 3)
    model = make_pipeline(encoder(), ilsvm(3)).fit(many, y)
    effects = collect(model, many, y).effects
    assert effects.left_out == ("note",)
    assert "note" not in effects.names


def test_model_without_predictions_has_no_effects():
    assert data_of("unsupervised").effects is None


def test_columns_keep_data_frame_types():
    frame = pd.DataFrame({"a": [1, 2], "b": pd.Categorical(["x", "y"]), "c": ["u", None], "d": [True, False]})
    columns = Columns.read(frame, None)
    changed = columns.take(np.array([1, 0]), [(0, 1, 2.5), (1, 0, "y")])
    expected = frame.iloc[[1, 0]].reset_index(drop=True).assign(a=[2.0, 2.5], b=pd.Categorical(["y", "x"]))
    pd.testing.assert_frame_equal(changed, expected)
    frame = flowers()
    plain = make_pipeline(encoder(), ilsvm(4)).fit(frame, y := truth(frame) > 1)
    typed = frame.astype({"mass_g": "Float64", "wild": "string", "place": "category"})
    found, expected = collect(plain, typed, y).effects, collect(plain, frame, y).effects
    assert found.names == expected.names
    np.testing.assert_allclose(found.sizes, expected.sizes)
    whole = pd.DataFrame({"a": pd.array([1, None, 3], dtype="Int64"), "b": pd.array([True, None, False])})
    columns = Columns.read(whole, None)
    assert np.isnan(columns.column(0)[1])
    assert columns.cells(np.arange(3), [0, 1]) == ((1.0, "True"), ("(missing)", "(missing)"), (3.0, "False"))
    assert columns.take(np.arange(3), [(0, 0, 1.5)])["a"].tolist()[0] == 1.5
