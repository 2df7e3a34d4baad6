"""Test registered classes (dataclasses, enums, estimators) and the registry."""

from __future__ import annotations

import dataclasses
import enum
import functools
import sys
from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import pytest
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import validate_data

from persistence_tools import assert_same, craft, round_trip
from regbayes.persistence import PersistenceError, Saveable, declare_provider, load, persistable, save


@persistable
class Status(enum.Enum):
    OPTIMAL = "optimal"
    ITERATION_LIMIT = "iteration_limit"


@persistable
class Level(enum.IntEnum):
    LOW = 1


@persistable
class Parts(enum.Flag):
    A = 1
    B = 2


@persistable
@dataclasses.dataclass(frozen=True)
class State(Saveable):
    mean: np.ndarray
    status: Status
    inner: State | None = None
    total: float = dataclasses.field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "total", float(self.mean.sum()))

    @functools.cached_property
    def doubled(self):
        return 2 * self.mean


@persistable
@dataclasses.dataclass(frozen=True)
class Pair:
    value: float
    rest: tuple = ()


@persistable(skip=("callback",))
class WithCallback:
    def __init__(self, callback):
        self.callback = callback
        self.kept = 1


@persistable
class RunsNothing:
    """Class whose constructor, setters and properties raise during loading."""

    allowed = True

    def __init__(self):
        assert self.allowed
        self.value = 1

    def __new__(cls):
        assert cls.allowed
        return super().__new__(cls)

    def __setstate__(self, state):
        raise AssertionError

    def __setattr__(self, name, value):
        assert self.allowed
        super().__setattr__(name, value)

    @property
    def watched(self):
        raise AssertionError

    @watched.setter
    def watched(self, value):
        raise AssertionError

    def method(self):
        return "the method"


@persistable
class Node:
    def __init__(self, leaf=None):
        self.leaf = leaf


def test_dataclass_round_trips_without_post_init(tmp_path):
    inner = State(np.arange(2.0), Status.OPTIMAL)
    object.__setattr__(inner, "total", -1.0)  # differs from the value that __post_init__ computes
    state = State(np.array([0.1, np.nan]), Status.ITERATION_LIMIT, inner)
    assert state.doubled is state.doubled
    found = round_trip(state, tmp_path)
    assert_same(found, state)
    assert found.inner.total == -1.0
    assert "doubled" not in vars(found)
    assert_same(found.doubled, state.doubled)


def test_enum_members_round_trip(tmp_path):
    values = [Status.OPTIMAL, Level.LOW, Parts.A]
    assert_same(round_trip(values, tmp_path), values)
    for value in (Parts.A | Parts.B, enum.Enum("Unknown", ["ONE"]).ONE):
        with pytest.raises(
            PersistenceError, match=r"list\[0\] is .*, which is not a member of a registered enumeration"
        ):
            save([value], tmp_path / "file")


def test_skipped_attributes_are_not_saved(tmp_path):
    found = round_trip(WithCallback(lambda: 1), tmp_path)
    assert vars(found) == {"kept": 1}


def test_load_runs_no_method_of_the_class(tmp_path):
    save(RunsNothing(), tmp_path / "file")
    RunsNothing.allowed = False
    try:
        assert load(tmp_path / "file").value == 1
    finally:
        RunsNothing.allowed = True


def test_shared_object_stays_shared(tmp_path):
    node = Node(Node())
    first, second, third = round_trip([node, Node([node]), node.leaf], tmp_path)
    assert first is second.leaf[0]
    assert first.leaf is third
    assert third.leaf is None


def test_save_of_recursive_object_raises(tmp_path):
    node = Node()
    node.leaf = [Node(node)]
    with pytest.raises(PersistenceError, match=r"Node\.leaf\[0\]\.leaf contains itself, which cannot be saved"):
        save(node, tmp_path / "file")


def test_save_of_invalid_attribute_raises(tmp_path):
    node = Node()
    vars(node)["__class__"] = 1
    with pytest.raises(PersistenceError, match="'__class__' is not the name of an attribute"):
        save(node, tmp_path / "file")
    shadow = RunsNothing()
    vars(shadow)["method"] = 1
    with pytest.raises(PersistenceError, match=r"RunsNothing\.method would hide a method"):
        save(shadow, tmp_path / "file")
    state = State(np.arange(2.0), Status.OPTIMAL)
    object.__setattr__(state, "note", "not a field")
    with pytest.raises(PersistenceError, match=r"State\.note is not a field of the dataclass State"):
        save(state, tmp_path / "file")
    object.__delattr__(state, "note")
    object.__delattr__(state, "total")
    with pytest.raises(PersistenceError, match=r"State\.total is a field without a default"):
        save(state, tmp_path / "file")


