"""The options of each command as the fields of a dataclass."""

from __future__ import annotations

import codecs
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from typing import Annotated, Any, Literal, get_type_hints

import typer

from regbayes.cli import Format, Kind
from regbayes.cli.errors import UserError
from regbayes.cli.output import check_writable


class Panel(StrEnum):
    """Headings of option groups in the help."""

    READING = "Reading the file"
    TARGET = "Target and inputs"
    DOCUMENTS = "Documents"
    SEARCH = "Settings and search"
    SHOWN = "What is shown"


def option(default: Any, names: str, panel: str | None, help: str, **more: Any) -> Any:  # noqa: A002 - as Typer calls it
    """Return a dataclass field for an option; the default `list` makes it repeatable."""
    shown = bool(default) and default is not list
    made = typer.Option(*names.split(), help=help, rich_help_panel=panel, show_default=shown, **more)
    return field(default_factory=list, metadata={"typer": made}) if default is list else _field(made, default)


def argument(metavar: str, help: str, default: Any = MISSING) -> Any:  # noqa: A002 - as Typer calls it
    """Return a dataclass field for a positional argument."""
    return _field(typer.Argument(metavar=metavar, help=help, show_default=False), default)


def _field(made: Any, default: Any = MISSING) -> Any:
    return field(default=default, metadata={"typer": made})


@dataclass(frozen=True, kw_only=True)
class Request:
    """Options of every command."""

    json: bool = option(False, "--json", Panel.SHOWN, "Print the result as one JSON object.")
    quiet: bool = option(False, "--quiet -q", Panel.SHOWN, "Show no progress, only results and warnings.")


@dataclass(frozen=True, kw_only=True)
class DemoRequest(Request):
    """Options of ``regbayes demo``."""

    output: str = option("regbayes-demo", "--output -o", None, "Folder to write to.")


@dataclass(frozen=True, kw_only=True)
class DataRequest(Request):
    """Options of the commands that read data."""

    format: Format | None = option(None, "--format", Panel.READING, "Format of the file, if not by its name.")
    delimiter: str | None = option(None, "--delimiter", Panel.READING, "Separator of the fields of a CSV file.")
    decimal: str = option(".", "--decimal", Panel.READING, "Decimal point of a CSV file.")
    header: bool = option(True, "--header/--no-header", Panel.READING, "Whether a CSV file begins with names.")
    missing: list[str] = option(list, "--missing", Panel.READING, "Text that marks a missing value. Repeatable.")
    encoding: str = option("utf-8", "--encoding", Panel.READING, "Encoding of a CSV file, or of files in a folder.")

    def reading(self) -> dict[str, Any]:
        """Return the options of `regbayes.cli.read.read_table`, or raise a `UserError`."""
        delimiter = {"\\t": "\t", "tab": "\t"}.get(self.delimiter or "", self.delimiter)
        for name, mark in (("--delimiter", delimiter), ("--decimal", self.decimal)):
            if mark is not None and len(mark) != 1:
                raise UserError(f"{name} must be one character; got {mark!r}")
        if self.decimal == (delimiter or ","):
            raise UserError(f"--decimal {self.decimal} is the delimiter too; give another with --delimiter")
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise UserError(f"--encoding must be utf-8, latin-1 or the like; got {self.encoding!r}") from None
        own = {"delimiter": delimiter, "missing": tuple(self.missing)}
        return {name: getattr(self, name) for name in ("format", "decimal", "header", "encoding")} | own


@dataclass(frozen=True, kw_only=True)
class ModelRequest(DataRequest):
    """Options of the commands that apply a saved model to data."""

    model: str = argument("MODEL", "A file that 'regbayes fit' wrote.")
    data: str = argument("DATA", "Rows or documents, as to fit; - is CSV from stdin.")
    text: list[str] = option(list, "--text", Panel.READING, "Text column, if not that of training. Repeatable.")


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest(ModelRequest):
    """Options of ``regbayes evaluate``."""

    threshold: list[str] = option(
        list, "--threshold", None, "Predict yes, or class NAME, above a probability. Repeatable.", metavar="[NAME=]P"
    )


