"""Imported first by every module that needs the extra `lab`. If that is missing, the error says so."""

from importlib.util import find_spec

_PACKAGES = ("pydantic", "safetensors", "pandas", "sklearn", "lightning_fabric", "optuna", "matplotlib")


def _is_missing(name: str) -> bool:
    try:
        return find_spec(name) is None
    except ModuleNotFoundError:  # some finders of modules raise instead
        return True


for _name in _PACKAGES:
    if _is_missing(_name):
        raise ModuleNotFoundError(
            f"this part of spaceform needs the package {_name!r}; "
            "install it with: pip install 'spaceform[lab]'",
            name=_name,
        )
