"""Arrays to predict, without labels: `X` of an `.npz`, or an `.npy`."""

import zlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from spaceform.data.errors import DataError
from spaceform.data.guard import require_file, require_room_for_arrays
from spaceform.foundation.messages import at_row


def array_inputs(path: Path) -> NDArray[np.generic]:
    """`X` of an `.npz`, or the array of an `.npy`: numbers, one row or image for each item."""
    return _checked(_read(path), path)


def _read(path: Path) -> NDArray[np.generic]:
    require_file(path)
    try:
        with path.open("rb") as file:  # numpy leaves a damaged file open
            require_room_for_arrays(file, path, ("X",), "predict fewer rows at a time")
            found = np.load(file, allow_pickle=False)
            return found if isinstance(found, np.ndarray) else found["X"]
    except KeyError:
        there = ", ".join(found.files) or "nothing"
        raise ValueError(
            f"{path} has no array 'X' (it has {there}); save the inputs by np.savez(file, X=X)"
        ) from None
    except DataError:
        raise
    except ValueError as error:
        if "EOF" in str(error):  # less than its header says
            raise ValueError(
                f"{path} is cut short; copy it again, or write it by np.savez(file, X=X)"
            ) from None
        raise ValueError(
            f"{path} holds Python objects or no arrays at all, which are never read; save X.astype("
            "np.float32) by np.savez(file, X=X)"
        ) from None
    except (OSError, EOFError, BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} cannot be read as arrays ({error}); copy it again, or write it by np.savez(file, X=X)"
        ) from None


def _checked(x: NDArray[np.generic], path: Path) -> NDArray[np.generic]:
    if not (np.issubdtype(x.dtype, np.number) or x.dtype == bool) or np.iscomplexobj(x):
        raise ValueError(
            f"X of {path} must hold real numbers, got {x.dtype}; convert it by X.astype(np.float32)"
        )
    if x.ndim < 2 or len(x) == 0:
        raise ValueError(f"X of {path} must have a row for each item, one at least, got shape {x.shape}")
    x = x.astype(np.float32) if x.dtype in (np.float16, np.float64) else x
    if not (finite := np.isfinite(x).reshape(len(x), -1).all(1)).all():
        raise ValueError(
            f"X of {path} has NaN or infinite values in {int((~finite).sum())} of {len(x)} rows, the first "
            f"is {at_row(int((~finite).argmax()))}; remove or fill such rows"
        )
    return x
