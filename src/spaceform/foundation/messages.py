"""Sentences for people: errors with their exit codes, names that do not exist, counted things."""

import difflib
from collections.abc import Iterable, Sequence

_INPUT = (ValueError, OSError, ImportError, KeyError)
"""Errors that the user can put right: arguments, files, missing packages."""
_EXTRAS = {"ray": "cluster", "onnx": "export", "onnxruntime": "export", "onnxscript": "export"}
_EXTRAS |= {"sentence_transformers": "text"}
_LAB = {
    *("PIL", "filelock", "jinja2", "lightning_fabric", "matplotlib", "optuna", "pandas", "pooch"),
    *("pyarrow", "pydantic", "rich", "safetensors", "scipy", "sklearn", "timm", "tomli_w"),
    *("torchvision", "tqdm", "typer"),
}


def exit_code(error: Exception) -> int:
    """The exit code of an error: 2 if the user can put it right, 1 if the work failed."""
    return 2 if isinstance(error, _INPUT) else 1


def sentence(error: Exception) -> str:
    """What went wrong, in the words of the error."""
    if (
        isinstance(error, ModuleNotFoundError)
        and error.name is not None
        and not error.name.startswith("spaceform")
    ):
        package = source(error.name)
        said = f"this command needs the package {error.name!r}; install it with: pip install {package}"
        if (own := package.replace("spaceform[", ".[")) != package:
            said += f" (in a copy of the repository: pip install -c constraints.txt {own})"
        return said
    if isinstance(error, OSError) and error.strerror is not None:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    known = isinstance(error, _INPUT) or type(error).__module__.startswith("spaceform")
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return text if known else f"{type(error).__name__}: {text} (--debug shows where)"


def first_line(error: Exception) -> str:
    """The first line of a library's error, or the error's class if it has no text."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def spelled(name: str) -> str:
    r"""The name of a file; bytes that are not UTF-8 are spelled out, as in `caf\xe9.png`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def source(module: str) -> str:
    """What to install for a module: one of our extras, or its own package."""
    module = module.partition(".")[0]
    extra = "lab" if module in _LAB else _EXTRAS.get(module)
    return module if extra is None else f"'spaceform[{extra}]'"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """1 item, 2 items, 1,000 items."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(names: Sequence[str], joint: str = "and") -> str:
    """`a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {joint} {names[-1]}"


def at_row(number: int) -> str:
    """`row 3 (counted from 0)`: rows are counted as numpy, pandas and the output of `predict` count them."""
    return f"row {number:,} (counted from 0)"


def capital(text: str) -> str:
    """The text with a capital first letter; a first word that has capitals stays as it is: vMF."""
    first = text.split(maxsplit=1)[0] if text else ""
    return text if first != first.lower() else text[:1].upper() + text[1:]


_LISTED = 12  # the most names in a sentence


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The sentence for a name that is not known; if there are many known names, it lists the nearest."""
    return f"unknown {what} {name!r}; {_choices(name, list(known))}"


def no_option(what: str, of: str, option: str, known: Iterable[str]) -> str:
    """The sentence for an option that a thing does not have."""
    return f"{what} {of!r} has no option {option!r}; {_choices(option, list(known))}"


def _choices(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    names = ", ".join(known) or "none"
    if len(known) > _LISTED:
        nearest = difflib.get_close_matches(name, known, n=_LISTED // 2, cutoff=0)
        names = f"{', '.join(nearest)} ({len(known)} in all)"
    return f"{hint}choose from {names}"
