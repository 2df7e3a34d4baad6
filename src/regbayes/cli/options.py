"""What each command can be asked: its options, as the fields of one dataclass."""

from __future__ import annotations

import codecs
import inspect
import os
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Annotated, Any, Literal, get_type_hints

import typer

from regbayes.cli import Format, Kind
from regbayes.cli.errors import UserError

__all__ = [
    "DataRequest",
    "FitRequest",
    "ModelPath",
    "ModelRequest",
    "Request",
    "Thresholds",
    "check_writable",
    "make_command",
]

READING, SPEAKING = "Reading the file", "What is shown"
TARGET, DOCUMENTS, SEARCH = "Target and inputs", "Documents", "Settings and search"


ModelPath = Annotated[
    str, typer.Argument(metavar="MODEL", help="A file that 'regbayes fit' wrote.", show_default=False)
]


Thresholds = Annotated[
    list[str],
    typer.Option(
        "--threshold",
        metavar="[NAME=]NUMBER",
        help="Answer yes, or the class NAME, where its probability is above; again for several. f1: the best for F1.",
        show_default=False,
    ),
]


def option(*names: str, panel: str, help: str, **more: Any) -> Any:  # noqa: A002 - as Typer calls it
    """Return what Typer needs to know of an option."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What every command can be asked."""

    json: Annotated[bool, option("--json", panel=SPEAKING, help="Print the result as one JSON object.")] = False
    quiet: Annotated[
        bool, option("--quiet", "-q", panel=SPEAKING, help="Show no progress, only results and warnings.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class DataRequest(Request):
    """What a command can be asked that reads data."""

    format: Annotated[
        Format | None, option("--format", panel=READING, help="The file's format, if not by its name.")
    ] = None
    delimiter: Annotated[
        str | None, option("--delimiter", panel=READING, help="What separates fields of a CSV file, if not found.")
    ] = None
    header: Annotated[
        bool, option("--header/--no-header", panel=READING, help="Whether the first line of a CSV file has names.")
    ] = True
    missing: Annotated[
        list[str],
        option("--missing", panel=READING, help="A text that marks a missing value, beside NA, ? and the like."),
    ] = field(default_factory=list)
    encoding: Annotated[str, option("--encoding", panel=READING, help="Of a CSV file, or of files in a folder.")] = (
        "utf-8"
    )

    def reading(self) -> dict[str, Any]:
        """Return the options of `regbayes.cli.tables.read_table`.

        Raises
        ------
        UserError
            If one of them makes no sense.
        """
        delimiter = {"\\t": "\t", "tab": "\t"}.get(self.delimiter or "", self.delimiter)
        if delimiter is not None and len(delimiter) != 1:
            raise UserError(f"--delimiter must be one character, got {delimiter!r}")
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise UserError(
                f"--encoding must be one that Python knows, utf-8 or latin-1 for instance; got {self.encoding!r}"
            ) from None
        return {
            "format": self.format,
            "delimiter": delimiter,
            "header": self.header,
            "missing": tuple(self.missing),
            "encoding": self.encoding,
        }


@dataclass(frozen=True, kw_only=True)
class ModelRequest(DataRequest):
    """What a command can be asked that puts a saved model and data together."""

    model: ModelPath
    data: Annotated[str, typer.Argument(metavar="DATA", help="Rows or documents, as to fit; - is CSV from stdin.")]
    text: Annotated[
        list[str],
        option("--text", panel=READING, help="Column with the text of documents, if not that of training."),
    ] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class FitRequest(DataRequest):
    """What a fit can be asked; None and empty lists leave it to the data, to the estimator or to cross-validation."""

    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="CSV, Parquet, NPZ, NPY or LIBSVM file, - for CSV from stdin, or a folder of documents.",
        ),
    ]
    output: Annotated[str, typer.Option("--output", "-o", help="The model file to write.", show_default=False)]

    target: Annotated[
        list[str], option("--target", "-t", panel=TARGET, help="Column to predict; again for several.")
    ] = field(default_factory=list)
    kind: Annotated[
        Kind | None, option("--kind", panel=TARGET, help="What to fit, if not what the target looks like.")
    ] = None
    model: Annotated[
        Literal["ilsvm", "medlda"] | None,
        option(
            "--model",
            panel=TARGET,
            help="ilsvm: features of rows; medlda: topics of documents, the default for text.",
        ),
    ] = None
    task: Annotated[
        str | None, option("--task", panel=TARGET, help="Column that says which group a row belongs to.")
    ] = None
    ignore: Annotated[list[str], option("--ignore", panel=TARGET, help="Column that is no input.")] = field(
        default_factory=list
    )
    categorical: Annotated[
        list[str], option("--categorical", panel=TARGET, help="Column whose numbers are names of categories.")
    ] = field(default_factory=list)
    names: Annotated[
        str | None, option("--names", panel=TARGET, help="Column that names rows on the page; no input.")
    ] = None
    standardize: Annotated[
        bool,
        option("--standardize/--no-standardize", panel=TARGET, help="Whether numbers are scaled to unit variance."),
    ] = True
    weight: Annotated[
        str | None, option("--weight", panel=TARGET, help="Column that says how often a row counts; no input.")
    ] = None
    balanced: Annotated[
        bool, option("--balanced", panel=TARGET, help="Rare classes count as much as frequent ones.")
    ] = False
    image: Annotated[
        str | None,
        option(
            "--image",
            panel=TARGET,
            metavar="HEIGHTxWIDTH",
            help="The inputs are pixels of a picture: taken as they are, and shown as pictures.",
        ),
    ] = None

    text: Annotated[list[str], option("--text", panel=DOCUMENTS, help="Column with the text; again for several.")] = (
        field(default_factory=list)
    )
    min_df: Annotated[
        int | None,
        option("--min-df", panel=DOCUMENTS, min=1, help="Documents that a word must occur in; 3, or 1 of few."),
    ] = None
    max_words: Annotated[
        int | None, option("--max-words", panel=DOCUMENTS, min=2, help="Most words, the frequent ones; 50000.")
    ] = None
    stop_words: Annotated[
        str | None,
        option("--stop-words", panel=DOCUMENTS, help="auto (by the language), english, none, or a file of words."),
    ] = None
    inference: Annotated[
        Literal["gibbs", "variational"] | None,
        option("--inference", panel=DOCUMENTS, help="How topics are inferred: by sampling or by mean field."),
    ] = None

    cv: Annotated[
        bool, option("--cv/--no-cv", panel=SEARCH, help="Whether to choose settings by cross-validation.")
    ] = True
    folds: Annotated[int, option("--folds", panel=SEARCH, min=2, help="Parts of the rows.")] = 5
    compare: Annotated[
        bool,
        option("--compare/--no-compare", panel=SEARCH, help="Whether to fit plain models to the same folds, too."),
    ] = True
    n_components: Annotated[
        list[int],
        option(
            "--n-components",
            panel=SEARCH,
            min=1,
            help="Most features; of documents the number of topics, again for values to try.",
        ),
    ] = field(default_factory=list)
    C: Annotated[
        list[float], option("--C", panel=SEARCH, help="Penalty on a margin violation; again for values to try.")
    ] = field(default_factory=list)
    temperature: Annotated[
        list[float],
        option(
            "--temperature",
            panel=SEARCH,
            help="0.2: soft features, for predicting; lower: nearly on or off. Again for values to try.",
        ),
    ] = field(default_factory=list)
    slab: Annotated[
        Literal["half-normal"] | None,
        option("--slab", panel=SEARCH, help="Features to read: off, or on by an amount. For one target with classes."),
    ] = None
    include_inputs: Annotated[
        bool | None,
        option(
            "--include-inputs/--features-only",
            panel=SEARCH,
            help="Whether predictions use the inputs beside the features.",
        ),
    ] = None
    n_init: Annotated[
        int | None, option("--n-init", panel=SEARCH, min=1, help="Starts of a fit, of which the best is kept.")
    ] = None
    stability: Annotated[
        int | None,
        option("--stability", panel=SEARCH, min=1, help="Fits to parts of the rows: the page says what comes back."),
    ] = None
    max_iter: Annotated[int | None, option("--max-iter", panel=SEARCH, min=1, help="Most iterations of a fit.")] = None
    seed: Annotated[int, option("--seed", panel=SEARCH, min=0, help="For the starts and the folds.")] = 0
    jobs: Annotated[int, option("--jobs", "-j", panel=SEARCH, min=-1, help="Processes; -1 is one per core.")] = 1

    @property
    def image_shape(self) -> tuple[int, int] | None:
        """Height and width of the picture that the inputs are."""
        if self.image is None:
            return None
        height, _, width = self.image.lower().partition("x")
        if not (height.isdigit() and width.isdigit()) or 0 in (int(height), int(width)):
            raise UserError(f"--image must be HEIGHTxWIDTH, 8x8 for instance; got {self.image!r}")
        return int(height), int(width)

    @property
    def scaled(self) -> bool:
        """Whether numbers are scaled: pixels are taken as they are."""
        return self.standardize and self.image is None

    def check(self) -> None:
        """Refuse what makes no sense whatever the data are.

        Raises
        ------
        UserError
            If an option does not; the message says which.
        """
        check_writable(self.output)
        self.reading()
        _ = self.image_shape
        if any(not value > 0 for value in self.C):
            raise UserError(f"--C must be positive, got {min(self.C)}")
        if any(not value >= 0 for value in self.temperature):
            raise UserError(f"--temperature must be positive, got {min(self.temperature)}")

    def check_model(self, model: Literal["ilsvm", "medlda"]) -> None:
        """Refuse options that a model has no use for."""
        useless: dict[str, dict[str, Any]] = {
            "ilsvm": {
                "--text": self.text,
                "--min-df, --max-words and --stop-words": self.min_df or self.max_words or self.stop_words,
                "--inference": self.inference,
                "several --n-components": len(set(self.n_components)) > 1,
            },
            "medlda": {
                "--task": self.task,
                "--categorical": self.categorical,
                "--no-standardize": not self.standardize,
                "--image": self.image,
                "--temperature": self.temperature,
                "--slab": self.slab,
                "--include-inputs and --features-only": self.include_inputs is not None,
                "--n-init": self.n_init,
            },
        }
        name = {"ilsvm": "iLSVM; --model medlda finds topics of documents", "medlda": "MedLDA, which sees words alone"}
        for given, value in useless[model].items():
            if value:
                raise UserError(f"{given}: nothing for {name[model]}")