def instance(cls: type, **state: object) -> dict:
    return {"object": [name_of(cls), state]}


def name_of(cls: type) -> str:
    """Return the default name of a class, which omits submodules."""
    return f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}"


BAD_ATTRIBUTES = {
    "dunder": (instance(Node, __class__=1), "'__class__' is not the name"),
    "no identifier": (instance(Node, **{"a b": 1}), "'a b' is not the name"),
    "method": (instance(RunsNothing, method=1), "would hide a method"),
    "property": (instance(RunsNothing, watched=1), "would hide a method or property"),
    "cached property": (instance(State, mean=1, status=1, total=1, doubled=1), "is not a field"),
    "no such field": (instance(Pair, value=1, more=2), "is not a field"),
    "lacking field": (instance(Pair), r"the file lacks the object\.value, which Pair needs"),
    "unknown member": ({"enum": [name_of(Status), "BAD"]}, "unknown member 'BAD'"),
    "member that is a method": ({"enum": [name_of(Status), "name"]}, "unknown member"),
    "enum of a class": ({"enum": [name_of(Node), "leaf"]}, "unknown member"),
    "object of an enum": (instance(Status), "malformed"),
    "reference to nothing": ({"ref": 3}, "malformed"),
    "reference to itself": (instance(Node, leaf={"ref": 0}), r"malformed at the object\.leaf"),
    "reference to what comes later": ([{"ref": 0}, instance(Node)], r"malformed at the object\[0\]"),
    "reference by truth": ([instance(Node), {"ref": False}], r"malformed at the object\[1\]"),
    "reference from the end": ([instance(Node), {"ref": -1}], r"malformed at the object\[1\]"),
}


@pytest.mark.parametrize(("tree", "message"), BAD_ATTRIBUTES.values(), ids=BAD_ATTRIBUTES)
def test_load_of_invalid_attribute_raises(tree, message, tmp_path):
    with pytest.raises(PersistenceError, match=message):
        load(craft(tmp_path / "file", tree))


def test_load_fills_missing_attributes_with_defaults(tmp_path):
    assert load(craft(tmp_path / "file", instance(Pair, value=1.0))) == Pair(1.0)
    found = load(craft(tmp_path / "file", instance(Classifier, C=2.0)))
    assert found.get_params() == Classifier(C=2.0).get_params()


@persistable
class Classifier(ClassifierMixin, BaseEstimator):
    def __init__(self, C=1.0, random_state=None, base=None):
        self.C = C
        self.random_state = random_state
        self.base = base

    def fit(self, X, y, sample_weight=None):
        X = validate_data(self, X)
        self.classes_, codes = np.unique(y, return_inverse=True)
        self.state_ = State(np.stack([X[codes == code].mean(axis=0) for code in np.unique(codes)]), Status.OPTIMAL)
        return self

    def predict(self, X):
        distances = ((validate_data(self, X, reset=False)[:, None] - self.state_.mean) ** 2).sum(axis=2)
        return self.classes_[distances.argmin(axis=1)]


def test_fitted_estimator_round_trips(tmp_path):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(1)
    frame = pandas.DataFrame(rng.normal(size=(30, 2)), columns=["age", "ß"])
    labels = rng.choice(np.array(["cat", "dog", "eel"], dtype=object), 30)
    base = Classifier().fit(frame, labels)
    fitted = Classifier(3.0, random_state=np.random.RandomState(4), base=base).fit(frame, labels)
    found = round_trip(fitted, tmp_path)
    assert vars(found).keys() == vars(fitted).keys()
    assert found.random_state is None
    assert_same(found.feature_names_in_, fitted.feature_names_in_)
    assert_same(found.predict(frame), fitted.predict(frame))
    assert_same(found.base.predict(frame), base.predict(frame))
    assert clone(found).get_params()["C"] == 3.0
    with pytest.raises(ValueError, match="feature names"):
        found.predict(frame.rename(columns={"age": "other"}))


