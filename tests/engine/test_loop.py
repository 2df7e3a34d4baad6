"""The training loop: returned states, stopping and recorded values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regbayes.engine import (
    AbsoluteChange,
    DiminishingReturns,
    Progress,
    RelativeChange,
    Status,
    StepResult,
    Trace,
    run,
)

finite = st.floats(-1e6, 1e6)


def replay(objectives: Sequence[float]) -> dict:
    """Return the arguments of a fit whose state is the iteration number t and whose objective is ``objectives[t]``."""
    return {
        "step": lambda t: StepResult(t + 1),
        "state": 0,
        "objective": lambda t: {"value": objectives[t]},
        "max_iter": len(objectives) - 1,
    }


@dataclass(frozen=True)
class Point:
    x: np.ndarray  # (d,)


class TestWhatIsKept:
    @given(st.lists(finite, min_size=1, max_size=30))
    def test_run_returns_the_best_state_of_any_sequence(self, objectives):
        result = run(**replay(objectives))
        assert result.state == result.kept_iteration
        assert objectives[result.state] == min(objectives)
        assert result.status is Status.ITERATION_LIMIT
        assert result.n_iter == len(objectives) - 1

    @given(st.lists(finite, min_size=1, max_size=30))
    def test_run_with_keep_last_returns_the_last_state(self, objectives):
        assert run(**replay(objectives), keep="last").state == len(objectives) - 1

    def test_run_returns_the_start_if_every_step_is_worse(self):
        result = run(**replay([1.0, 2.0, 3.0]))
        assert (result.state, result.kept_iteration) == (0, 0)

    def test_run_without_objective_ignores_the_start(self):
        result = run(lambda t: StepResult(t + 1, {"value": 5.0 + t}), 0, max_iter=3)
        assert result.state == 1
        assert result.trace.iterations.tolist() == [1, 2, 3]

    def test_run_without_iterations_returns_the_start(self):
        def never(state):
            raise AssertionError("the step was called")

        result = run(never, "start", max_iter=0)
        assert (result.state, result.n_iter, result.status) == ("start", 0, Status.ITERATION_LIMIT)
        assert len(result.trace) == 0
        assert result.trace.terms == {}


class TestConvergence:
    def test_gradient_descent_on_a_quadratic_solves_normal_equations(self):
        rng = np.random.default_rng(0)
        A = rng.normal(size=(20, 4))
        b = rng.normal(size=20)
        rate = 1 / np.linalg.norm(A.T @ A + np.eye(4), 2)

        def terms(point: Point) -> dict[str, float]:
            return {"fit": 0.5 * np.sum((A @ point.x - b) ** 2), "ridge": 0.5 * np.sum(point.x**2)}

        def step(point: Point) -> StepResult[Point]:
            new = Point(point.x - rate * (A.T @ (A @ point.x - b) + point.x))
            return StepResult(new, terms(new))

        result = run(step, Point(np.zeros(4)), objective=terms, stop=RelativeChange(1e-15, patience=3), max_iter=10_000)
        assert result.status is Status.CONVERGED
        assert result.n_iter < 10_000
        np.testing.assert_allclose(result.state.x, np.linalg.solve(A.T @ A + np.eye(4), A.T @ b), rtol=1e-5)
        assert result.trace.rises.largest <= 1e-13 * abs(result.trace.objective[0])

    def test_patience_counts_consecutive_small_changes(self):
        objectives = [100.0, 50.0, 50.0, 50.0, 20.0, 20.0, 20.0, 20.0, 10.0]
        ends = [run(**replay(objectives), stop=RelativeChange(0.0, patience=p)).n_iter for p in (1, 2, 3)]
        assert ends == [2, 3, 7]

    @given(st.floats(1.0, 1e6), st.floats(-1, 1), st.floats(1.0, 1e6))
    def test_relative_change_is_relative_to_the_objective(self, value, change, scale):
        if math.isclose(abs(change), 1e-2, rel_tol=1e-3):
            return  # rounding decides here
        rule = RelativeChange(1e-2)
        assert rule([value, value * (1 + change)]) == rule([scale * value, scale * value * (1 + change)])

    def test_relative_change_has_a_floor_of_one_nat(self):
        assert RelativeChange(1e-3)([1e-9, -1e-9]) is Status.CONVERGED

    @pytest.mark.parametrize("rule", [RelativeChange(1e-3), AbsoluteChange(1e-3)], ids=["relative", "absolute"])
    def test_infeasible_start_is_not_a_small_change(self, rule):
        assert rule([math.inf, 1.0]) is None

    @pytest.mark.parametrize("constant", [0.0, 1e6, -1e6])
    def test_diminishing_returns_compare_to_earlier_decrease(self, constant):
        course = constant + 64.0 * 0.5 ** np.arange(20)
        rule = DiminishingReturns(0.25, window=2, least=0.0)
        # Two iterations gain 3/4 of the remainder at t - 2; the total gain is 64 minus the remainder at t.
        gained = [course[t - 2] - course[t] <= 0.25 * (course[0] - course[t]) for t in range(2, 20)]
        ends = run(**replay(course.tolist()), stop=rule)
        assert ends.status is Status.CONVERGED
        assert ends.n_iter == 2 + gained.index(True) == 4
        assert run(**replay(course.tolist()), stop=DiminishingReturns(0.0, window=2)).status is Status.ITERATION_LIMIT

    def test_start_near_the_optimum_converges_soon(self):
        rule = DiminishingReturns(0.1, window=2)
        assert rule([1e6, 1e6 - 0.1, 1e6 - 0.2]) is Status.CONVERGED
        assert rule([1e6, 1e6 - 10.0, 1e6 - 20.0]) is None
        assert rule([math.inf, 5.0, 4.0]) is None
        assert rule([math.inf, 5.0, 4.0, 4.0, 4.0]) is Status.CONVERGED

    @pytest.mark.parametrize("constant", [0.0, 1e6, -1e6])
    def test_absolute_change_ignores_additive_constants(self, constant):
        rule = AbsoluteChange(0.5, patience=2)
        assert rule([constant + 1.0, constant + 0.75, constant + 1.125]) is Status.CONVERGED
        assert rule([constant + 2.0, constant + 1.0, constant + 0.75]) is None
        assert rule([constant, constant]) is None

    @pytest.mark.parametrize("status", [Status.CONVERGED, Status.STALLED])
    def test_step_status_ends_the_fit(self, status):
        def step(t: int) -> StepResult[int]:
            return StepResult(t + 1, {"value": -float(t)}, status=status if t == 4 else None)

        result = run(step, 0, max_iter=100)
        assert (result.status, result.n_iter, result.state) == (status, 5, 5)

    @pytest.mark.parametrize("rule", [RelativeChange, AbsoluteChange, DiminishingReturns])
    @pytest.mark.parametrize("parameters", [(-1.0,), (math.nan,), (0.1, 0)])
    def test_bad_limit_or_number_of_changes_raises(self, rule, parameters):
        with pytest.raises(ValueError, match=r"must be a number >= 0|must be at least 1, got 0"):
            rule(*parameters)


class TestInterruption:
    def test_interrupt_in_a_step_returns_the_best_state(self):
        objectives = [5.0, 3.0, 1.0, 2.0, 0.0]

        def step(t: int) -> StepResult[int]:
            if t == 3:
                raise KeyboardInterrupt
            return StepResult(t + 1)

        result = run(step, 0, objective=lambda t: {"value": objectives[t]}, max_iter=4)
        assert (result.status, result.state, result.n_iter) == (Status.INTERRUPTED, 2, 3)
        assert result.trace.objective.tolist() == objectives[:4]

    def test_interrupt_in_a_callback_keeps_the_finished_iteration(self):
        def impatient(progress: Progress) -> None:
            raise KeyboardInterrupt

        result = run(**replay([2.0, 1.0, 0.0]), callbacks=[impatient])
        assert (result.status, result.state, result.n_iter) == (Status.INTERRUPTED, 1, 1)

    def test_interrupt_in_the_first_objective_returns_the_start(self):
        def objective(state):
            raise KeyboardInterrupt

        result = run(StepResult, "start", objective=objective, max_iter=5)
        assert (result.status, result.state, len(result.trace)) == (Status.INTERRUPTED, "start", 0)

    def test_other_exceptions_propagate(self):
        def step(state):
            raise np.linalg.LinAlgError("singular")

        with pytest.raises(np.linalg.LinAlgError, match="singular"):
            run(step, 0, max_iter=5)


class TestDivergence:
    @pytest.mark.parametrize("keep", ["best", "last"])
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_non_finite_objective_returns_an_earlier_state(self, bad, keep):
        result = run(**replay([4.0, 2.0, 3.0, bad, 0.0]), keep=keep)
        assert result.status is Status.DIVERGED
        assert result.n_iter == 3
        assert result.state == {"best": 1, "last": 2}[keep]
        np.testing.assert_array_equal(result.trace.objective, [4.0, 2.0, 3.0, bad])

    def test_trace_shows_the_term_that_diverged(self):
        def step(t: int) -> StepResult[int]:
            return StepResult(t + 1, {"good": 1.0, "bad": math.nan if t == 1 else 2.0})

        trace = run(step, 0, max_iter=9).trace
        assert trace.terms["good"].tolist() == [1.0, 1.0]
        assert math.isnan(trace.terms["bad"][-1])

    def test_infeasible_start_can_become_feasible(self):
        result = run(**replay([math.inf, 7.0, 6.0]))
        assert (result.status, result.state) == (Status.ITERATION_LIMIT, 2)
        assert result.trace.rises.count == 0

    @pytest.mark.parametrize("bad", [math.nan, -math.inf])
    def test_start_with_nan_objective_is_not_iterated(self, bad):
        result = run(**replay([bad, 1.0]))
        assert (result.status, result.state, result.n_iter) == (Status.DIVERGED, 0, 0)

    def test_divergence_has_priority_over_step_convergence(self):
        result = run(lambda s: StepResult(s, {"a": math.nan}, status=Status.CONVERGED), 0, max_iter=3)
        assert result.status is Status.DIVERGED


class TestCallbacks:
    def test_each_callback_sees_each_iteration_once(self):
        seen: list[Progress] = []
        run(**replay([3.0, 2.0, 1.0]), callbacks=[seen.append])
        assert [(p.iteration, p.max_iter, p.objective, p.state) for p in seen] == [(1, 2, 2.0, 1), (2, 2, 1.0, 2)]
        assert all(p.terms == {"value": p.objective} for p in seen)
        assert 0 <= seen[0].elapsed <= seen[1].elapsed

    def test_only_true_from_a_callback_stops_the_fit(self):
        assert run(**replay([3.0, 2.0, 1.0]), callbacks=[lambda p: "yes"]).status is Status.ITERATION_LIMIT
        result = run(**replay([3.0, 2.0, 1.0]), callbacks=[lambda p: p.iteration == 1])
        assert (result.status, result.n_iter) == (Status.STOPPED, 1)

    def test_convergence_has_priority_over_a_callback(self):
        result = run(**replay([1.0, 1.0, 1.0]), stop=RelativeChange(0.0), callbacks=[lambda p: True])
        assert result.status is Status.CONVERGED

    def test_view_is_called_once_and_only_if_used(self):
        made: list[int] = []

        def look_at_the_second(progress: Progress) -> None:
            if progress.iteration == 2:
                assert progress.state is progress.state

        watchers = [look_at_the_second, look_at_the_second, lambda p: p.objective < 0]
        result = run(**replay([3.0, 2.0, 1.0, 0.0]), callbacks=watchers, view=lambda t: made.append(t) or object())
        assert made == [2]
        assert result.state == 3


class TestTrace:
    @given(st.lists(st.tuples(finite, finite, finite), min_size=1, max_size=20))
    def test_terms_sum_to_the_objective(self, rows):
        names = ("kl", "likelihood", "margin")
        trace = run(
            lambda t: StepResult(t + 1),
            0,
            objective=lambda t: dict(zip(names, rows[t], strict=True)),
            max_iter=len(rows) - 1,
        ).trace
        assert list(trace.terms) == list(names)
        np.testing.assert_array_equal(np.column_stack(list(trace.terms.values())), rows)
        np.testing.assert_allclose(sum(trace.terms.values()), trace.objective, rtol=1e-12, atol=1e-6)

    @given(st.lists(finite, min_size=2, max_size=30))
    def test_rises_and_falls_sum_to_the_total_change(self, objectives):
        trace = run(**replay(objectives)).trace
        falls = run(**replay([-f for f in objectives])).trace.rises
        np.testing.assert_allclose(trace.rises.total - falls.total, objectives[-1] - objectives[0], atol=1e-6)
        assert trace.rises.count + falls.count <= len(objectives) - 1
        assert trace.rises.largest == max(0.0, float(np.diff(objectives).max()))

    def test_joined_traces_count_on_from_earlier_runs(self):
        parts = [run(**replay(values)).trace for values in ([5.0, 3.0, 4.0], [9.0, 8.0], [7.0])]
        joined = Trace.joined(parts)
        np.testing.assert_array_equal(joined.iterations, [0, 1, 2, 2, 3, 3])
        np.testing.assert_array_equal(joined.objective, [5.0, 3.0, 4.0, 9.0, 8.0, 7.0])
        np.testing.assert_array_equal(joined.rises.iterations, [2])
        assert joined.terms.keys() == parts[0].terms.keys()
        assert np.all(np.diff(joined.elapsed) >= 0)

    def test_a_divergence_is_not_a_rise(self):
        assert run(**replay([2.0, 1.0, math.inf])).trace.rises.count == 0

    def test_diagnostics_are_recorded_and_not_added_to_the_objective(self):
        def step(t: int) -> StepResult[int]:
            return StepResult(t + 1, {"value": 1.0}, diagnostics={"gap": 10.0} if t == 1 else {})

        trace = run(step, 0, max_iter=3).trace
        np.testing.assert_array_equal(trace.diagnostics["gap"], [np.nan, 10.0, np.nan])
        assert trace.objective.tolist() == [1.0, 1.0, 1.0]

    def test_trace_arrays_are_read_only(self):
        trace = run(**replay([2.0, 1.0])).trace
        for array in (trace.iterations, trace.objective, trace.elapsed, trace.terms["value"]):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


class TestMisuse:
    def test_run_without_terms_raises(self):
        with pytest.raises(ValueError, match="given no objective"):
            run(StepResult, 0, max_iter=1)

    def test_changing_term_names_raise(self):
        names: Iterator[str] = iter(["kl", "margin"])
        with pytest.raises(ValueError, match=r"iteration 2 has \['margin'\], earlier ones had \['kl'\]"):
            run(lambda s: StepResult(s, {next(names): 1.0}), 0, max_iter=2)

    def test_bad_options_raise(self):
        with pytest.raises(ValueError, match="max_iter must be at least 0, got -1"):
            run(**{**replay([1.0]), "max_iter": -1})
        with pytest.raises(ValueError, match="keep must be 'best' or 'last', got 'first'"):
            run(**replay([1.0]), keep="first")
