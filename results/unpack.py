"""Turn a kept study back into a folder: python results/unpack.py NAME FOLDER

`spaceform report FOLDER` then writes its tables and figures. The command of its `study.json` continues it:
finished runs stay, and what is missing is trained. What needs weights or embeddings (predictions, pictures of
single items) is not there.
"""

import sys
from pathlib import Path

from archive import ArchiveError, unpack

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python results/unpack.py NAME FOLDER")
    try:
        print(f"{unpack(sys.argv[1], Path(sys.argv[2]))} finished runs of {sys.argv[1]} in {sys.argv[2]}")
    except ArchiveError as error:
        sys.exit(f"error: {error}")