def check_writable(path: str) -> None:
    """Refuse a place that cannot be written before hours are spent."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise UserError(f"--output {path}: there is no folder {folder}")
    if os.path.isdir(path):
        raise UserError(f"--output {path} is a folder; name a file")
    if not os.access(folder, os.W_OK):
        raise UserError(f"--output {path}: the folder {folder} cannot be written")


def make_command(request: type[Any], run: Callable[[Any], None]) -> Callable[..., None]:
    """Return a function with a parameter for each field of a request, as Typer wants it: it makes one and runs it."""
    hints = get_type_hints(request, include_extras=True)
    depth = {name: i for i, cls in reversed([*enumerate(request.__mro__)]) for name in inspect.get_annotations(cls)}
    ordered = sorted(fields(request), key=lambda one: depth[one.name])  # what all commands share comes last
    parameters = [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=_default(one), annotation=hints[one.name])
        for one in ordered
    ]

    def command(**given: Any) -> None:
        run(request(**given))

    command.__name__, command.__doc__ = run.__name__, run.__doc__
    command.__annotations__ = {one.name: hints[one.name] for one in ordered}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _default(one: Field[Any]) -> Any:
    if one.default_factory is not MISSING:
        return one.default_factory()
    return inspect.Parameter.empty if one.default is MISSING else one.default
