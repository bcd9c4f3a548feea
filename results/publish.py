"""Keep what a study found, in one file: python results/publish.py STUDY [NAME]

Writes results/NAME.parquet (the study's own name unless given): the plan and, for each finished run, its
recipe, result, metrics and history. Weights, embeddings, tables and pictures are left out. `unpack.py` turns
the file back into a folder.
"""

import sys
from pathlib import Path

from archive import ArchiveError, pack

if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python results/publish.py STUDY [NAME]")
    folder = Path(sys.argv[1])
    name = sys.argv[2] if len(sys.argv) == 3 else folder.name
    try:
        print(f"{pack(folder, name)} finished runs of {folder} kept in results/{name}.parquet")
    except ArchiveError as error:
        sys.exit(f"error: {error}")