@dataclass(frozen=True, kw_only=True)
class PredictRequest(EvaluateRequest):
    """Options of ``regbayes predict``."""

    output: str | None = option(None, "--output -o", None, "A .csv, .parquet or .npz file; stdout (CSV) without it.")
    keep: list[str] = option(list, "--keep", None, "Column of DATA to copy. Repeatable.")
    scores: bool = option(False, "--scores", None, "Add the scores behind predicted classes.")
    probabilities: bool = option(False, "--probabilities", None, "Add the probabilities of classes or labels.")
    features: bool = option(False, "--features", None, "Add the latent features of rows.")


@dataclass(frozen=True, kw_only=True)
class ReportRequest(ModelRequest):
    """Options of ``regbayes report``."""

    model: str = argument("MODEL", "A file that 'regbayes fit' wrote.")
    data: str = argument("[DATA]", "Rows with targets to judge the model by, not those of the fit.", "")
    output: str = _field(typer.Option("--output", "-o", help="HTML file to write."))


@dataclass(frozen=True, kw_only=True)
class FitRequest(DataRequest):
    """Options of ``regbayes fit``; None and empty lists stand for automatic choices."""

    data: str = argument("DATA", "CSV, Parquet, NPZ, NPY or LIBSVM file, - for CSV from stdin, or folder of documents.")
    output: str = _field(typer.Option("--output", "-o", help="Model file to write."))

    target: list[str] = option(list, "--target -t", Panel.TARGET, "Column to predict. Repeatable.")
    kind: Kind | None = option(None, "--kind", Panel.TARGET, "What to fit, if not by the values of the target.")
    model: Literal["ilsvm", "medlda"] | None = option(
        None, "--model", Panel.TARGET, "ilsvm: features of rows; medlda: topics of documents, the default for text."
    )
    task: str | None = option(None, "--task", Panel.TARGET, "Column with the group that a row belongs to.")
    ignore: list[str] = option(list, "--ignore", Panel.TARGET, "Column that is not an input. Repeatable.")
    categorical: list[str] = option(list, "--categorical", Panel.TARGET, "Column of categories. Repeatable.")
    names: str | None = option(None, "--names", Panel.TARGET, "Column with names of rows for the report; not an input.")
    standardize: bool = option(True, "--standardize/--no-standardize", Panel.TARGET, "Whether to scale numbers.")
    weight: str | None = option(None, "--weight", Panel.TARGET, "Column with how often a row counts; not an input.")
    balanced: bool = option(False, "--balanced", Panel.TARGET, "Weigh rare classes as much as frequent ones.")
    image: str | None = option(
        None, "--image", Panel.TARGET, "Inputs are pixels: not scaled, and shown as pictures.", metavar="HEIGHTxWIDTH"
    )

    text: list[str] = option(list, "--text", Panel.DOCUMENTS, "Column with the text. Repeatable.")
    ngrams: int = option(1, "--ngrams", Panel.DOCUMENTS, "Count phrases of up to N words.", min=1, metavar="N")
    min_df: int | None = option(
        None, "--min-df", Panel.DOCUMENTS, "Drop words in fewer than N documents (3; 1 below 100).", min=1, metavar="N"
    )
    max_words: int = option(
        50_000, "--max-words", Panel.DOCUMENTS, "Keep the N most frequent words.", min=2, metavar="N"
    )
    stop_words: str | None = option(
        None, "--stop-words", Panel.DOCUMENTS, "Drop English stop words (english), or those of a file.", metavar="PATH"
    )
    inference: Literal["gibbs", "variational"] | None = option(
        None, "--inference", Panel.DOCUMENTS, "Infer topics by sampling or by mean field (default: try both)."
    )

    cv: bool = option(True, "--cv/--no-cv", Panel.SEARCH, "Whether to choose settings by cross-validation.")
    folds: int = option(5, "--folds", Panel.SEARCH, "Number of cross-validation folds.", min=2)
    resume: bool = option(False, "--resume", Panel.SEARCH, "Continue a search that did not write its model.")
    compare: bool = option(True, "--compare/--no-compare", Panel.SEARCH, "Whether to fit baselines on the same folds.")
    n_components: list[int] = option(
        list, "--n-components", Panel.SEARCH, "Most features. Repeatable for the number of topics of documents.", min=1
    )
    C: list[float] = option(list, "--C", Panel.SEARCH, "Penalty on margin violations. Repeatable: values to try.")
    temperature: list[float] = option(
        list, "--temperature", Panel.SEARCH, "Softness of features; lower is closer to binary. Repeatable."
    )
    slab: Literal["half-normal", "none"] | None = option(
        None, "--slab", Panel.SEARCH, "Fit sparse nonnegative features (half-normal, the default) or soft ones (none)."
    )
    include_inputs: bool | None = option(
        None, "--include-inputs/--features-only", Panel.SEARCH, "Whether predictions use the inputs and the features."
    )
    stability: int | None = option(
        None, "--stability", Panel.SEARCH, "Refit on N subsamples; report which features recur.", min=1, metavar="N"
    )
    max_iter: int | None = option(None, "--max-iter", Panel.SEARCH, "Most iterations of a fit.", min=1)
    seed: int = option(0, "--seed", Panel.SEARCH, "Seed of the starts and the folds.", min=0)
    jobs: int = option(1, "--jobs -j", Panel.SEARCH, "Number of processes; -1 is one per core.", min=-1)

    @property
    def image_shape(self) -> tuple[int, int] | None:
        """Height and width of the image that the inputs represent."""
        if self.image is None:
            return None
        height, _, width = self.image.lower().partition("x")
        if not (height.isdigit() and width.isdigit()) or 0 in (int(height), int(width)):
            raise UserError(f"--image must be HEIGHTxWIDTH, 8x8 for instance; got {self.image!r}")
        return int(height), int(width)

    def check(self, model: Literal["ilsvm", "medlda"]) -> None:
        """Raise a `UserError` for contradictory or unsupported options."""
        check_writable(self.output, self.data)
        self.reading()
        _ = self.image_shape
        if any(not value > 0 for value in self.C):
            raise UserError(f"--C must be positive; got {min(self.C)}")
        if any(not value >= 0 for value in self.temperature):
            raise UserError(f"--temperature must not be negative; got {min(self.temperature)}")
        if self.resume and not self.cv:
            raise UserError("--resume continues a search, and --no-cv makes none")
        of_words = ("text", "ngrams", "min_df", "max_words", "stop_words", "inference")
        of_rows = ("task", "categorical", "standardize", "image", "temperature", "slab")
        default = {one.name: [] if one.default is MISSING else one.default for one in fields(self)}
        for name in of_rows if model == "medlda" else of_words:
            if getattr(self, name) != default[name]:
                raise UserError(f"--{name.replace('_', '-')}: not for --model {model}")
        if model == "ilsvm" and len(set(self.n_components)) > 1:
            raise UserError("several --n-components: not for --model ilsvm")


def make_command(request: type[Any], run: Callable[[Any], None]) -> Callable[..., None]:
    """Return a Typer callback with one parameter per field that runs the request."""
    hints = get_type_hints(request)
    depth = {name: i for i, cls in reversed([*enumerate(request.__mro__)]) for name in inspect.get_annotations(cls)}
    parameters = []
    for one in sorted(fields(request), key=lambda one: depth[one.name]):  # shared options come last
        default = inspect.Parameter.empty if one.default is MISSING else one.default
        if one.default_factory is not MISSING:
            default = one.default_factory()
        annotation: Any = Annotated.__class_getitem__((hints[one.name], one.metadata["typer"]))  # type: ignore[attr-defined]
        parameters.append(
            inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )

    def command(**given: Any) -> None:
        run(request(**given))

    command.__name__, command.__doc__ = run.__name__, run.__doc__
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command