@pytest.mark.parametrize("make", [np.random.RandomState, np.random.default_rng])
def test_random_generator_attribute_is_saved_as_none(make, tmp_path):
    classifier = Classifier(random_state=make(3), base=Classifier(random_state=7))
    found = round_trip(classifier, tmp_path)
    assert found.random_state is None
    assert found.base.random_state == 7
    assert classifier.random_state is not None


def test_metadata_requests_round_trip(tmp_path):
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = Classifier().set_fit_request(sample_weight=True)
        found = round_trip(estimator, tmp_path)
        assert found.get_metadata_routing().fit.requests == {"sample_weight": True}
        assert clone(found).get_metadata_routing().fit.requests == {"sample_weight": True}
        assert_same(round_trip(found, tmp_path), found)


def test_save_of_unregistered_subclass_raises(tmp_path):
    class Special(Node):
        pass

    with pytest.raises(PersistenceError, match="Special, which cannot be saved"):
        save(Special(), tmp_path / "file")


class Named(NamedTuple):
    a: int


class Slots:
    __slots__ = ("value",)


class HasSlots(Slots):
    pass


class Abstract(ABC):
    @abstractmethod
    def value(self): ...


@pytest.mark.parametrize("cls", [Named, Abstract, HasSlots, type("D", (dict,), {}), type("A", (np.ndarray,), {})])
def test_persistable_with_unsupported_class_raises(cls):
    with pytest.raises(TypeError, match="cannot be rebuilt from its attributes"):
        persistable(cls)


def test_persistable_with_duplicate_name_raises():
    with pytest.raises(ValueError, match=r"\.Node' is taken by .*\.Node; give .*\.Other another"):
        persistable(type("Other", (), {}), name=name_of(Node))


def test_redefined_class_replaces_its_registration(tmp_path):
    def define():
        @persistable(name="test_objects.Again")
        class Again:
            pass

        return Again

    first, second = define(), define()
    assert type(round_trip(second(), tmp_path)) is second
    assert type(round_trip(first(), tmp_path)) is second  # an instance of the class before its redefinition


def test_alias_loads_files_with_old_name(tmp_path):
    @persistable(name="test_objects.NewName", aliases=["test_objects.OldName"])
    class Renamed:
        pass

    tree = {"object": ["test_objects.OldName", {"value": 1}]}
    found = load(craft(tmp_path / "file", tree))
    assert type(found) is Renamed
    save(found, tmp_path / "file")
    assert b"test_objects.NewName" in (tmp_path / "file").read_bytes()


def test_declared_provider_is_imported_for_missing_name(tmp_path, monkeypatch):
    module = "from regbayes.persistence import persistable\n\n@persistable\nclass Late:\n    pass\n"
    (tmp_path / "late_provider.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("regbayes._registry._PROVIDERS", {})
    tree = {"object": ["late_provider.Late", {}]}
    craft(tmp_path / "file", tree)
    with pytest.raises(PersistenceError, match=r"unknown type 'late_provider\.Late'"):
        load(tmp_path / "file")
    assert "late_provider" not in sys.modules
    declare_provider("no_such_module")  # simulates an extra that is not installed
    with pytest.raises(ImportError, match="no_such_module"):
        load(tmp_path / "file")
    declare_provider("late_provider")
    assert type(load(tmp_path / "file")).__name__ == "Late"


def test_persistable_only_limits_values_of_attribute(tmp_path):
    @persistable(name="test_objects.Limited", only={"mode": ("safe", None)}, replace={"parent": type})
    class Limited:
        def __init__(self, mode):
            self.mode = mode
            self.parent = 1

    found = round_trip(Limited("safe"), tmp_path)
    assert (found.mode, found.parent) == ("safe", int)
    assert round_trip(Limited(None), tmp_path).mode is None
    for mode in ("other", "s", ["safe"], np.array(["safe"]), len):
        with pytest.raises(PersistenceError, match=r"Limited\.mode may be 'safe' or None in a file, not"):
            save(Limited(mode), tmp_path / "file")
    for node in ("other", ["safe"], {"tuple": []}):
        with pytest.raises(PersistenceError, match=r"the object\.mode may be 'safe' or None in a file, not"):
            load(craft(tmp_path / "file", {"object": ["test_objects.Limited", {"mode": node}]}))
